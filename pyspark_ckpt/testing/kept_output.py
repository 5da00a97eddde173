"""The output of an epoch in a harness: as Spark gets it, or as yielded if there is no schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept_frame, kept_row
from pyspark_ckpt.operator.rows.mode import Output
from pyspark_ckpt.operator.values.codec import TupleCodec
from pyspark_ckpt.operator.values.json import JsonReader
from pyspark_ckpt.operator.values.transport import travels_as_json


class KeptOutput:
    """The output of an epoch.

    `after_call` is called after each call of the processor. `checked` is the library's buffer,
    which refuses wrong values, or ``None`` without a schema.
    """

    def __init__(
        self,
        checked: Output | None,
        after_call: Callable[[], None],
        where: str,
        *,
        in_frames: bool,
        schema: T.StructType | None = None,
    ) -> None:
        self._checked = checked
        self._after_call = after_call
        self._where = where
        self._in_frames = in_frames
        self._schema = schema
        self._kept: list[Any] = []
        self._batches: list[pa.RecordBatch] = []

    @property
    def rows(self) -> int:
        """How many rows are not checked yet."""
        return 0 if self._checked is None else self._checked.rows

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        if isinstance(output, pd.DataFrame):
            raise StateValueError(
                f"{self._where}: the processor returned a DataFrame: yield it, or return a list "
                "of frames"
            )
        if isinstance(output, Row):  # its values would be taken for rows
            raise StateValueError(
                f"{self._where}: the processor returned one Row: yield it, or return a list of Rows"
            )
        # Each is copied before the processor continues: a query has it as it is now, too.
        yielded = [self._as_it_is(item) for item in (() if output is None else output)]
        if self._checked is not None:
            self._checked.extend(yielded)
        else:
            self._kept.extend(yielded)
        self._after_call()

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add all that one call yields: a harness returns an epoch's output as a whole."""
        self.extend(output)
        return None

    def cut(self, rows: int) -> None:
        """Remove the checked rows of a call that raised; its output is not kept."""
        if self._checked is not None:
            self._checked.cut(rows)

    def take(self) -> pa.RecordBatch:
        """Check the rows that are not checked yet; :meth:`result` returns them."""
        if self._checked is None:
            return pa.RecordBatch.from_pydict({})
        self._batches.append(self._checked.take())
        return self._batches[-1]

    def result(self) -> Any:
        """Return all of the epoch's output, as a list of Rows or as one frame."""
        if self._schema is not None:
            of_spark = _spark_frame if self._in_frames else _spark_rows
            return of_spark(self._schema, self._batches)
        if not self._in_frames:
            return self._kept
        return pd.concat(self._kept, ignore_index=True) if self._kept else pd.DataFrame()

    def _as_it_is(self, item: Any) -> Any:
        if not self._in_frames:
            return kept_row(item)
        if not isinstance(item, pd.DataFrame):
            raise StateValueError(
                f"{self._where}: the processor yielded {type(item).__name__}: yield pandas "
                "DataFrames"
            )
        return kept_frame(item)


_TIMES: dict[type[T.DataType], Callable[[Any], Any]] = {
    T.DateType: T.DateType().fromInternal,
    T.TimestampType: T.TimestampType().fromInternal,
    T.TimestampNTZType: datetime.fromisoformat,
}


def _spark_rows(schema: T.StructType, batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Return batches in the sent schema as the Rows that ``collect`` returns."""
    make = Row(*schema.names)
    return [
        make(*values) for batch in batches for values in zip(*_columns(schema, batch), strict=True)
    ]


def _spark_frame(schema: T.StructType, batches: Sequence[pa.RecordBatch]) -> pd.DataFrame:
    """Return batches in the sent schema as a frame like the one that ``toPandas`` returns.

    Only integers in columns with nulls differ: they are exact here, as ``Int64``.
    """
    frames = [
        pd.DataFrame(
            {
                field.name: values if _is_changed(field) else _exact(sent)
                for field, sent, values in zip(
                    schema.fields, batch.columns, _columns(schema, batch), strict=True
                )
            }
        )
        for batch in batches
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=schema.names)


def _exact(sent: pa.Array) -> pd.Series[Any]:
    keeps = sent.null_count and pa.types.is_integer(sent.type)
    frame: pd.Series[Any] = sent.to_pandas(types_mapper=_nullable if keeps else None)
    return frame


def _nullable(_: pa.DataType) -> pd.Int64Dtype:
    return pd.Int64Dtype()


def _is_changed(field: T.StructField) -> bool:
    return type(field.dataType) in _TIMES or travels_as_json(field.dataType)


def _columns(schema: T.StructType, batch: pa.RecordBatch) -> list[list[Any]]:
    return [
        _values(field, column) for field, column in zip(schema.fields, batch.columns, strict=True)
    ]


def _values(field: T.StructField, sent: pa.Array) -> list[Any]:
    values: list[Any] = sent.to_pylist()
    if not _is_changed(field):
        return values
    read = _TIMES.get(type(field.dataType)) or _nested_reader(field)
    return [None if value is None else read(value) for value in values]


def _nested_reader(field: T.StructField) -> Callable[[Any], Any]:
    """Return a function from a travelling value to the value with Rows and dicts in it."""
    read = JsonReader(field.dataType, "UTC")
    codec = TupleCodec(T.StructType([field]), f"output column {field.name!r}")
    return lambda value: codec.decode(codec.encode((read(value),)))[0]
