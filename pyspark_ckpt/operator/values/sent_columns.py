"""The values of sent columns: what Arrow has, as NumPy and Python have it, and back."""

from __future__ import annotations

from collections.abc import Sequence
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


def _in_python(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a text with variants beside it; Arrow has each variant as two pieces of bytes."""
    if value is None:
        return None
    variants = [T.VariantVal(one["value"], one["metadata"]) for one in value[VARIANTS]]
    return {JSON: value[JSON], VARIANTS: variants}


def in_arrow(value: Any) -> dict[str, Any] | None:
    """Return a text with the variants beside it as Arrow takes it."""
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
