"""The classes of processors whose calls are for many keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues


class BatchProcessor(StatefulProcessor):
    """A processor that handles many keys in one call.

    For a time to live in event time, what a call writes is as old as the newest row of the call.
    Timers are set with ``registerTimers(keys, times)`` of the handle. All timers that are due come
    to ``handleExpiredTimers`` in one call. A processor without that method handles them one by one,
    in ``handleExpiredTimer``. States other than value state are used key by key, in a loop over
    ``eachKey(keys)`` of the handle.

    Examples
    --------
    >>> class Count(ckpt.BatchProcessor):
    ...     def init(self, handle):
    ...         self.count = handle.getValueState("count", "n long")
    ...
    ...     def handleInputBatch(self, keys, rows, timerValues):
    ...         n = self.count.getMany(keys)["n"].fillna(0) + rows.groupby(level=0).size()
    ...         self.count.updateMany(keys, n.to_frame("n"))
    ...         yield keys.assign(n=n)
    ...
    ...     def close(self): ...
    >>> import pandas as pd
    >>> from pyspark_ckpt.testing import ProcessorHarness
    >>> harness = ProcessorHarness(Count())
    >>> harness.testInBatches(pd.DataFrame({"user": ["ada", "ada"]}), "user")["n"].tolist()
    [2]
    """

    @abstractmethod
    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: TimerValues
    ) -> Iterable[pd.DataFrame] | None:
        """Handle all rows of some keys; called on an executor, once or a few times per epoch.

        Parameters
        ----------
        keys : pandas.DataFrame
            The key columns, one row per key. Integers in columns with nulls are exact, in pandas'
            type ``Int64``, here and in `rows`. Pass it, or some of its rows, to ``getMany`` and
            ``updateMany`` of value state.
        rows : pandas.DataFrame
            All rows of these keys, in the order of the keys. The index is the place of each row's
            key in `keys`, so ``rows.groupby(level=0)`` groups by key.
        timerValues : TimerValues
            The epoch's times.

        Returns
        -------
        iterable of pandas.DataFrame or None
            The output, in the columns of ``outputStructType``.

        Examples
        --------
        >>> class Sizes(ckpt.BatchProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputBatch(self, keys, rows, timerValues):
        ...         yield keys.assign(n=rows.groupby(level=0).size())
        ...
        ...     def close(self): ...
        """

    def handleExpiredTimers(
        self, keys: pd.DataFrame, timers: pd.DataFrame, timerValues: TimerValues
    ) -> Iterable[pd.DataFrame] | None:
        """Handle all timers that are due; called on an executor, once in an epoch that has any.

        More than 100,000 timers come in several calls, the earliest first. The timers are deleted
        before the call; one that it registers and that is due fires in the next epoch. If a
        processor does not override this method, ``handleExpiredTimer`` is called for each timer.

        Parameters
        ----------
        keys : pandas.DataFrame
            The key columns, one row per key, as :meth:`handleInputBatch` gets them. The key of the
            earliest timer is the first. Pass it, or some of its rows, to ``getMany``,
            ``updateMany``, ``registerTimers`` and so on.
        timers : pandas.DataFrame
            A row per timer, in the order of the keys, and the earlier timer of a key first.
            ``time_ms`` is its time in milliseconds since 1970. The index is the place of its key
            in `keys`.
        timerValues : TimerValues
            The epoch's times.

        Returns
        -------
        iterable of pandas.DataFrame or None
            The output, in the columns of ``outputStructType``.

        Examples
        --------
        >>> class Reminders(ckpt.BatchProcessor):
        ...     def init(self, handle):
        ...         self.handle = handle
        ...
        ...     def handleInputBatch(self, keys, rows, timerValues):
        ...         now_ms = timerValues.getCurrentProcessingTimeInMs()
        ...         self.handle.registerTimers(keys, [now_ms + 60_000] * len(keys))
        ...
        ...     def handleExpiredTimers(self, keys, timers, timerValues):
        ...         yield keys.assign(n=timers.groupby(level=0).size())
        ...
        ...     def close(self): ...
        """
        raise NotImplementedError("it is called only if a processor overrides it")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Not called: rows come to :meth:`handleInputBatch`."""
        raise NotImplementedError("a BatchProcessor gets its rows in handleInputBatch")


class ArrowProcessor(StatefulProcessor):
    """A processor that handles many keys in one call, as Arrow tables.

    It is the fastest way, because no value becomes a Python object unless the processor asks for
    it. Columns have the Arrow types of their Spark types: times are microseconds in UTC.

    For a time to live in event time, what a call writes is as old as the newest row of the call.
    Timers are set with ``registerTimers(keys, times)`` of the handle. All timers that are due come
    to ``handleExpiredTimers`` in one call. A processor without that method handles them one by one,
    in ``handleExpiredTimer``, which also yields Arrow tables. States other than value state are
    used key by key, in a loop over ``eachKey(keys)`` of the handle.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import pyarrow.compute as pc
    >>> class Count(ckpt.ArrowProcessor):
    ...     def init(self, handle):
    ...         self.count = handle.getValueState("count", "n long")
    ...
    ...     def handleInputArrow(self, keys, rows, timerValues):
    ...         rows = rows.group_by("key_position").aggregate([([], "count_all")])
    ...         counted = rows.sort_by("key_position").column("count_all")
    ...         n = pc.add(pc.fill_null(self.count.getMany(keys).column("n"), 0), counted)
    ...         self.count.updateMany(keys, pa.table({"n": n}))
    ...         yield keys.append_column("n", n)
    ...
    ...     def close(self): ...
    >>> counts = ckpt.key_by(events, "user").transformWithStateInArrow(
    ...     Count(), "user string, n long", "Update", "None", uid="count"
    ... )
    """

    @abstractmethod
    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: TimerValues
    ) -> Iterable[pa.Table] | None:
        """Handle all rows of some keys; called on an executor, once or a few times per epoch.

        Parameters
        ----------
        keys : pyarrow.Table
            The key columns, one row per key, and ``key_position``, which is 0, 1, 2 and so on.
            Pass it, or some of its rows, to ``getMany`` and ``updateMany`` of value state.
        rows : pyarrow.Table
            All rows of these keys, in the order of the keys. The column ``key_position`` says to
            which key of `keys` a row belongs.
        timerValues : TimerValues
            The epoch's times.

        Returns
        -------
        iterable of pyarrow.Table or None
            The output, with the columns of ``outputStructType``; other columns are left out.

        Examples
        --------
        >>> class Rows(ckpt.ArrowProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputArrow(self, keys, rows, timerValues):
        ...         yield rows
        ...
        ...     def close(self): ...
        """

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: TimerValues
    ) -> Iterable[pa.Table] | None:
        """Handle all timers that are due; called on an executor, once in an epoch that has any.

        More than 100,000 timers come in several calls, the earliest first. The timers are deleted
        before the call; one that it registers and that is due fires in the next epoch. If a
        processor does not override this method, ``handleExpiredTimer`` is called for each timer.

        Parameters
        ----------
        keys : pyarrow.Table
            The key columns, one row per key, and ``key_position``, which is 0, 1, 2 and so on. The
            key of the earliest timer is the first. Pass it, or some of its rows, to ``getMany``,
            ``updateMany``, ``registerTimers`` and so on.
        timers : pyarrow.Table
            A row per timer, in the order of the keys, and the earlier timer of a key first.
            ``time_ms`` is its time in milliseconds since 1970, ``key_position`` says to which key
            of `keys` it belongs.
        timerValues : TimerValues
            The epoch's times.

        Returns
        -------
        iterable of pyarrow.Table or None
            The output, with the columns of ``outputStructType``; other columns are left out.

        Examples
        --------
        >>> class Reminders(ckpt.ArrowProcessor):
        ...     def init(self, handle):
        ...         self.handle = handle
        ...
        ...     def handleInputArrow(self, keys, rows, timerValues):
        ...         now_ms = timerValues.getCurrentProcessingTimeInMs()
        ...         self.handle.registerTimers(keys, [now_ms + 60_000] * len(keys))
        ...
        ...     def handleExpiredTimers(self, keys, timers, timerValues):
        ...         yield keys
        ...
        ...     def close(self): ...
        """
        raise NotImplementedError("it is called only if a processor overrides it")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Not called: rows come to :meth:`handleInputArrow`."""
        raise NotImplementedError("an ArrowProcessor gets its rows in handleInputArrow")


HANDLES_NO_TIMERS = BatchProcessor.handleExpiredTimers, ArrowProcessor.handleExpiredTimers
"""What a processor has whose timers are handled one by one."""
