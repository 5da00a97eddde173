"""Sent columns as the pandas columns that PySpark's Arrow conversion gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.operator.travelling_types import Transport, received

Flags = np.ndarray[Any, Any]


def pandas_column(
    data_type: T.DataType,
    sent: pd.Series[Any],
    nulls: Flags | None,
    transport: Transport,
    time_zone: str,
) -> pd.Series[Any]:
    """Return a sent column as the user's frame shows it.

    Integers with nulls become floats with NaN, booleans with nulls objects, times naive
    ``datetime64[ns]`` in the session's zone.

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
        values = [received(transport, value) for value in sent.tolist()]
        return _objects(values, nulls)
    if nulls is None:
        return sent.reset_index(drop=True)
    if isinstance(data_type, T.BooleanType):
        return _objects(sent.tolist(), nulls)
    numbers = sent.to_numpy().astype(np.float32 if isinstance(data_type, T.FloatType) else float)
    numbers[nulls] = np.nan
    return pd.Series(numbers)


def _objects(values: list[Any], nulls: Flags | None) -> pd.Series[Any]:
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # lists of one length would become a matrix
        array[place] = value
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
        series = pd.Series([received(transport, time) for time in sent], dtype="datetime64[ns]")
    return series if nulls is None else series.mask(nulls)
