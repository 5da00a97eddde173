"""PySpark's own hand-over: pandas frames instead of the record batches that operators work on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from traceback import walk_tb
from typing import Any

import pandas as pd
import pyarrow as pa

from pyspark_ckpt.operator.values.sent_columns import first_bad_text, in_arrow, is_text, values_of


def batches_of(frames: Iterable[pd.DataFrame], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return frames as PySpark hands them over as batches; empty frames are left out."""
    for frame in frames:
        if len(frame):
            yield pa.RecordBatch.from_arrays(
                [_array(frame[field.name], field.type) for field in schema], schema=schema
            )


def bad_text_of(error: BaseException) -> tuple[str, bytes] | None:
    """Return the column and the text that is not UTF-8 for which PySpark could not make a frame.

    The batch is in the frames of Python's stack on which the error was raised. ``None`` if it is
    not there, or if the error has another reason.
    """
    for frame, _ in walk_tb(error.__traceback__):
        for value in list(frame.f_locals.values()):
            if isinstance(value, pa.RecordBatch | pa.Table):
                for name, column in zip(value.schema.names, value.columns, strict=True):
                    if is_text(column.type) and (bad := first_bad_text(column)) is not None:
                        return name, bad
    return None


def _array(column: pd.Series[Any], data_type: pa.DataType) -> pa.Array:
    if pa.types.is_struct(data_type):
        return pa.array(list(map(in_arrow, column)), data_type)
    # Not as pandas does: NaN is a value here. Numbers have no nulls, and objects have None.
    return pa.array(column.to_numpy(), data_type, from_pandas=False)


def frames_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
    """Return batches of output as frames that PySpark turns into the same values."""
    for batch in batches:
        names = batch.schema.names
        yield pd.DataFrame(dict(zip(names, map(_column, batch.columns), strict=True)))


def _column(array: pa.Array) -> pd.Series[Any]:
    masked = _masked_array(array)
    if masked is not None:
        return pd.Series(masked)
    return pd.Series(values_of(array), dtype=object)


def _masked_array(array: pa.Array) -> Any:
    """Return numbers and booleans as a pandas array with a separate mask.

    It is the one pandas form that keeps NaN, null and 64-bit integers apart on the way to Arrow;
    ``None`` for types whose Python objects do that by themselves.
    """
    masked: Any
    filler: Any
    if pa.types.is_integer(array.type):
        masked, filler = pd.arrays.IntegerArray, 0
    elif pa.types.is_floating(array.type):
        masked, filler = pd.arrays.FloatingArray, 0.0
    elif pa.types.is_boolean(array.type):
        masked, filler = pd.arrays.BooleanArray, False
    else:
        return None
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    values = array.fill_null(filler) if array.null_count else array
    return masked(values.to_numpy(zero_copy_only=False).copy(), nulls)
