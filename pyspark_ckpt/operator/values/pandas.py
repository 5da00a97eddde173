"""Converts to pandas columns: rows that were sent to an executor, and state values of many keys.

Rows look as after PySpark's Arrow conversion. State values convert back without losing nulls or
digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.values.transport import Transport, all_received

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


_NULLABLE: dict[type[T.DataType], str] = {
    T.ByteType: "Int8",
    T.ShortType: "Int16",
    T.IntegerType: "Int32",
    T.LongType: "Int64",
    T.FloatType: "Float32",
    T.DoubleType: "Float64",
    T.BooleanType: "boolean",
}
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


class ValueColumns:
    """The schema of a state as columns.

    Parameters
    ----------
    schema
        The schema of the state's tuples.
    what
        The state, for errors.
    """

    def __init__(self, schema: T.StructType, what: str) -> None:
        self._schema = schema
        self._what = what

    def frame(self, values: Sequence[tuple[Any, ...] | None], index: pd.Index[Any]) -> pd.DataFrame:
        """Return tuples as columns; ``None`` becomes a row of nulls."""
        missing = (None,) * len(self._schema.fields)
        columns = zip(*[missing if value is None else value for value in values], strict=True)
        empty: list[Sequence[Any]] = [()] * len(self._schema.fields)
        return pd.DataFrame(
            {
                field.name: _series(field.dataType, column, index)
                for field, column in zip(
                    self._schema.fields, columns if values else empty, strict=True
                )
            },
            index=index,
        )

    def rows(self, frame: pd.DataFrame, length: int) -> Iterator[tuple[Any, ...]]:
        """Return columns as tuples; every kind of null that pandas has becomes ``None``.

        NaN in a plain float column stays NaN.

        Raises
        ------
        StateValueError
            If a column is missing or the number of rows differs.
        """
        missing = [name for name in self._schema.names if name not in frame.columns]
        if missing or len(frame) != length:
            raise StateValueError(
                f"{self._what}: updateMany got {len(frame)} rows with the columns "
                f"{list(frame.columns)}, wanted are {length} rows with {self._schema.names}"
            )
        columns = [_values(field, frame[field.name]) for field in self._schema.fields]
        return zip(*columns, strict=True)


def _series(data_type: T.DataType, column: Sequence[Any], index: pd.Index[Any]) -> pd.Series[Any]:
    nullable = _NULLABLE.get(type(data_type))
    if nullable is None:
        return pd.Series(list(column), index=index, dtype=object)
    mask = np.fromiter((value is None for value in column), dtype=bool, count=len(column))
    kind = nullable.lower().replace("boolean", "bool")
    filled = [0 if value is None else value for value in column] if mask.any() else column
    numbers = np.array(filled, dtype=kind)
    array: Any
    if isinstance(data_type, T.BooleanType):
        array = pd.arrays.BooleanArray(numbers, mask)
    elif isinstance(data_type, _INTEGERS):
        array = pd.arrays.IntegerArray(numbers, mask)
    else:
        array = pd.arrays.FloatingArray(numbers, mask)
    return pd.Series(array, index=index)


def _values(field: T.StructField, series: pd.Series[Any]) -> list[Any]:
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iub":
        return series.tolist()
    if isinstance(field.dataType, _INTEGERS) and series.dtype.kind == "f":
        return _whole_numbers(series)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "f":
        return series.tolist()
    values = series.tolist()
    if isinstance(field.dataType, T.FloatType | T.DoubleType):
        return [None if value is None or value is pd.NA else value for value in values]
    nulls = series.isna().tolist()
    return [None if is_null else value for value, is_null in zip(values, nulls, strict=True)]


def _whole_numbers(series: pd.Series[Any]) -> list[Any]:
    """Return integers that pandas turned into floats; their NaN means null."""
    nulls = series.isna().tolist()
    return [
        None if is_null else int(value) if float(value).is_integer() else value
        for value, is_null in zip(series.tolist(), nulls, strict=True)
    ]
