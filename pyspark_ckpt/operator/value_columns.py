"""State values of many keys as pandas columns and back, without losing nulls or digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError

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
        Of the state's tuples.
    what
        The state, for errors.
    """

    def __init__(self, schema: T.StructType, what: str) -> None:
        self._schema = schema
        self._what = what

    def frame(self, values: Sequence[tuple[Any, ...] | None], index: pd.Index[Any]) -> pd.DataFrame:
        """Return tuples as columns; ``None`` gives a row of nulls."""
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

        NaN in a plain float column is a number and stays one.

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
    """Return what pandas turned into floats as integers again; NaN stands for null there."""
    nulls = series.isna().tolist()
    return [
        None if is_null else int(value) if float(value).is_integer() else value
        for value, is_null in zip(series.tolist(), nulls, strict=True)
    ]
