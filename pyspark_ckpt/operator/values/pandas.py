"""Converts rows that were sent to an executor to pandas columns, as PySpark's conversion does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.sent_columns import values_of
from pyspark_ckpt.operator.values.transport import Transport, all_received

Flags = np.ndarray[Any, Any]
_NESTED = (T.ArrayType, T.MapType, T.StructType)


def pandas_column(
    data_type: T.DataType,
    sent: pa.Array,
    nulls: Flags | None,
    transport: Transport,
    time_zone: str,
) -> pd.Series[Any]:
    """Return a sent column as the user's frame shows it.

    * Numbers have 64 bits. Integers with nulls are floats with NaN, booleans with nulls objects.
    * Times are naive ``datetime64[ns]`` in the session's time zone.
    * Arrays are NumPy arrays, and maps are dicts.

    Parameters
    ----------
    data_type
        The column's type in the user's stream.
    sent
        The column as it travelled.
    nulls
        Which rows are null; ``None`` if no row is null or `sent` contains the nulls.
    transport
        How the column travels.
    time_zone
        The session's time zone.
    """
    if isinstance(data_type, T.TimestampType | T.TimestampNTZType):
        return _times(data_type, sent, nulls, transport, time_zone)
    if transport.receive is not None:
        values = all_received(transport, values_of(sent))
        if isinstance(data_type, _NESTED):
            values = [_in_pandas(data_type, value) for value in values]
        return _objects(values, nulls)
    if isinstance(data_type, T.BooleanType) and nulls is not None:
        return _objects(values_of(sent), nulls)
    values_or_numbers = sent.to_numpy(zero_copy_only=False)
    if values_or_numbers.dtype.kind not in "iuf":
        return pd.Series(values_or_numbers)
    # Both copies are the user's, who may write to them.
    if nulls is None:
        return pd.Series(
            values_or_numbers.astype(float if values_or_numbers.dtype.kind == "f" else np.int64)
        )
    numbers = values_or_numbers.astype(float)
    numbers[nulls] = np.nan
    return pd.Series(numbers)


def _in_pandas(data_type: T.DataType, value: Any) -> Any:
    """Return a nested value as Arrow converts it for pandas; structs are dicts already."""
    if value is None:
        return None
    if isinstance(data_type, T.ArrayType):
        items = [_in_pandas(data_type.elementType, item) for item in value]
        is_number = isinstance(data_type.elementType, T.NumericType) and None not in items
        if not items and isinstance(data_type.elementType, _NESTED):
            return np.array([])  # as PySpark does
        return np.array(items) if is_number and items else _object_array(items)
    if isinstance(data_type, T.MapType):
        value_type = data_type.valueType
        return {key: _in_pandas(value_type, item) for key, item in value}
    if isinstance(data_type, T.StructType):
        return {
            field.name: _in_pandas(field.dataType, value[field.name]) for field in data_type.fields
        }
    return value


def _object_array(values: list[Any]) -> Flags:
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # NumPy would make a matrix of lists of equal length
        array[place] = value
    return array


def _objects(values: list[Any], nulls: Flags | None) -> pd.Series[Any]:
    array = _object_array(values)
    if nulls is not None:
        array[nulls] = None
    return pd.Series(array)


def _times(
    data_type: T.DataType,
    sent: pa.Array,
    nulls: Flags | None,
    transport: Transport,
    time_zone: str,
) -> pd.Series[Any]:
    if isinstance(data_type, T.TimestampType):
        times = pd.to_datetime(pd.Series(sent.to_numpy()), unit="us", utc=True)
        series = times.dt.tz_convert(time_zone).dt.tz_localize(None)
    else:
        series = pd.Series(all_received(transport, values_of(sent)), dtype="datetime64[ns]")
    return series if nulls is None else series.mask(nulls)
