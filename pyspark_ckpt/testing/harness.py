"""``ProcessorHarness``: runs a processor without Spark, epoch by epoch."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import HarnessUseError, PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OnError, OperatorDescriptor
from pyspark_ckpt.operator.modes.mode import ARROW, BATCHES, PANDAS, ROWS, Mode, modes_of_class
from pyspark_ckpt.operator.plan.operator import (
    OperatorArguments,
    check_late_method,
    check_quarantines_keys,
    has_late_method,
)
from pyspark_ckpt.operator.quarantine.releases import EVERY_KEY, NO_KEY
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keys import check_max_parallelism
from pyspark_ckpt.operator.rows.mode import RowForm
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sides import BroadcastRows
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.state.operator_states import RawState
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.settings import read_settings
from pyspark_ckpt.testing.harness_clock import HarnessClock
from pyspark_ckpt.testing.harness_input import (
    EventTime,
    Given,
    GivenRows,
    HarnessInput,
    HarnessKey,
    HarnessMode,
    SeenColumns,
)
from pyspark_ckpt.testing.harness_subtask import CrashStep, HarnessSubtask, NotedStates
from pyspark_ckpt.testing.kept_output import KeptOutput, YieldedItems
from pyspark_ckpt.testing.schema_text import parse_schema
from pyspark_ckpt.testing.snapshot import HarnessSnapshot, put_back, take
from pyspark_ckpt.values.codec import Value
from pyspark_ckpt.values.time_zones import SESSION_ZONE

OF_OPERATOR: Any = object()
"""Replaces the key where a state belongs to no key, because ``None`` is a key."""


class ProcessorHarness:
    """Runs a processor without Spark; a replacement for PySpark's ``TwsTester``.

    It has the methods of ``TwsTester``, so in a test you only change the class. The processor runs
    on the library's own state, timers, barrier and backend, as one subtask. Each ``test...`` and
    ``set...`` call is one epoch. The epoch works with a fresh copy of the processor, and ends with
    a barrier that makes its writes durable. Where a query differs from ``TwsTester``, the harness
    behaves as the query:

    * Timers fire in the order of time, not key by key. A timer that is due when it is registered
      fires at the end of the same epoch. No timer is refused because it lies in the past.
    * A key is not called if all of its rows are late. A key without rows in the test is called.
    * Attributes that the processor sets are lost in the next epoch. State stays.
    * Values must fit the schema of their state. An error of the processor becomes a
      ``ProcessorError`` with the key.

    Rows, frames and keys reach the processor as in a query: with the values that columns of Spark
    have. Their types are those that ``spark.createDataFrame`` finds in all values so far, unless
    you give `inputStructType`: a Row in a Row, say, arrives as a dict. A time without a zone in a
    row is a ``timestamp_ntz``, so it arrives as it is; a query's ``timestamp`` has a zone. The
    column of a key has one type. Rows need not have the key columns; a key that is a tuple stays
    one. The state is in a temporary directory, which is deleted with the harness.

    Parameters
    ----------
    processor : StatefulProcessor, BatchProcessor or ArrowProcessor
        The processor under test.
    initialStateRow : sequence of tuple, optional
        Pairs of a key and a Row. ``handleInitialState`` is called with each pair, in one epoch
        before all others. Timers that it registers fire in the next epoch.
    initialStatePandas : sequence of tuple, optional
        The same with pairs of a key and a frame, which an ``ArrowProcessor`` gets as a table.
    timeMode : str
        ``None``, ``ProcessingTime`` or ``EventTime``.
    outputMode : str
        ``Append`` or ``Update``.
    eventTimeExtractor : callable, optional
        Returns a row's event time in milliseconds. The stream then has a watermark, which begins
        at 0. ``EventTime`` and a time to live in event time require it.
    uid : str
        The operator's name, in errors and in snapshots.
    backend : str
        ``heap`` or ``rocksdb``.
    max_parallelism : int
        Number of key groups that keys are spread over.
    keyColumns : int
        Number of key columns. With one, as in ``TwsTester``, every value is a whole key. With
        more, a key is a tuple of that many values.
    migrations : Mapping of str to Migration, optional
        As for ``transformWithState``. They run once per stored entry: in the first epoch, or
        before a state is looked at.
    outputStructType : StructType or str, optional
        The schema that output is checked against, and in whose form it is returned: as from
        ``collect`` or ``toPandas``. Without it, output is returned as yielded.
    conf : Mapping of str to str, optional
        Settings of a query, such as ``spark.ckpt.execution.memory-limit``. The session's time zone
        is ``spark.sql.session.timeZone``, by default UTC.
    failOnLostAttributes : bool
        Whether an epoch fails if the processor changes attributes outside of ``init``. A query
        logs one warning.
    onError : str
        ``fail``, or ``quarantine`` as for ``transformWithState``; see :meth:`release`.
    inputStructType : StructType or str, optional
        The columns of the rows, without a key that is not among them. By default they are found in
        the values.

    Raises
    ------
    PlanError
        If an argument is not allowed. Where ``TwsTester`` refuses it too, the error is a
        ``HarnessUseError`` or ``TimeModeError``, which are also the errors of ``TwsTester``.
    ProcessorError
        If ``init`` or ``handleInitialState`` raises.

    Examples
    --------
    >>> harness = ProcessorHarness(Visits(), timeMode="ProcessingTime", backend="rocksdb")
    >>> harness.test("ada", [Row(city="Oslo")])
    [Row(user='ada', n=1)]
    >>> harness.setProcessingTime(60_000)
    [Row(user='ada', n=0)]
    """

    _epochs: HarnessEpochs

    def __init__(
        self,
        processor: StatefulProcessor,
        initialStateRow: Sequence[tuple[Any, Row]] | None = None,
        initialStatePandas: Sequence[tuple[Any, pd.DataFrame]] | None = None,
        timeMode: str = "None",
        outputMode: str = "Append",
        eventTimeExtractor: EventTime | None = None,
        *,
        uid: str = "harness",
        backend: str = "heap",
        max_parallelism: int = 128,
        keyColumns: int = 1,
        migrations: Mapping[str, Migration] | None = None,
        outputStructType: T.StructType | str | None = None,
        conf: Mapping[str, str] | None = None,
        failOnLostAttributes: bool = False,
        onError: str = "fail",
        inputStructType: T.StructType | str | None = None,
    ) -> None:
        if initialStateRow is not None and initialStatePandas is not None:
            raise HarnessUseError(
                f"operator {uid!r}: give initialStateRow or initialStatePandas, not both"
            )
        schema, rows_schema = _parsed(outputStructType), _parsed(inputStructType)
        arguments = OperatorArguments.checked(
            processor,
            schema or T.StructType(),
            outputMode,
            timeMode,
            uid,
            migrations,
            on_error=onError,
        )
        mode = modes_of_class(processor)[0]
        if arguments.on_error is OnError.QUARANTINE:
            check_quarantines_keys(mode, f"operator {uid!r}")
        chosen = check_max_parallelism(max_parallelism, 1)
        settings = read_settings(conf or {}, {"spark.ckpt.state.backend.type": backend})
        root = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-harness-"))
        self._remove = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        descriptor = OperatorDescriptor(
            uid=uid,
            parallelism=1,
            max_parallelism=chosen,
            key_schema=T.StructType().json(),
            time_mode=arguments.time_mode,
            on_error=arguments.on_error,
            migrations={
                name: MigrationDescriptor.of(migration)
                for name, migration in arguments.migrations.items()
            },
        )
        subtask = HarnessSubtask(processor, descriptor, root, settings, arguments.migrations)
        subtask.fails_on_lost_attributes = failOnLostAttributes
        check_late_method(processor, mode, arguments.time_mode, subtask.where)
        keeps_late_rows = has_late_method(processor, mode.late_method)
        clock = HarnessClock(
            arguments.time_mode,
            eventTimeExtractor,
            subtask.where,
            keeps_late_rows=keeps_late_rows,
        )
        self._subtask = subtask
        self._input = HarnessInput(
            chosen,
            keyColumns,
            (conf or {}).get(SESSION_ZONE, "UTC"),
            subtask.where,
            has_event_time=eventTimeExtractor is not None,
            keeps_late_rows=keeps_late_rows,
            keys_are_columns=not mode.has_key_calls,
            schema=rows_schema,
        )
        self._clock = clock
        self._epochs = HarnessEpochs(subtask, self._input, clock, schema, mode)
        clock.ages = subtask.first_init(clock.now())
        self._epochs.over_initial_state(initialStateRow or initialStatePandas or ())

    @classmethod
    def restored(
        cls,
        processor: StatefulProcessor,
        snapshot: HarnessSnapshot,
        timeMode: str | None = None,
        outputMode: str = "Append",
        eventTimeExtractor: EventTime | None = None,
        *,
        backend: str = "heap",
        migrations: Mapping[str, Migration] | None = None,
        outputStructType: T.StructType | str | None = None,
        conf: Mapping[str, str] | None = None,
        onError: str = "fail",
        inputStructType: T.StructType | str | None = None,
    ) -> ProcessorHarness:
        """Return a new harness that starts from a snapshot, perhaps with another processor.

        Parameters
        ----------
        processor : StatefulProcessor, BatchProcessor or ArrowProcessor
            The processor under test; it may be a newer version of the snapshot's processor.
        snapshot : HarnessSnapshot
            What :meth:`snapshot` returned.
        timeMode : str, optional
            By default the time mode of the snapshot.
        outputMode : str
            As for the constructor.
        eventTimeExtractor : callable, optional
            As for the constructor.
        backend : str
            As for the constructor; it may differ from the backend of the snapshot.
        migrations : Mapping of str to Migration, optional
            As for ``transformWithState``.
        outputStructType : StructType or str, optional
            As for the constructor.
        conf : Mapping of str to str, optional
            As for the constructor.
        onError : str
            As for the constructor.
        inputStructType : StructType or str, optional
            As for the constructor.

        Returns
        -------
        ProcessorHarness
            With the state and the times of the snapshot.

        Raises
        ------
        IncompatibleStateError
            If the processor asks for states that the stored ones cannot become.

        Examples
        --------
        >>> snapshot = harness.snapshot()
        >>> newer = ProcessorHarness.restored(Visits(), snapshot, backend="rocksdb")
        >>> newer.peekValueState("count", "ada")
        (2,)
        """
        harness = cls(
            processor,
            timeMode=timeMode or snapshot.time_mode,
            outputMode=outputMode,
            eventTimeExtractor=eventTimeExtractor,
            uid=snapshot.handle.uid,
            backend=backend,
            max_parallelism=snapshot.handle.max_parallelism,
            keyColumns=len(snapshot.columns.keys.fields),
            migrations=migrations,
            outputStructType=outputStructType,
            conf=conf,
            onError=onError,
            inputStructType=inputStructType,
        )
        harness.restore(snapshot)
        return harness

    def test(self, key: Any, input: Sequence[Row]) -> list[Row]:
        """Process one key's rows, as an epoch.

        Parameters
        ----------
        key : object
            A value; a tuple of values if the harness has several key columns.
        input : sequence of Row
            The key's rows. In ``EventTime``, rows at or below the watermark are dropped. If the
            list is empty, the processor is called without rows.

        Returns
        -------
        list of Row
            What the processor yielded, also for timers that were due.

        Raises
        ------
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> harness.test("bob", [Row(city="Lima")])
        [Row(user='bob', n=1)]
        """
        output: list[Row] = self._epochs.over_keys([(key, input)])
        return output

    def testInPandas(self, key: Any, input: pd.DataFrame) -> pd.DataFrame:
        """Process one key's rows as pandas frames, as an epoch.

        Parameters
        ----------
        key : object
            A value; a tuple of values if the harness has several key columns.
        input : pandas.DataFrame
            The key's rows; late ones are dropped as in :meth:`test`.

        Returns
        -------
        pandas.DataFrame
            What the processor yielded, also for timers that were due.

        Raises
        ------
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> import pandas as pd
        >>> class Sizes(Visits):
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         yield pd.DataFrame({"user": [key[0]], "n": [sum(len(frame) for frame in rows)]})
        >>> ProcessorHarness(Sizes()).testInPandas("ada", pd.DataFrame({"city": ["Oslo", "Rome"]}))
          user  n
        0  ada  2
        """
        output: pd.DataFrame = self._epochs.over_keys([(key, input)])
        return output

    def testMany(self, input: Mapping[Any, Sequence[Row]] | Mapping[Any, pd.DataFrame]) -> Any:
        """Process the rows of several keys, as one epoch.

        Parameters
        ----------
        input : Mapping of object to sequence of Row or pandas.DataFrame
            Lists of rows, or frames, by key. Keys are handled in the order of their stored form, as
            in a query.

        Returns
        -------
        list of Row or pandas.DataFrame
            The output, of the same kind as the input.

        Raises
        ------
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> harness.testMany({"ada": [Row(city="Oslo")], "bob": [Row(city="Lima")]})
        [Row(user='ada', n=3), Row(user='bob', n=1)]
        """
        return self._epochs.over_keys(list(input.items()))

    def testInBatches(self, input: pd.DataFrame, *keyColumns: str) -> pd.DataFrame:
        """Process rows of any keys at once, as an epoch; for a ``BatchProcessor``.

        Parameters
        ----------
        input : pandas.DataFrame
            All rows.
        *keyColumns : str
            Which columns of `input` are the key, as for ``key_by``.

        Returns
        -------
        pandas.DataFrame
            What the processor yielded.

        Raises
        ------
        PlanError
            If the processor is not a ``BatchProcessor``, or `input` lacks a key column.
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> import pandas as pd
        >>> from pyspark_ckpt import BatchProcessor
        >>> class Sizes(BatchProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputBatch(self, keys, rows, timerValues):
        ...         yield keys.assign(n=rows.groupby(level=0).size())
        ...
        ...     def close(self): ...
        >>> rows = pd.DataFrame({"user": ["ada", "bob", "ada"]})
        >>> ProcessorHarness(Sizes()).testInBatches(rows, "user").sort_values("user")["n"].tolist()
        [2, 1]
        """
        output: pd.DataFrame = self._epochs.over_batch(input, keyColumns, BATCHES)
        return output

    def testInArrow(self, input: pa.Table, *keyColumns: str) -> pa.Table:
        """Process rows of any keys at once, as an epoch; for an ``ArrowProcessor``.

        Parameters
        ----------
        input : pyarrow.Table
            All rows. The processor gets their columns in the Arrow types of their Spark types.
        *keyColumns : str
            Which columns of `input` are the key, as for ``key_by``.

        Returns
        -------
        pyarrow.Table
            What the processor yielded.

        Raises
        ------
        PlanError
            If the processor is not an ``ArrowProcessor``, or `input` lacks a key column.
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from pyspark_ckpt import ArrowProcessor
        >>> class Sizes(ArrowProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputArrow(self, keys, rows, timerValues):
        ...         yield rows.group_by("user").aggregate([([], "count_all")])
        ...
        ...     def close(self): ...
        >>> rows = pa.table({"user": ["ada", "bob", "ada"]})
        >>> ProcessorHarness(Sizes()).testInArrow(rows, "user").sort_by("user").to_pylist()
        [{'user': 'ada', 'count_all': 2}, {'user': 'bob', 'count_all': 1}]
        """
        return self._epochs.over_batch(input, keyColumns, ARROW)

    def testBroadcast(self, rows: Sequence[Row] | pd.DataFrame | pa.Table) -> Any:
        """Process rows of the broadcast stream, as an epoch without other rows.

        Parameters
        ----------
        rows : sequence of Row, pandas.DataFrame or pyarrow.Table
            What ``handleBroadcastRows`` gets, as an iterator over the Rows, or over the one frame
            or table. An ``ArrowProcessor`` takes tables, a ``BatchProcessor`` frames.

        Returns
        -------
        list of Row, pandas.DataFrame or pyarrow.Table
            The output, of the same kind as the input.

        Raises
        ------
        PlanError
            If the processor has no ``handleBroadcastRows``.
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> class Rules(Visits):
        ...     def init(self, handle):
        ...         self.rules = handle.getBroadcastState("rules", "name string", "n long")
        ...
        ...     def handleBroadcastRows(self, rows, timerValues):
        ...         for row in rows:
        ...             self.rules.updateValue((row.name,), (row.n,))
        >>> harness = ProcessorHarness(Rules())
        >>> harness.testBroadcast([Row(name="most", n=3)])
        []
        >>> harness.peek("rules")
        {('most',): (3,)}
        """
        return self._epochs.with_broadcast(rows)

    def setProcessingTime(self, currentTimeMs: int | datetime) -> Any:
        """Move the processing time forward, in an epoch without rows.

        Parameters
        ----------
        currentTimeMs : int or datetime
            The new time in milliseconds, or with a time zone; the time begins at 0. Unlike in
            ``TwsTester``, every time mode is allowed if a state has a time to live in processing
            time.

        Returns
        -------
        list of Row or pandas.DataFrame
            The output of the timers that were due, of the kind that the last test call gave.

        Raises
        ------
        TimeModeError
            If the operator does not use processing time.
        HarnessUseError
            If it is not a time.
        ClockError
            If the time does not move forward.
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> harness.setProcessingTime(60_000)
        [Row(user='ada', n=0)]
        """
        with self._clock.processing_time(currentTimeMs):
            return self._epochs.without_rows()

    def setWatermark(self, currentWatermarkMs: int | datetime) -> Any:
        """Move the watermark forward, in an epoch without rows.

        Parameters
        ----------
        currentWatermarkMs : int or datetime
            The new watermark in milliseconds, or with a time zone; the watermark begins at 0.

        Returns
        -------
        list of Row or pandas.DataFrame
            The output of the timers that were due, of the kind that the last test call gave.

        Raises
        ------
        TimeModeError
            If the harness has no ``eventTimeExtractor``.
        HarnessUseError
            If it is not a time.
        ClockError
            If the watermark does not move forward.
        ProcessorError
            If the processor raises; the epoch has no effect.
        CrashedError
            If a crash was planned with :meth:`crashAt`; the epoch has no effect.

        Examples
        --------
        >>> class Alarm(Visits):
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         self.handle.registerTimer(max(row.time_ms for row in rows) + 1_000)
        ...         return iter([])
        >>> harness = ProcessorHarness(
        ...     Alarm(), timeMode="EventTime", eventTimeExtractor=lambda row: row.time_ms
        ... )
        >>> harness.test("ada", [Row(time_ms=5_000)])
        []
        >>> harness.setWatermark(6_000)
        [Row(user='ada', n=0)]
        """
        with self._clock.watermark(currentWatermarkMs):
            return self._epochs.without_rows()

    def crashAt(self, step: CrashStep) -> None:
        """Crash the next epoch that reaches a step, once.

        The epoch raises ``CrashedError``, and everything that it did is lost, as with ``kill -9``.
        State, timers, output and times are as after the last epoch that ended, so you can repeat
        the call. A call that sets a state, such as ``updateValueState``, does not crash.

        Parameters
        ----------
        step : CrashStep
            Where the epoch crashes.

        Examples
        --------
        >>> from pyspark_ckpt.errors import CrashedError
        >>> from pyspark_ckpt.testing import CrashStep
        >>> harness.crashAt(CrashStep.AFTER_SEGMENT)
        >>> try:
        ...     harness.test("ada", [Row(city="Lima")])
        ... except CrashedError:
        ...     print(harness.peekValueState("count", "ada"))
        (2,)
        >>> harness.test("ada", [Row(city="Lima")])
        [Row(user='ada', n=3)]
        """
        self._subtask.crash.plan(CrashStep(step))

    def quarantinedKeys(self) -> dict[Any, str]:
        """Return the keys that are quarantined, with the errors of their processor.

        Returns
        -------
        dict
            Each error by its key; empty without ``onError="quarantine"``.

        Examples
        --------
        >>> harness.quarantinedKeys()
        {}
        """
        columns = self._input.columns()
        found = self._subtask.quarantined(columns, self._clock.now())
        keys = zip(map(columns.decode_key, found), found.values(), strict=True)
        return {key[0] if len(key) == 1 else tuple(key): error for key, error in keys}

    def release(self, keys: Sequence[Any] | None = None) -> Any:
        """Give the rows of quarantined keys to the processor, in an epoch without other rows.

        The processor gets the rows in a call for each epoch that they came in. If it raises, the
        key stays quarantined.

        Parameters
        ----------
        keys : sequence, optional
            Keys as in :meth:`ProcessorHarness.test`; by default all quarantined keys.

        Returns
        -------
        list of Row, or pandas.DataFrame
            What the processor yielded, also for timers that were due.

        Examples
        --------
        >>> harness.release()
        []
        """
        wanted = keys if keys is None else [self._input.key(key).encoded for key in keys]
        self._subtask.releases.next = EVERY_KEY if wanted is None else frozenset(wanted)
        try:
            return self._epochs.without_rows()
        finally:
            self._subtask.releases.next = NO_KEY

    def loseLocalCopy(self) -> None:
        """Delete the backend's directory, as when an executor is lost.

        The next epoch rebuilds the local copy from the durable files.

        Examples
        --------
        >>> harness.loseLocalCopy()
        >>> harness.peekValueState("count", "ada")
        (2,)
        """
        self._subtask.lose_local_copy()

    def snapshot(self) -> HarnessSnapshot:
        """Return the state that the last epoch left, for :meth:`restore` and :meth:`restored`.

        Returns
        -------
        HarnessSnapshot
            With copies of all files; it outlives the harness.

        Examples
        --------
        >>> snapshot = harness.snapshot()
        >>> snapshot.time_mode
        'ProcessingTime'
        """
        return take(self._subtask, self._input, self._clock)

    def restore(self, snapshot: HarnessSnapshot) -> None:
        """Return to a snapshot, of this harness or of another one with the same uid.

        Parameters
        ----------
        snapshot : HarnessSnapshot
            What :meth:`snapshot` returned.

        Raises
        ------
        IncompatibleStateError
            If the processor asks for states that the stored ones cannot become, or the snapshot is
            of another operator; the harness stays as it was.

        Examples
        --------
        >>> snapshot = harness.snapshot()
        >>> harness.test("ada", [Row(city="Lima")])
        [Row(user='ada', n=3)]
        >>> harness.restore(snapshot)
        >>> harness.peekValueState("count", "ada")
        (2,)
        """
        put_back(snapshot, self._subtask, self._input, self._clock)

    def peek(self, stateName: str, key: Any = OF_OPERATOR) -> Any:
        """Return what a state of any kind holds.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object, optional
            Whose state it is; left out for operator list and broadcast state.

        Returns
        -------
        tuple, list, dict or None
            A tuple for value and reducing state, the result for aggregating state, a list for list
            and operator list state, a dict for map and broadcast state.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state.

        Examples
        --------
        >>> harness.peek("cities", "ada")
        [('Oslo',), ('Rome',)]
        """
        return self._peek(stateName, key)

    def peekValueState(self, stateName: str, key: Any) -> Value | None:
        """Return a key's value.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        tuple or None
            ``None`` if the key has no value.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.

        Examples
        --------
        >>> harness.peekValueState("count", "ada")
        (2,)
        """
        value: Value | None = self._peek(stateName, key, ValueState)
        return value

    def peekListState(self, stateName: str, key: Any) -> list[Value]:
        """Return a key's list.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        list of tuple
            Empty if the key has no list.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.

        Examples
        --------
        >>> harness.peekListState("cities", "bob")
        []
        """
        values: list[Value] = self._peek(stateName, key, ListState)
        return values

    def peekMapState(self, stateName: str, key: Any) -> dict[Value, Value]:
        """Return a key's map.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        dict of tuple to tuple
            Empty if the key has no map.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.

        Examples
        --------
        >>> harness.peekMapState("by_city", "ada")
        {}
        """
        entries: dict[Value, Value] = self._peek(stateName, key, MapState)
        return entries

    def peekTimers(self, key: Any) -> list[int]:
        """Return a key's timers, earliest first.

        Parameters
        ----------
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        list of int
            Milliseconds of the operator's time mode.

        Raises
        ------
        TimeModeError
            If the harness has ``timeMode="None"``.

        Examples
        --------
        >>> harness.peekTimers("ada")
        [60000]
        """
        given = self._input.key(key)
        return self._subtask.look(
            self._clock.now(), lambda states: list(states.listTimers()), given
        )

    def peekRawState(self) -> bytes | None:
        """Return what ``snapshotState`` wrote last.

        Returns
        -------
        bytes or None
            ``None`` if ``snapshotState`` never wrote.

        Examples
        --------
        >>> class Raw(Visits):
        ...     def snapshotState(self, context):
        ...         context.getRawOperatorStateOutput().write(b"3 files")
        >>> harness = ProcessorHarness(Raw(), timeMode="ProcessingTime")
        >>> harness.test("ada", [])
        [Row(user='ada', n=0)]
        >>> harness.peekRawState()
        b'3 files'
        """
        streams = self._subtask.look(
            self._clock.now(), lambda states: RawState(states.table).streams()
        )
        return streams[0] if streams else None

    def updateValueState(self, stateName: str, key: Any, value: Value) -> None:
        """Set a key's value, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.
        value : tuple
            One value per field of the schema.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.
        StateValueError
            If the value does not fit the schema.

        Examples
        --------
        >>> harness.updateValueState("count", "ada", (10,))
        >>> harness.peekValueState("count", "ada")
        (10,)
        """
        self._edit(stateName, key, lambda state: state.update(value), ValueState)

    def updateListState(self, stateName: str, key: Any, value: Iterable[Value]) -> None:
        """Set a key's list, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.
        value : iterable of tuple
            The values in order.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.
        StateValueError
            If a value does not fit the schema.

        Examples
        --------
        >>> harness.updateListState("cities", "ada", [("Lima",)])
        >>> harness.peekListState("cities", "ada")
        [('Lima',)]
        """
        self._edit(stateName, key, lambda state: state.put(value), ListState)

    def updateMapState(self, stateName: str, key: Any, value: Mapping[Value, Value]) -> None:
        """Set a key's map, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.
        value : Mapping of tuple to tuple
            All entries.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.
        StateValueError
            If a key or value does not fit the schema.

        Examples
        --------
        >>> harness.updateMapState("by_city", "ada", {("Oslo",): (1,)})
        >>> harness.peekMapState("by_city", "ada")
        {('Oslo',): (1,)}
        """

        def put(state: MapState) -> None:
            state.clear()
            for entry in value.items():
                state.updateValue(*entry)

        self._edit(stateName, key, put, MapState)

    def deleteState(self, stateName: str, key: Any) -> None:
        """Remove what a state of any kind holds for a key, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state.

        Examples
        --------
        >>> harness.deleteState("count", "ada")
        >>> print(harness.peekValueState("count", "ada"))
        None
        """
        self._edit(stateName, key, lambda state: state.clear())

    def _peek(self, name: str, key: Any, *classes: type) -> Any:
        given = None if key is OF_OPERATOR else self._input.key(key)

        def content(states: NotedStates) -> Any:
            noted = states.noted(name, *classes)
            try:
                return noted.kind.content_of(noted.state)
            except TypeError as exc:
                raise HarnessUseError(
                    f"the keys of state {name!r} hold lists or dicts, so no dict has them ({exc}): "
                    "read it in the processor, with iterator()"
                ) from exc

        return self._subtask.look(self._clock.now(), content, given)

    def _edit(self, name: str, key: Any, change: Callable[[Any], None], *classes: type) -> None:
        self._subtask.edit(
            self._clock.now(),
            [(self._input.key(key), name)],
            lambda _processor, states, _key, name: change(states.noted(name, *classes).state),
        )


class HarnessEpochs:
    """Runs one epoch per call."""

    def __init__(
        self,
        subtask: HarnessSubtask,
        input: HarnessInput,
        clock: HarnessClock,
        schema: T.StructType | None,
        mode: Mode,
    ) -> None:
        self._subtask = subtask
        self._input = input
        self._clock = clock
        self._schema = schema
        self._own_mode = mode

    def over_keys(self, input: Sequence[tuple[Any, Given]]) -> Any:
        """Process the rows or the frame of each key."""
        where = self._subtask.where
        if not self._own_mode.has_key_calls:
            raise PlanError(
                f"{where}: {_with_article(self._own_mode)} is tested by "
                f"{_METHODS[self._own_mode]}: call that"
            )
        forms = {isinstance(rows, pd.DataFrame) for _, rows in input}
        if len(forms) > 1:
            raise PlanError(
                f"{where}: some keys have lists of rows and others have frames: give all keys "
                "lists of rows, or all frames"
            )
        seen = self._input.with_keys(key for key, _ in input)
        seen = self._input.with_rows([rows for _, rows in input], seen)
        if forms:
            seen = replace(seen, in_frames=forms == {True})
        given = [(self._input.key(key, seen), rows) for key, rows in input]
        arriving = [GivenRows(key, *self._clock.arriving(rows)) for key, rows in given if len(rows)]
        with_rows = [each for each in arriving if len(each.rows)]
        without_rows = [key for key, rows in given if not len(rows)]
        batches = [self._input.batch(seen, with_rows)] if with_rows else []
        return self._epoch(seen, batches, without_rows=without_rows)

    def over_batch(
        self, input: pd.DataFrame | pa.Table, key_names: Sequence[str], mode: Mode
    ) -> Any:
        """Process rows of any keys; the keys are columns."""
        where, method = self._subtask.where, _METHODS[mode]
        if self._own_mode is not mode:
            raise PlanError(
                f"{where}: {method} needs {_with_article(mode)}: call {_METHODS[self._own_mode]}"
            )
        columns = input.column_names if isinstance(input, pa.Table) else list(input.columns)
        if not key_names or not set(key_names) <= set(columns):
            raise PlanError(
                f"{where}: {method} got the key columns {list(key_names)}: name some of {columns}"
            )
        seen = self._input.with_key_names(self._input.with_rows([input]), key_names)
        rows, times = self._clock.arriving(input)
        batches = [self._input.batch_of_columns(seen, rows, times)] if len(rows) else []
        return self._epoch(seen, batches)

    def over_initial_state(self, input: Sequence[tuple[Any, Any]]) -> None:
        """Pass the initial state to the processor, key by key."""
        if not input:
            return
        in_frames = any(isinstance(one, pd.DataFrame) for _, one in input)
        given = [(key, one if in_frames else [one]) for key, one in input]
        seen = replace(self._input.with_keys(key for key, _ in given), in_frames=in_frames)
        initial = self._input.with_initial_rows([rows for _, rows in given], seen)
        rows = [
            GivenRows(self._input.key(key, seen), rows, [None] * len(rows)) for key, rows in given
        ]
        columns = self._input.columns(initial)
        calls = self._mode(seen).of_operator(columns, OutputRows(T.StructType(), ""))
        batch = self._input.batch(initial, rows)
        self._subtask.begin(columns, calls, self._clock.now(), batch)
        self._input.seen = seen

    def with_broadcast(self, input: Given) -> Any:
        """Process the rows, or the frame, of a broadcast stream."""
        where, processor = self._subtask.where, self._subtask.processor
        if not hasattr(processor, "handleBroadcastRows"):
            raise PlanError(
                f"{where}: {type(processor).__name__} has no handleBroadcastRows(rows, "
                "timerValues), which a broadcast stream needs: add the method"
            )
        form = _form_of(input)
        if form not in _FORMS[self._own_mode]:
            one, several = _WORDS[_FORMS[self._own_mode][0]]
            raise PlanError(f"{where}: {_with_article(self._own_mode)} gets {several}: give {one}")
        in_frames = form is RowForm.PANDAS
        seen = replace(self._input.with_broadcast(input), in_frames=in_frames)
        if not len(input):
            return self._epoch(seen, [])
        calls = self._mode(seen).of_operator(
            self._input.columns(seen), OutputRows(T.StructType(), "")
        )
        columns = InputColumns(seen.broadcast, [], self._input.time_zone)
        broadcast = BroadcastRows(calls.shown_columns(columns), form)
        batch = self._input.broadcast_batch(seen, input, broadcast.side)
        return self._epoch(seen, [batch], broadcast)

    def without_rows(self) -> Any:
        """Fire the timers that are due, and release quarantined keys."""
        return self._epoch(self._input.seen, [])

    def _epoch(
        self,
        seen: SeenColumns,
        batches: list[pa.RecordBatch],
        broadcast: BroadcastRows | None = None,
        without_rows: Sequence[HarnessKey] = (),
    ) -> Any:
        crash, time_zone = self._subtask.crash, self._input.time_zone
        output_rows = OutputRows(
            self._schema or T.StructType(), self._subtask.handle.uid, time_zone=time_zone
        )
        calls = self._mode(seen).of_operator(self._input.columns(seen), output_rows)
        output = KeptOutput(
            YieldedItems(output_rows, calls.form) if self._schema is None else calls.new_output(),
            lambda: crash.reach(CrashStep.AFTER_FIRST_KEY),
            calls.form,
            time_zone,
        )
        self._subtask.process(
            calls.columns,
            HarnessMode(calls, output, self._input.without_rows(seen, without_rows)),
            self._clock.now(),
            batches,
            broadcast,
            calls_keys_without_rows=bool(without_rows),
        )
        self._input.seen = seen
        return output.result(self._schema)

    def _mode(self, seen: SeenColumns) -> Mode:
        if not self._own_mode.has_key_calls:
            return self._own_mode
        return PANDAS if seen.in_frames else ROWS


_METHODS = {ROWS: "test or testInPandas", BATCHES: "testInBatches", ARROW: "testInArrow"}
"""The methods that test a processor of each mode."""
_FORMS = {
    ROWS: [RowForm.ROWS, RowForm.PANDAS], BATCHES: [RowForm.PANDAS], ARROW: [RowForm.ARROW],
}  # fmt: skip
"""The forms that broadcast rows have in tests of each mode."""
_WORDS = {
    RowForm.ROWS: ("a list of Rows, or a frame", "Rows or frames"),
    RowForm.PANDAS: ("a frame", "frames"),
    RowForm.ARROW: ("a table", "tables"),
}


def _with_article(mode: Mode) -> str:
    name = mode.processor.__name__
    return f"an {name}" if name.startswith("A") else f"a {name}"


def _form_of(given: Given) -> RowForm:
    if isinstance(given, pa.Table):
        return RowForm.ARROW
    return RowForm.PANDAS if isinstance(given, pd.DataFrame) else RowForm.ROWS


def _parsed(schema: T.StructType | str | None) -> T.StructType | None:
    return parse_schema(schema) if isinstance(schema, str) else schema
