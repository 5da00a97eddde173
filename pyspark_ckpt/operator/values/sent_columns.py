"""The values of sent columns: what Arrow has, as NumPy and Python have it, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.json_in_spark import JSON, VARIANTS

Numbers = np.ndarray[Any, Any]
_NO_TIME = -(1 << 63)


def numbers_of(column: pa.Array) -> Numbers:
    """Return a column without nulls as NumPy has it; not to be written to."""
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    return numbers


def values_of(column: pa.Array) -> list[Any]:
    """Return the values of a sent column as Python has them, ``None`` for nulls."""
    if pa.types.is_struct(column.type):
        return list(map(_in_python, column.to_pylist()))
    if column.null_count and pa.types.is_primitive(column.type):
        return list(column.to_pylist())  # NumPy would make floats of integers
    return list(column.to_numpy(zero_copy_only=False).tolist())


def is_text(data_type: pa.DataType) -> bool:
    """Return whether an Arrow type is that of texts."""
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def first_bad_text(column: pa.Array | pa.ChunkedArray) -> bytes | None:
    """Return the first text of a column that is not UTF-8, ``None`` if there is none.

    The column may have any type; texts inside its values are looked at too.
    """
    if isinstance(column, pa.ChunkedArray):
        return next((bad for bad in map(first_bad_text, column.chunks) if bad is not None), None)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return next(_bad_texts(column), None)
    return None


def _bad_texts(column: pa.Array) -> Iterator[bytes]:
    kind = column.type
    if is_text(kind):
        binary = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
        yield from filter(_is_no_text, filter(None, column.view(binary).to_pylist()))
    elif pa.types.is_map(kind):
        yield from _bad_texts(column.keys)
        yield from _bad_texts(column.items)
    elif pa.types.is_struct(kind):
        for field in column.flatten():
            yield from _bad_texts(field)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _bad_texts(column.flatten())


def _is_no_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def _in_python(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a text and its variants; Arrow has each variant as two pieces of bytes."""
    if value is None:
        return None
    variants = [T.VariantVal(one["value"], one["metadata"]) for one in value[VARIANTS]]
    return {JSON: value[JSON], VARIANTS: variants}


def in_arrow(value: Any) -> dict[str, Any] | None:
    """Return a text and its variants as Arrow takes them."""
    if value is None:
        return None
    variants = [{"value": one.value, "metadata": one.metadata} for one in value[VARIANTS]]
    return {JSON: value[JSON], VARIANTS: variants}


def with_nulls(column: pa.Array, nulls: Numbers | None) -> pa.Array:
    """Return a column with nulls in some places; ``None`` for no places."""
    if nulls is None:
        return column
    return pc.if_else(pa.array(nulls), pa.scalar(None, column.type), column)


def newest_ms(
    microseconds: Numbers, nulls: Numbers | None, bounds: Sequence[int]
) -> list[int | None]:
    """Return the newest time, in milliseconds, of the rows from each bound to the next.

    It is ``None`` if all of them are null. None of the ranges is empty, unless there is no row.
    """
    if not len(microseconds):
        return [None] * (len(bounds) - 1)
    if nulls is not None:
        microseconds = np.where(nulls, _NO_TIME, microseconds)
    newest = np.maximum.reduceat(microseconds, bounds[:-1])
    times: list[int | None] = (newest // 1000).tolist()
    for place in np.flatnonzero(newest == _NO_TIME).tolist():
        times[place] = None
    return times
