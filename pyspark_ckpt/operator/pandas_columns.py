"""Sent columns as the pandas columns that PySpark's Arrow conversion gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.operator.travelling_types import Transport, all_received

Flags = np.ndarray[Any, Any]
_NESTED = (T.ArrayType, T.MapType, T.StructType)


def pandas_column(
    data_type: T.DataType,
    sent: pd.Series[Any],
    nulls: Flags | None,
    transport: Transport,
    time_zone: str,
) -> pd.Series[Any]:
    """Return a sent column as the user's frame shows it.

    Numbers are 64 bits wide, integers with nulls floats with NaN, booleans with nulls objects,
    times naive ``datetime64[ns]`` in the session's zone, arrays NumPy arrays and maps dicts.

    Parameters
    ----------
    data_type
        The column's type in the user's stream.
    sent
        The column as it travelled.
    nulls
        Which rows are null; ``None`` for none, or where `sent` has its nulls itself.
    transport
        How the column travels.
    time_zone
        The session's.
    """
    if isinstance(data_type, T.TimestampType | T.TimestampNTZType):
        return _times(data_type, sent, nulls, transport, time_zone)
    if transport.receive is not None:
        values = all_received(transport, sent.tolist())
        if isinstance(data_type, _NESTED):
            values = [_in_pandas(data_type, value) for value in values]
        return _objects(values, nulls)
    if isinstance(data_type, T.BooleanType) and nulls is not None:
        return _objects(sent.tolist(), nulls)
    if sent.dtype.kind not in "iuf":
        return sent.reset_index(drop=True)
    if nulls is None:
        return pd.Series(sent.to_numpy().astype(float if sent.dtype.kind == "f" else np.int64))
    numbers = sent.to_numpy().astype(float)
    numbers[nulls] = np.nan
    return pd.Series(numbers)


def _in_pandas(data_type: T.DataType, value: Any) -> Any:
    """Return a nested value as Arrow gives it to pandas; structs are dicts already."""
    if value is None:
        return None
    if isinstance(data_type, T.ArrayType):
        items = [_in_pandas(data_type.elementType, item) for item in value]
        is_number = isinstance(data_type.elementType, T.NumericType) and None not in items
        if not items and isinstance(data_type.elementType, _NESTED):
            return np.array([])  # as PySpark gives it
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
    for place, value in enumerate(values):  # lists of one length would become a matrix
        array[place] = value
    return array


def _objects(values: list[Any], nulls: Flags | None) -> pd.Series[Any]:
    array = _object_array(values)
    if nulls is not None:
        array[nulls] = None
    return pd.Series(array)


def _times(
    data_type: T.DataType,
    sent: pd.Series[Any],
    nulls: Flags | None,
    transport: Transport,
    time_zone: str,
) -> pd.Series[Any]:
    if isinstance(data_type, T.TimestampType):
        times = pd.to_datetime(sent.reset_index(drop=True), unit="us", utc=True)
        series = times.dt.tz_convert(time_zone).dt.tz_localize(None)
    else:
        series = pd.Series(all_received(transport, sent.tolist()), dtype="datetime64[ns]")
    return series if nulls is None else series.mask(nulls)
