"""Values in the user's frames: how sent rows become columns, and what yielded values mean.

Both follow PySpark's conversion: times in frames, also those inside arrays, maps and structs, are
naive and in the session's time zone.
"""

from __future__ import annotations

import datetime
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.values.arrow import ColumnStyle, python_values
from pyspark_ckpt.values.columns import NUMBER_OF_NAT, integers_of, nulls_of, numbers_of
from pyspark_ckpt.values.plain import dict_of_times
from pyspark_ckpt.values.shown import ValueNotHeldError, in_words, row_columns
from pyspark_ckpt.values.types import MOMENTS, Kind, classes_of, kind_of
from pyspark_ckpt.values.user import Converter
from pyspark_ckpt.values.words import shown

Flags = np.ndarray[Any, Any]
_NESTED = (T.ArrayType, T.MapType, T.StructType)
_TIMES = classes_of(*MOMENTS)
_NUMBERS = (Kind.INTEGER, Kind.FRACTION, Kind.BOOLEAN)
_OBJECTS = (Kind.TEXT, Kind.BINARY, Kind.DECIMAL)
_AS_THEY_ARE = classes_of(Kind.TEXT, Kind.BINARY, Kind.BOOLEAN)
"""Types whose values need no conversion where they are not null."""
_FRACTIONS = (float, np.floating)
_EXACT_IN_FLOAT = 1 << 53
_TIMES_OF_NUMPY = (np.datetime64, np.timedelta64)


def pandas_column(
    data_type: T.DataType, column: pa.Array, time_zone: str, *, exact: bool = False
) -> pd.Series[Any]:
    """Return a column as the user's frame shows it.

    * Numbers have 64 bits. Integers with nulls are floats with NaN, or ``Int64`` if `exact`.
      Booleans with nulls are objects.
    * Times are naive ``datetime64[ns]`` in the session's time zone, and in nested values naive
      ``Timestamp``, whose ``fold`` says which of two equal ones they are.
    * Arrays are NumPy arrays, and maps are dicts.

    ValueError is raised if a map has two keys in an hour that the time zone repeats, because they
    are one key in a frame.
    """
    if isinstance(data_type, _TIMES):
        return _times(data_type, column, time_zone)
    kind = kind_of(data_type)
    if kind in _OBJECTS:
        return pd.Series(numbers_of(column))
    if kind not in _NUMBERS or (kind is Kind.BOOLEAN and column.null_count):
        values = _object_array(python_values(data_type, column, _frame_style(time_zone)))
        if kind is Kind.DURATION and (integers_of(column) == NUMBER_OF_NAT).any():
            return pd.Series(
                values, dtype=object
            )  # else pandas 3 has NaT in place of the first one
        return pd.Series(values)
    if kind is Kind.BOOLEAN:
        return pd.Series(numbers_of(column).copy())
    # Both copies are the user's, who may write to them.
    dtype = float if kind is Kind.FRACTION else np.int64
    nulls = nulls_of(column)
    if nulls is None:
        return pd.Series(numbers_of(column).astype(dtype))
    filled = numbers_of(column.fill_null(0))
    if exact and dtype is not float:
        array: Any = pd.arrays.IntegerArray
        return pd.Series(array(filled.astype(np.int64), nulls.copy()))
    numbers = filled.astype(float)
    numbers[nulls] = np.nan
    return pd.Series(numbers)


def loses_digits(column: pa.Array) -> bool:
    """Return whether floats, as which integers with nulls are shown, lose digits of a column."""
    if not column.null_count or not pa.types.is_integer(column.type):
        return False
    numbers = integers_of(column)
    return bool(((numbers > _EXACT_IN_FLOAT) | (numbers < -_EXACT_IN_FLOAT)).any())


