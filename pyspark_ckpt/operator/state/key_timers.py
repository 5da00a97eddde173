"""The timers that a processor's handle sets: of the current key, or of many keys at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.state.timers import Timers
from pyspark_ckpt.operator.table.stored_keys import Numbers
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock


class KeyTimers:
    """The methods of a processor's handle that are about timers.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    clock : EpochClock
        The epoch's times.
    where : str
        The operator and subtask, for errors.
    """

    def __init__(self, table: StateTable, clock: EpochClock, where: str) -> None:
        self.timers = Timers(table, clock, where)
        self.table = table
        self.clock = clock
        self._where = where

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key; registering it twice has no effect.

        Parameters
        ----------
        expiryTimestampMs : int
            When the timer fires, in milliseconds since 1970 of the operator's time mode.

        Raises
        ------
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> list(handle.listTimers())
        [60000]
        """
        self.timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key; has no effect if there is none.

        Parameters
        ----------
        expiryTimestampMs : int
            When the timer was to fire, in milliseconds since 1970.

        Raises
        ------
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> handle.deleteTimer(60_000)
        >>> list(handle.listTimers())
        []
        """
        self.timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return an iterator over the current key's timers, earliest first.

        Returns
        -------
        iterator of int
            Milliseconds since 1970.

        Raises
        ------
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> handle.registerTimer(30_000)
        >>> list(handle.listTimers())
        [30000, 60000]
        """
        return self.timers.of_current_key()

    def registerTimers(
        self, keys: pd.DataFrame | pa.Table, expiryTimestampsMs: Iterable[int]
    ) -> None:
        """Register a timer for each of several keys.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.
        expiryTimestampsMs : iterable of int
            A time per row of `keys`, in milliseconds since 1970.

        Raises
        ------
        StateValueError
            If there is not one time per key, or a time is not a whole number.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        """
        positions = self.table.positions_of(keys, self._where)
        self.timers.register_many(
            positions, self._times("registerTimers", len(keys), expiryTimestampsMs)
        )

    def deleteTimers(
        self, keys: pd.DataFrame | pa.Table, expiryTimestampsMs: Iterable[int]
    ) -> None:
        """Delete a timer of each of several keys.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.
        expiryTimestampsMs : iterable of int
            A time per row of `keys`, in milliseconds since 1970.

        Raises
        ------
        StateValueError
            If there is not one time per key, or a time is not a whole number.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        >>> handle.deleteTimers(keys, [60_000, 90_000])
        """
        positions = self.table.positions_of(keys, self._where)
        self.timers.delete_many(
            positions, self._times("deleteTimers", len(keys), expiryTimestampsMs)
        )

    def _times(self, method: str, keys: int, given: Any) -> Numbers:
        is_arrow = isinstance(given, pa.Array | pa.ChunkedArray)
        if is_arrow and pa.types.is_signed_integer(given.type) and not given.null_count:
            times: Numbers = given.to_numpy()
        elif type(given) is np.ndarray and given.dtype.kind == "i":  # and not a masked array
            times = given
        else:
            listed = given.to_pylist() if is_arrow else given
            times = np.array([self._whole(method, time) for time in listed], np.int64)
        if len(times) != keys:
            raise StateValueError(
                f"{self._where}: {method} got {len(times)} times for {keys} keys: give one whole "
                "number of milliseconds per key"
            )
        return times

    def _whole(self, method: str, time: Any) -> int:
        try:
            if time == (whole := int(time)) and -(1 << 63) <= whole < 1 << 63:
                return whole
        except (TypeError, ValueError, OverflowError, np.ma.MaskError):  # a null, NaN, infinity
            pass
        raise StateValueError(
            f"{self._where}: {method} got the time {time!r}: give one whole number of milliseconds "
            "per key"
        )
