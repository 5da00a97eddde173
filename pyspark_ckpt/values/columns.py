"""The values of leaf types in Arrow columns, as NumPy and Python have them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

Numbers = np.ndarray[Any, Any]

_FIRST_DAY, _LAST_DAY = (
    int(np.datetime64(day, "D").astype(np.int64)) for day in ("0001-01-01", "9999-12-31")
)
_DAY_US = 86_400_000_000

NUMBER_OF_NAT = -(1 << 63)
"""A time or duration of Spark that NumPy and pandas take for none."""
_LONGEST_BACK = timedelta(microseconds=NUMBER_OF_NAT)


def numbers_of(column: pa.Array) -> Numbers:
    """Return a column without nulls as NumPy has it; not to be written to."""
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    return numbers


def nulls_of(column: pa.Array) -> Numbers | None:
    """Return which rows of a column are null, ``None`` if there are none."""
    if not column.null_count:
        return None
    flags: Numbers = column.is_null().to_numpy(zero_copy_only=False)
    return flags


def integers_of(column: pa.Array) -> Numbers:
    """Return numbers or times as integers, with 0 for nulls."""
    if not pa.types.is_integer(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return numbers_of(column.fill_null(0) if column.null_count else column)


def with_nulls(values: list[Any], column: pa.Array) -> list[Any]:
    """Put ``None`` in the places of a column's nulls."""
    nulls = nulls_of(column)
    if nulls is not None:
        for row in nulls.nonzero()[0].tolist():
            values[row] = None
    return values


def leaf_values(column: pa.Array) -> list[Any]:
    """Return the values of a column whose type Arrow and NumPy show as Python does."""
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if column.null_count and pa.types.is_primitive(column.type):
        filler: Any = pa.scalar(0, pa.int8()).cast(column.type)
        return with_nulls(leaf_values(column.fill_null(filler)), column)
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def plain_times(column: pa.Array) -> list[Any]:
    """Return times as the integers that Spark has for them."""
    return with_nulls(integers_of(column).tolist(), column)


def days(column: pa.Array) -> list[Any]:
    """Return dates; one that Python does not have raises ValueError."""
    numbers = integers_of(column)
    _check_years(numbers, _FIRST_DAY, _LAST_DAY)
    return with_nulls(numbers.astype("datetime64[D]").tolist(), column)


def local_times(column: pa.Array) -> list[Any]:
    """Return times without a zone; one that Python does not have raises ValueError."""
    numbers = integers_of(column)
    _check_years(numbers, _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    return with_nulls(numbers.astype("datetime64[us]").tolist(), column)


def _check_years(numbers: Numbers, least: int, most: int) -> None:
    # NumPy would return the number itself.
    if len(numbers) and (numbers.min() < least or numbers.max() > most):
        raise ValueError("year is out of range")


def durations(column: pa.Array) -> list[Any]:
    """Return durations."""
    numbers = integers_of(column)
    values = numbers.astype("timedelta64[us]").tolist()
    for row in (numbers == NUMBER_OF_NAT).nonzero()[0].tolist():
        values[row] = _LONGEST_BACK
    return with_nulls(values, column)


def times_of_day(column: pa.Array) -> list[Any]:
    """Return times of day."""
    values: list[Any] = column.to_pylist()
    return values


def variants(column: pa.Array) -> list[Any]:
    """Return variants, of structs of their two binaries."""
    value, metadata = map(leaf_values, column.flatten())
    return with_nulls(list(map(T.VariantVal, value, metadata)), column)