def check_frame(field: T.StructField, make: Callable[[pa.Array], object], column: pa.Array) -> None:
    """Name the first value of a column that pandas does not have, if there is one."""

    def fits(stop: int) -> bool:
        try:
            make(column.slice(0, stop))
        except pd.errors.OutOfBoundsDatetime:
            return False
        except ValueError:  # another value of the column is wrong in another way
            return True
        return True

    if fits(len(column)):
        return
    place = bisect_left(range(1, len(column) + 1), True, key=lambda stop: not fits(stop))  # noqa: FBT003
    value = in_words(field.dataType, column.slice(place, 1))
    raise ValueNotHeldError(
        f"column {field.name!r} is {field.dataType.simpleString()} and has {shown(value)}: pandas "
        "has times from 1677 to 2262 only: use a processor of rows or Arrow tables, or leave out "
        "such rows"
    )


def _frame_style(time_zone: str) -> ColumnStyle:
    """Return the style of nested values as Arrow converts them for pandas."""
    rows = row_columns(time_zone)

    def leaves(data_type: T.DataType) -> Callable[[pa.Array], list[Any]] | None:
        leaf = rows.leaves(data_type)
        if leaf is not None and isinstance(data_type, _TIMES):
            return partial(_naive_timestamps, leaf)
        return leaf

    return ColumnStyle(leaves, rows.struct, _frame_map, _frame_array)


def _naive_timestamps(leaf: Callable[[pa.Array], list[Any]], column: pa.Array) -> list[Any]:
    return [None if time is None else pd.Timestamp(_without_zone(time)) for time in leaf(column)]


def _frame_map(key_type: T.DataType, entries: Iterable[tuple[Any, Any]]) -> Any:
    return (dict_of_times if isinstance(key_type, T.TimestampType) else dict)(entries)


def _frame_array(kind: T.DataType, items: list[Any]) -> Any:
    is_number = isinstance(kind, T.NumericType) and None not in items
    if not items and isinstance(kind, (*_NESTED, *_TIMES)):
        return np.array([])  # as PySpark does
    return np.array(items) if is_number and items else _object_array(items)


def _without_zone(time: datetime.datetime) -> datetime.datetime:
    """Return a time as clocks in its zone show it; ``fold`` is 1 the second time they do."""
    shown = time.replace(tzinfo=None)
    localize = getattr(time.tzinfo, "localize", None)  # of pytz, whose times have no fold
    if localize is None or localize(shown, is_dst=True).utcoffset() == time.utcoffset():
        return shown
    return shown.replace(fold=1)


def _object_array(values: list[Any]) -> Flags:
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # NumPy would make a matrix of lists of equal length
        array[place] = value
    return array


def _times(data_type: T.DataType, column: pa.Array, time_zone: str) -> pd.Series[Any]:
    numbers, nulls = integers_of(column), nulls_of(column)
    if (numbers == NUMBER_OF_NAT).any():
        raise pd.errors.OutOfBoundsDatetime("pandas has NaT in place of the first of Spark's times")
    if isinstance(data_type, T.TimestampType):
        times = pd.to_datetime(pd.Series(numbers), unit="us", utc=True)
        series = times.dt.tz_convert(time_zone).dt.tz_localize(None)
    else:
        series = pd.Series(numbers.astype("datetime64[us]")).astype("datetime64[ns]")
    return series if nulls is None else series.mask(nulls)


def yielded_values(data_type: T.DataType, zone: datetime.tzinfo | None) -> Converter:
    """Return a function from a value of an object column that is yielded to what writers take.

    * NaN, ``NaT`` and ``NA`` are null, as in PySpark. Only inside nested values, NaN stays a
      ``float`` or ``double``.
    * A time without a zone is one in `zone`, and ``fold`` says which one if there are two.
    * NumPy arrays are lists. Times of NumPy and pandas are Python's, without nanoseconds, and in a
      date without the time of day. Whole floats that an array with NaN has made of integers are
      integers.

    What is of another type is left to the writers, which say what is wrong with it.

    If `zone` is ``None``, the zone of the process applies.
    """
    if isinstance(data_type, _AS_THEY_ARE):
        return _none_if_null
    convert = _yielded(data_type, zone)
    return lambda value: None if is_null(value) else convert(value)


