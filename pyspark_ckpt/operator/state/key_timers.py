"""The timers that a processor's handle sets: of the current key, or of many keys at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.milliseconds import instant_ms, whole_instants_ms
from pyspark_ckpt.operator.state.timers import Timers
from pyspark_ckpt.operator.table.stored_keys import Numbers
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock

Instant = int | datetime | np.datetime64

_NO_LISTS = (str, bytes, bytearray, memoryview, Set, Mapping)
"""What Python can iterate over, and no list of times."""


class KeyTimers:
    """The methods of a processor's handle that are about timers."""

    def __init__(self, table: StateTable, clock: EpochClock, where: str) -> None:
        self.timers = Timers(table, clock, where)
        self.table = table
        self.clock = clock
        self._where = where

    def registerTimer(self, expiryTimestampMs: Instant) -> None:
        """Register a timer for the current key; registering it twice has no effect.

        Parameters
        ----------
        expiryTimestampMs : int, datetime or numpy.datetime64
            When the timer fires in the operator's time mode: milliseconds since 1970, a
            ``datetime`` or ``pandas.Timestamp`` with a time zone, or NumPy's time, which is in UTC.

        Raises
        ------
        StateValueError
            If it is no instant, has no time zone, or lies between two milliseconds.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> list(handle.listTimers())
        [60000]
        """
        self.timers.register(self._instant("registerTimer", expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: Instant) -> None:
        """Delete a timer of the current key; has no effect if there is none.

        Parameters
        ----------
        expiryTimestampMs : int, datetime or numpy.datetime64
            When the timer was to fire, as for :meth:`registerTimer`.

        Raises
        ------
        StateValueError
            If it is no instant, has no time zone, or lies between two milliseconds.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> handle.deleteTimer(60_000)
        >>> list(handle.listTimers())
        []
        """
        self.timers.delete(self._instant("deleteTimer", expiryTimestampMs))

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
        self, keys: pd.DataFrame | pa.Table, expiryTimestampsMs: Iterable[Instant]
    ) -> None:
        """Register a timer for each of several keys.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.
        expiryTimestampsMs : iterable
            A time per row of `keys`, each as for :meth:`registerTimer`, such as a list, a pandas
            or NumPy column, or an Arrow column.

        Raises
        ------
        StateValueError
            If there is not one time per key, or one is no time as for :meth:`registerTimer`.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        """
        positions = self.table.positions_of(keys, self._where)
        self.timers.register_many(
            positions, self._instants("registerTimers", len(keys), expiryTimestampsMs)
        )

    def deleteTimers(
        self, keys: pd.DataFrame | pa.Table, expiryTimestampsMs: Iterable[Instant]
    ) -> None:
        """Delete a timer of each of several keys.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.
        expiryTimestampsMs : iterable
            A time per row of `keys`, each as for :meth:`registerTimer`, such as a list, a pandas
            or NumPy column, or an Arrow column.

        Raises
        ------
        StateValueError
            If there is not one time per key, or one is no time as for :meth:`registerTimer`.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        >>> handle.deleteTimers(keys, [60_000, 90_000])
        """
        positions = self.table.positions_of(keys, self._where)
        self.timers.delete_many(
            positions, self._instants("deleteTimers", len(keys), expiryTimestampsMs)
        )

    def _instant(self, method: str, given: Any) -> int:
        try:
            return instant_ms(given)
        except ValueError as exc:
            raise StateValueError(
                f"{self._where}: {method} got the time {given!r}: {exc}; give whole milliseconds "
                "since 1970, or a time with a zone"
            ) from exc

    def _instants(self, method: str, keys: int, given: Any) -> Numbers:
        is_ordered = isinstance(given, Iterable) and not isinstance(given, _NO_LISTS)
        if not is_ordered:
            raise StateValueError(
                f"{self._where}: {method} got the times {given!r}: give them in the order of the "
                "keys, as a list or column"
            )
        times = _column(given)
        if times is None:
            is_arrow = isinstance(given, pa.Array | pa.ChunkedArray)
            # Python's times may lack the last digits of Arrow's; its other values are shown better.
            listed = given.to_pylist() if is_arrow and not _is_time(given) else given
            times = np.array([self._instant(method, time) for time in listed], np.int64)
        if times.shape != (keys,):
            got = " by ".join(map(str, times.shape))
            raise StateValueError(
                f"{self._where}: {method} got {got} times for {keys} keys: give one time per key"
            )
        return times


def _column(given: Any) -> Numbers | None:
    """Return the times of a column that has whole milliseconds only, ``None`` for any other."""
    if isinstance(given, pa.Array | pa.ChunkedArray):
        is_whole = pa.types.is_signed_integer(given.type) or _is_zoned(given)
        return whole_instants_ms(np.asarray(given)) if is_whole and not given.null_count else None
    if type(given) is np.ndarray:  # and not a masked array
        return whole_instants_ms(given)
    return None


def _is_zoned(column: pa.Array | pa.ChunkedArray) -> bool:
    return _is_time(column) and column.type.tz is not None


def _is_time(column: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pa.types.is_timestamp(column.type))
