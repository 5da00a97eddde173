"""Copies of what a processor yields, which it may change before it continues.

PySpark converts each frame and Row at once. Here many are converted together, so what can change
is copied first.
"""

from __future__ import annotations

import copy
import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

_CHANGEABLE = (T.BinaryType, T.ArrayType, T.MapType, T.StructType)
_UNCHANGING = frozenset(
    {
        type(None), bool, int, float, str, bytes, Decimal, datetime.date, datetime.datetime,
        datetime.time, datetime.timedelta, T.VariantVal,
    }
)  # fmt: skip


def may_change(data_type: T.DataType) -> bool:
    """Return whether values of a type may be objects that can be changed, such as lists."""
    return isinstance(data_type, _CHANGEABLE)


def kept(value: Any, *, by_name: bool = False) -> Any:
    """Return a value that no later change of its lists, dicts, arrays and bytes reaches.

    With `by_name`, Rows in the value become dicts, because PySpark takes a Row in a yielded Row by
    its names, and a Row in a frame by the order of its values.
    """
    if type(value) in _UNCHANGING:
        return value
    if isinstance(value, list | tuple):
        items = [
            item if type(item) in _UNCHANGING else kept(item, by_name=by_name) for item in value
        ]
        if isinstance(value, list):
            return items
        names = getattr(value, "__fields__", None) if by_name and isinstance(value, Row) else None
        return tuple(items) if names is None else dict(zip(names, items, strict=True))
    if isinstance(value, dict):
        return {key: kept(item, by_name=by_name) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        copied: np.ndarray[Any, Any] = value.copy()
        if value.dtype.kind == "O":  # no deep copy: it takes the `fold` from times of pandas
            for place, item in np.ndenumerate(value):
                copied[place] = kept(item)
        return copied
    if isinstance(value, bytearray):
        return bytearray(value)
    return bytes(value) if isinstance(value, memoryview) else value


def kept_row(row: Any) -> Any:
    """Return a Row or tuple whose values no later change reaches; it keeps its names."""
    is_kept = not isinstance(row, tuple) or all(type(value) in _UNCHANGING for value in row)
    return row if is_kept else copy.deepcopy(row)


def kept_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of a frame; of its objects, too, if they can be changed."""
    copied = frame.copy()
    for place, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, np.dtype) and dtype.kind == "O":
            copied.isetitem(place, kept_column(frame.iloc[:, place], may_change=True))
    return copied


def kept_column(column: pd.Series[Any], *, may_change: bool) -> Any:
    """Return a copy of a column's array; of its objects, too, if those may change."""
    if not isinstance(column.dtype, np.dtype):
        return column.array.copy()
    values = column.to_numpy(copy=True)
    if may_change and values.dtype.kind == "O":
        for place, value in enumerate(values):
            values[place] = kept(value)
    return values


def kept_array(array: pa.Array) -> pa.Array:
    """Return an array whose memory is not that of a NumPy array, which the processor can change."""
    return pa.concat_arrays([array]) if pa.types.is_primitive(array.type) else array
