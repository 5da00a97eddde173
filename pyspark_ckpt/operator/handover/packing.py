"""Rows as bytes: how they pass through PySpark's pandas frames unchanged.

Where Spark's worker cannot hand rows over in Arrow, a frame has one column of bytes, and each value
is a row. Pandas changes the type of many columns that have nulls, but it leaves bytes as they are.
The rows become bytes before the shuffle, and output becomes columns again after the operator.
Spark sees their event time next to them, so that it drops late rows as in any other query.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.packed import RowPacking
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import NEVER_LATE, WATERMARK_DELAY, is_window

ROW = "__ckpt_row"
_EVENT_TIME = "__ckpt_event_time_us"
PACKED_SCHEMA = T.StructType([T.StructField(ROW, T.BinaryType())])
"""What an operator's function returns if its rows are packed."""


def packed(rows: DataFrame) -> tuple[DataFrame, RowPacking]:
    """Return the rows of an operator as bytes, with their token and event time. Driver only."""
    packing = RowPacking(
        T.StructType([field for field in rows.schema.fields if field.name != TOKEN])
    )
    event_time = _event_time(rows.schema)
    sent = rows if event_time is None else rows.withColumn(_EVENT_TIME, event_time[0])
    # Nullable or not as in the other plan: PySpark up to 4.1 refuses another schema of its keys.
    fields = [T.StructField(TOKEN, T.IntegerType(), rows.schema[TOKEN].nullable)]
    if event_time is not None:
        metadata = {WATERMARK_DELAY: event_time[1]}
        fields.append(T.StructField(_EVENT_TIME, T.LongType(), metadata=metadata))
    fields.append(T.StructField(ROW, T.BinaryType()))
    return sent.mapInArrow(_Pack(packing), T.StructType(fields)), packing


def unpacked(output: DataFrame, packing: RowPacking) -> DataFrame:
    """Return the columns of an operator's packed output. Driver only."""
    return output.mapInArrow(_Unpack(packing), packing.schema)


def _event_time(schema: T.StructType) -> tuple[Column, int] | None:
    """Return the event time of rows in microseconds, and its delay, ``None`` without any."""
    timed = [field for field in schema.fields if WATERMARK_DELAY in field.metadata]
    if not timed:
        return None
    field, column = timed[0], F.col(timed[0].name)
    if is_window(field.dataType):
        column = column.cast("struct<c0: timestamp, c1: timestamp>")["c1"]
    elif isinstance(field.dataType, T.LongType):
        return column, field.metadata[WATERMARK_DELAY]
    microseconds = F.unix_micros(column.cast("timestamp"))
    return F.coalesce(microseconds, F.lit(NEVER_LATE)), field.metadata[WATERMARK_DELAY]


class _Pack:
    """The function given to ``mapInArrow`` before the shuffle."""

    def __init__(self, packing: RowPacking) -> None:
        self._packing = packing

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = [name for name in (TOKEN, _EVENT_TIME) if name in batch.schema.names]
            yield pa.RecordBatch.from_arrays(
                [*[batch.column(name) for name in names], self._packing.pack(batch)],
                names=[*names, ROW],
            )


class _Unpack:
    """The function given to ``mapInArrow`` after the operator."""

    def __init__(self, packing: RowPacking) -> None:
        self._packing = packing

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if len(batch):
                yield self._packing.unpack(batch.column(ROW).to_pylist())


def batches_of(frames: Iterator[pd.DataFrame], packing: RowPacking) -> Iterator[pa.RecordBatch]:
    """Return packed frames as PySpark hands them over as batches; empty frames are left out."""
    for frame in frames:
        if len(frame):
            yield packing.unpack(frame[ROW].tolist())


def frames_of(batches: Iterator[pa.RecordBatch], packing: RowPacking) -> Iterator[pd.DataFrame]:
    """Return batches of output as packed frames."""
    for batch in batches:
        yield pd.DataFrame({ROW: packing.pack(batch).to_numpy(zero_copy_only=False)})
