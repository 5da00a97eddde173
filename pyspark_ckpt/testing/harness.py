"""``ProcessorHarness``: runs a processor without Spark, epoch by epoch."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.plan.operator import OperatorArguments
from pyspark_ckpt.operator.rows.batch_mode import BatchInput, BatchProcessor
from pyspark_ckpt.operator.rows.key_groups import check_max_parallelism
from pyspark_ckpt.operator.rows.pandas_mode import PandasInput
from pyspark_ckpt.operator.rows.rows_mode import RowsInput
from pyspark_ckpt.settings import read_settings
from pyspark_ckpt.testing.crash_step import CrashStep
from pyspark_ckpt.testing.given_input import EventTime
from pyspark_ckpt.testing.given_keys import GivenKeys
from pyspark_ckpt.testing.harness_clock import HarnessClock
from pyspark_ckpt.testing.harness_epochs import HarnessEpochs, Mode
from pyspark_ckpt.testing.harness_subtask import HarnessSubtask
from pyspark_ckpt.testing.schema_text import parse_schema
from pyspark_ckpt.testing.snapshot import Snapshot, put_back, take
from pyspark_ckpt.testing.state_access import StateAccess


class ProcessorHarness(StateAccess):
    """Runs a processor without Spark; stands in for PySpark's ``TwsTester``.

    It has the methods of ``TwsTester``, so a test moves over by changing the class. But the
    processor runs on the library's own state, timers, barrier and backend, as one subtask. Each
    ``test...`` and ``set...`` call is one epoch: it works with a fresh copy of the processor, and
    ends with a barrier that makes its writes durable. What a query does otherwise than
    ``TwsTester``, this does as a query:

    * timers fire in the order of time, not key by key; one that is due when it is registered fires
      at the end of the same epoch, and none is refused for being in the past;
    * a key is not called if all of its rows are late; one that the test gives no rows is called;
    * attributes that the processor sets are gone in the next epoch, state is not;
    * values must fit the schema of their state, and an error of the processor arrives as
      ``ProcessorError`` with the key.

    Rows and frames reach the processor as they are given, where a query gives them the types of
    its columns, and they need not have the key columns. State lies in a temporary directory, which
    goes when the harness does.

    Parameters
    ----------
    processor
        A ``StatefulProcessor`` for rows or pandas, or a ``BatchProcessor``.
    initialStateRow, initialStatePandas
        Pairs of a key and a Row or frame: ``handleInitialState`` is called with each, in an epoch
        of their own; timers it registers fire in the next one.
    timeMode, outputMode
        As for ``transformWithState``.
    eventTimeExtractor
        From a row to its event time in milliseconds; gives the stream a watermark, which begins at
        0. Needed for ``EventTime`` and for a time to live in event time.
    uid
        The operator's name, in errors and in snapshots.
    backend
        ``heap`` or ``rocksdb``.
    maxParallelism
        Number of key groups that keys are spread over.
    keyColumns
        Number of key columns. With one, as in ``TwsTester``, every value is a whole key; with more,
        a key is a tuple of that many values.
    migrations
        As for ``transformWithState``.
    outputStructType
        Output is checked against this schema if it is given, and returned as yielded in any case.
    conf
        Settings of a query, such as ``spark.ckpt.execution.memory-limit``.
    failOnLostAttributes
        Whether an epoch is an error in which the processor changes attributes outside of ``init``:
        a query warns of them once.

    Raises
    ------
    PlanError
        If an argument is not allowed; as ``HarnessUseError`` or ``TimeModeError``, which are the
        errors that ``TwsTester`` raises, where it refuses the same.
    ProcessorError
        If ``init`` or ``handleInitialState`` raises.
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
    ) -> None:
        if initialStateRow is not None and initialStatePandas is not None:
            raise HarnessUseError(
                f"operator {uid!r}: give initialStateRow or initialStatePandas, not both"
            )
        schema = outputStructType
        schema = parse_schema(schema) if isinstance(schema, str) else schema
        arguments = OperatorArguments.checked(
            processor, schema or T.StructType(), outputMode, timeMode, uid, migrations
        )
        chosen = check_max_parallelism(maxParallelism, 1)
        settings = read_settings(conf or {}, {"spark.ckpt.state.backend.type": backend})
        root = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-harness-"))
        self._remove = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        descriptor = OperatorDescriptor(
            uid=uid,
            parallelism=1,
            max_parallelism=chosen,
            key_schema=T.StructType().json(),
            time_mode=arguments.time_mode.value,
        )
        subtask = HarnessSubtask(processor, descriptor, root, settings, arguments.migrations)
        subtask.fails_on_lost_attributes = failOnLostAttributes
        clock = HarnessClock(arguments.time_mode, eventTimeExtractor, subtask.where)
        super().__init__(subtask, GivenKeys(chosen, keyColumns), clock)
        mode: Mode = RowsInput if initialStatePandas is None else PandasInput
        if isinstance(processor, BatchProcessor):
            mode = BatchInput
        self._epochs = HarnessEpochs(subtask, self._keys, clock, mode, schema, eventTimeExtractor)
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
    ) -> ProcessorHarness:
        """Return a new harness that goes on from a snapshot, perhaps with another processor.

        Parameters
        ----------
        processor, outputMode, eventTimeExtractor, backend, migrations, outputStructType, conf
            As for the constructor; none need be what it was before.
        snapshot
            What :meth:`snapshot` returned.
        timeMode
            By default that of the snapshot.

        Raises
        ------
        IncompatibleStateError
            If the processor asks for states that the stored ones cannot become.
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
        )
        harness.restore(snapshot)
        return harness

    def test(self, key: Any, input: Sequence[Row]) -> list[Row]:
        """Process one key's rows, as an epoch.

        Parameters
        ----------
        key
            A value, or with ``keyColumns`` a tuple of values.
        input
            Its rows; in ``EventTime``, those at or below the watermark are dropped. The processor
            is called without rows if there are none.

        Returns
        -------
        list of Row
            What the processor yielded, also for timers that were due.
        """
        output: list[Row] = self._epochs.over_keys([(key, input)])
        return output

    def testInPandas(self, key: Any, input: pd.DataFrame) -> pd.DataFrame:
        """Process one key's rows as pandas frames, as an epoch; see :meth:`test`."""
        output: pd.DataFrame = self._epochs.over_keys([(key, input)])
        return output

    def testMany(self, input: Mapping[Any, Sequence[Row]] | Mapping[Any, pd.DataFrame]) -> Any:
        """Process the rows of several keys, as one epoch.

        Parameters
        ----------
        input
            By key, either lists of rows or frames; keys are handled in the order of their stored
            form, as in a query.

        Returns
        -------
        list of Row or DataFrame
            Of the same kind as the input.
        """
        return self._epochs.over_keys(list(input.items()))

    def testInBatches(self, input: pd.DataFrame, *keyColumns: str) -> pd.DataFrame:
        """Process rows of any keys at once, as an epoch; for a ``BatchProcessor``.

        Parameters
        ----------
        input
            All rows.
        keyColumns
            Which of its columns are the key, as for ``key_by``.
        """
        output: pd.DataFrame = self._epochs.over_batch(input, keyColumns)
        return output

    def testBroadcast(self, rows: Sequence[Row] | pd.DataFrame) -> Any:
        """Process rows of the broadcast stream, as an epoch without other rows.

        Parameters
        ----------
        rows
            What ``handleBroadcastRows`` gets, as an iterator over Rows or over the one frame.

        Returns
        -------
        list of Row or DataFrame
            Of the same kind as the input.
        """
        return self._epochs.with_broadcast(rows)

    def setProcessingTime(self, currentTimeMs: int) -> Any:
        """Move the processing time on, in an epoch without rows.

        Parameters
        ----------
        currentTimeMs
            The new time in milliseconds; it begins at 0. Unlike in ``TwsTester``, any time mode
            will do if a state has a time to live in processing time.

        Returns
        -------
        list of Row or DataFrame
            The output of the timers that were due, of the kind that the last test call gave.

        Raises
        ------
        TimeModeError
            If the operator has no such clock.
        ClockError
            If the time does not move forward.
        """
        with self._clock.processing_time(currentTimeMs):
            return self._epochs.without_rows()

    def setWatermark(self, currentWatermarkMs: int) -> Any:
        """Move the watermark on, in an epoch without rows; see :meth:`setProcessingTime`.

        Parameters
        ----------
        currentWatermarkMs
            The new watermark in milliseconds; it begins at 0.
        """
        with self._clock.watermark(currentWatermarkMs):
            return self._epochs.without_rows()

    def crashAt(self, step: CrashStep) -> None:
        """Have the next epoch that reaches `step` crash there, once.

        It raises ``CrashedError``, and all that the epoch did is lost, as with ``kill -9``: state,
        timers, output and time are those of the last epoch that ended. The same call can be
        repeated. States that the test itself sets do not crash.
        """
        self._subtask.crash.plan(CrashStep(step))

    def loseLocalCopy(self) -> None:
        """Throw the backend away, as with the loss of an executor; it comes back from its files."""
        self._subtask.lose_local_copy()

    def snapshot(self) -> Snapshot:
        """Return the state as of the last epoch, for :meth:`restore` and :meth:`restored`."""
        return take(self._subtask, self._keys, self._clock)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, of this harness or of another one with the same uid.

        Raises
        ------
        IncompatibleStateError
            If the processor asks for states that the stored ones cannot become, or the snapshot is
            of another operator; the harness stays as it was.
        """
        put_back(snapshot, self._subtask, self._keys, self._clock)
