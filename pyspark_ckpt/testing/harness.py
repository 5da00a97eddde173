"""``ProcessorHarness``: runs a processor without Spark, epoch by epoch."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OnError, OperatorDescriptor
from pyspark_ckpt.operator.modes.batches import BatchInput, BatchProcessor
from pyspark_ckpt.operator.modes.pandas import PandasInput
from pyspark_ckpt.operator.modes.rows import RowsInput
from pyspark_ckpt.operator.plan.operator import OperatorArguments, check_parks_keys
from pyspark_ckpt.operator.rows.key_groups import check_max_parallelism
from pyspark_ckpt.settings import read_settings
from pyspark_ckpt.testing.given_input import EventTime
from pyspark_ckpt.testing.given_keys import GivenKeys
from pyspark_ckpt.testing.harness_clock import HarnessClock
from pyspark_ckpt.testing.harness_epochs import HarnessEpochs, Mode, refuse_arrow
from pyspark_ckpt.testing.harness_faults import HarnessFaults
from pyspark_ckpt.testing.harness_subtask import HarnessSubtask
from pyspark_ckpt.testing.schema_text import parse_schema
from pyspark_ckpt.testing.snapshot import Snapshot


class ProcessorHarness(HarnessFaults):
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

    Rows and frames reach the processor as you give them; a query gives them the types of its
    columns. They need not have the key columns. The state is in a temporary directory, which is
    deleted with the harness.

    Parameters
    ----------
    processor : StatefulProcessor or BatchProcessor
        The processor under test, for rows or pandas frames.
    initialStateRow : sequence of tuple, optional
        Pairs of a key and a Row. ``handleInitialState`` is called with each pair, in one epoch
        before all others. Timers that it registers fire in the next epoch.
    initialStatePandas : sequence of tuple, optional
        The same with pairs of a key and a frame.
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
    maxParallelism : int
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
        Settings of a query, such as ``spark.ckpt.execution.memory-limit``.
    failOnLostAttributes : bool
        Whether an epoch fails if the processor changes attributes outside of ``init``. A query
        logs one warning.
    onError : str
        ``fail``, or ``quarantine`` as for ``transformWithState``; see :meth:`release`.

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
        maxParallelism: int = 128,
        keyColumns: int = 1,
        migrations: Mapping[str, Migration] | None = None,
        outputStructType: T.StructType | str | None = None,
        conf: Mapping[str, str] | None = None,
        failOnLostAttributes: bool = False,
        onError: str = "fail",
    ) -> None:
        if initialStateRow is not None and initialStatePandas is not None:
            raise HarnessUseError(
                f"operator {uid!r}: give initialStateRow or initialStatePandas, not both"
            )
        schema = outputStructType
        schema = parse_schema(schema) if isinstance(schema, str) else schema
        arguments = OperatorArguments.checked(
            processor,
            schema or T.StructType(),
            outputMode,
            timeMode,
            uid,
            migrations,
            on_error=onError,
        )
        refuse_arrow(processor, uid)
        mode: Mode = RowsInput if initialStatePandas is None else PandasInput
        if isinstance(processor, BatchProcessor):
            mode = BatchInput
        if arguments.on_error is OnError.QUARANTINE:
            check_parks_keys(mode, f"operator {uid!r}")
        chosen = check_max_parallelism(maxParallelism, 1)
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
        clock = HarnessClock(arguments.time_mode, eventTimeExtractor, subtask.where)
        super().__init__(subtask, GivenKeys(chosen, keyColumns), clock)
        self._epochs = HarnessEpochs(subtask, self._keys, clock, mode, schema)
        clock.ages = subtask.first_init(clock.now())
        self._epochs.over_initial_state(initialStateRow or initialStatePandas or ())

    @classmethod
    def restored(
        cls,
        processor: StatefulProcessor,
        snapshot: Snapshot,
        timeMode: str | None = None,
        outputMode: str = "Append",
        eventTimeExtractor: EventTime | None = None,
        *,
        backend: str = "heap",
        migrations: Mapping[str, Migration] | None = None,
        outputStructType: T.StructType | str | None = None,
        conf: Mapping[str, str] | None = None,
        onError: str = "fail",
    ) -> ProcessorHarness:
        """Return a new harness that starts from a snapshot, perhaps with another processor.

        Parameters
        ----------
        processor : StatefulProcessor or BatchProcessor
            The processor under test; it may be a newer version of the snapshot's processor.
        snapshot : Snapshot
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
            maxParallelism=snapshot.handle.max_parallelism,
            keyColumns=snapshot.key_columns,
            migrations=migrations,
            outputStructType=outputStructType,
            conf=conf,
            onError=onError,
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
        [Row(user='bob', n=1), Row(user='ada', n=3)]
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
        output: pd.DataFrame = self._epochs.over_batch(input, keyColumns)
        return output

    def testBroadcast(self, rows: Sequence[Row] | pd.DataFrame) -> Any:
        """Process rows of the broadcast stream, as an epoch without other rows.

        Parameters
        ----------
        rows : sequence of Row or pandas.DataFrame
            What ``handleBroadcastRows`` gets, as an iterator over the Rows or over the one frame.

        Returns
        -------
        list of Row or pandas.DataFrame
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
            If it is no time.
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
            If it is no time.
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