def _yielded(data_type: T.DataType, zone: datetime.tzinfo | None) -> Converter:
    if isinstance(data_type, T.ArrayType):
        return _yielded_array(_yielded_item(data_type.elementType, zone))
    if isinstance(data_type, T.MapType):
        return _yielded_map(
            _yielded_item(data_type.keyType, zone), _yielded_item(data_type.valueType, zone)
        )
    if isinstance(data_type, T.StructType):
        return _yielded_struct(
            data_type.names, [_yielded_item(field.dataType, zone) for field in data_type.fields]
        )
    if isinstance(data_type, T.TimestampType):
        return lambda value: _instant(python_time(value), zone)
    if isinstance(data_type, T.IntegralType):
        return _whole_number
    return _python_date if isinstance(data_type, T.DateType) else python_time


def _yielded_item(data_type: T.DataType, zone: datetime.tzinfo | None) -> Converter:
    """Return the converter of a value inside another one, nulls included."""
    convert = _yielded(data_type, zone)
    if isinstance(data_type, T.FractionalType) and not isinstance(data_type, T.DecimalType):
        return lambda value: None if value is pd.NA or value is pd.NaT else value
    return lambda value: None if is_null(value) else convert(value)


def _yielded_array(convert: Converter) -> Converter:
    def array(value: Any) -> Any:
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            return [convert(item) for item in value]
        return value

    return array


def _yielded_map(key: Converter, item: Converter) -> Converter:
    def entry(pair: Any) -> Any:
        if isinstance(pair, list | tuple) and len(pair) == 2:
            return key(pair[0]), item(pair[1])
        return pair

    def entries(value: Any) -> Any:
        if isinstance(value, dict):
            return [(key(name), item(inner)) for name, inner in value.items()]
        return list(map(entry, value)) if isinstance(value, list) else value

    return entries


def _yielded_struct(names: list[str], converters: list[Converter]) -> Converter:
    by_name = dict(zip(names, converters, strict=True))

    def struct(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: by_name[name](item) if name in by_name else item
                for name, item in value.items()
            }
        if isinstance(value, list | tuple) and len(value) == len(converters):
            return [convert(item) for convert, item in zip(converters, value, strict=True)]
        return value

    return struct


def is_null(value: Any) -> bool:
    """Return whether a value is null in a frame: NaN, ``NaT`` and ``NA`` are."""
    if value is None or value is pd.NA or value is pd.NaT:
        return True
    if isinstance(value, _FRACTIONS):
        return math.isnan(value)
    return isinstance(value, _TIMES_OF_NUMPY) and bool(np.isnat(value))


def _none_if_null(value: Any) -> Any:
    # The check of the type comes first for speed: nearly all of these are texts.
    return value if type(value) is str or not is_null(value) else None


def python_time(value: Any) -> Any:
    """Return a time of pandas or NumPy as Python's, any other value as it is."""
    if isinstance(value, _TIMES_OF_NUMPY):
        value = pd.Timestamp(value) if isinstance(value, np.datetime64) else pd.Timedelta(value)
    if isinstance(value, pd.Timedelta):
        return value.to_pytimedelta()
    return value.to_pydatetime(warn=False) if isinstance(value, pd.Timestamp) else value


def _python_date(value: Any) -> Any:
    """Return a time's date, as PySpark does, any other value as it is."""
    time = python_time(value)
    return time.date() if isinstance(time, datetime.datetime) else time


def _instant(time: Any, zone: datetime.tzinfo | None) -> Any:
    if zone is None or not isinstance(time, datetime.datetime) or time.tzinfo is not None:
        return time
    localize = getattr(zone, "localize", None)  # of pytz, whose zones Python cannot set
    return time.replace(tzinfo=zone) if localize is None else localize(time, is_dst=not time.fold)


def _whole_number(value: Any) -> Any:
    """Return an integer of which pandas or NumPy made a float because of a null."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
