"""The running query: a ``StreamingQuery`` with checkpoints, savepoints, states and restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.console.opening import LOOPBACK, Console, open_console
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, ConfigurationError
from pyspark_ckpt.formats.modes import SavepointFormat, TimeMode
from pyspark_ckpt.formats.origin import RestoredFrom
from pyspark_ckpt.history.captures import Capture
from pyspark_ckpt.history.frames import History, as_frame
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.log import HistoryEntry
from pyspark_ckpt.history.records import CompletedCheckpoint, Savepoint
from pyspark_ckpt.live.states import LiveState, LiveStates
from pyspark_ckpt.live.view import QueryView, watch
from pyspark_ckpt.operator.capture.orders import CaptureFiles
from pyspark_ckpt.operator.descriptor import CaptureOrder, decode_runtime, encode_runtime
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.stopping.failure import library_errors, not_without_session
from pyspark_ckpt.query.stopping.run_state import Ended
from pyspark_ckpt.restarting.record import InPlaceRestart
from pyspark_ckpt.restarting.turn import Turn
from pyspark_ckpt.settings import RUNTIME_KEY
from pyspark_ckpt.spark.paths import usable_directory
from pyspark_ckpt.spark.program import Program, check_program
from pyspark_ckpt.spark.query import await_input, change_conf, java_query, progress_since
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore

_TEXT = (T.StringType(), pa.string())
_NUMBER = (T.LongType(), pa.int64())
_TIME = (T.TimestampType(), pa.timestamp("us", "UTC"))
_NUMBERS = (T.MapType(T.StringType(), T.LongType()), pa.map_(pa.string(), pa.int64()))

_COLUMNS: dict[str, tuple[T.DataType, pa.DataType]] = {
    "kind": _TEXT,
    "status": _TEXT,
    "checkpoint_id": _NUMBER,
    "epoch": _NUMBER,
    "triggered_at": _TIME,
    "duration_ms": _NUMBER,
    "size_bytes": _NUMBER,
    "new_bytes": _NUMBER,
    "files": _NUMBER,
    "phases_ms": _NUMBERS,
    "requests": _NUMBERS,
    "path": _TEXT,
    "reason": _TEXT,
    "parallelism_before": _NUMBER,
    "parallelism": _NUMBER,
    "pause_ms": _NUMBER,
}

Kind = TypeVar("Kind", bound=type)

_MISSED = (AbortReason.QUERY_ENDED, AbortReason.NO_COMMITTED_EPOCH)
"""Why a call fails that meets the end of a run which is restarted in place."""

Answer = TypeVar("Answer")


def as_spark_frame(spark: SparkSession, entries: Iterable[HistoryEntry]) -> DataFrame:
    """Return a DataFrame with a row for each entry.

    Rows made from Arrow are part of the plan, so a query that uses all slots does not delay them.
    """
    arrow = pa.schema([(name, in_arrow) for name, (_, in_arrow) in _COLUMNS.items()])
    schema = T.StructType([T.StructField(name, each) for name, (each, _) in _COLUMNS.items()])
    return spark.createDataFrame(pa.Table.from_pylist(list(map(_row, entries)), arrow), schema)


def _row(entry: HistoryEntry) -> dict[str, Any]:
    row = msgspec.to_builtins(entry)
    triggered_at_us = None if entry.triggered_at_ms is None else 1000 * entry.triggered_at_ms
    return {
        **row,
        "triggered_at": triggered_at_us,
        "phases_ms": _pairs(entry.phases_ms),
        "requests": _pairs(entry.requests),
    }


def _pairs(numbers: dict[str, int] | None) -> list[tuple[str, int]] | None:
    return None if numbers is None else list(numbers.items())


def _says_that_session_ended(kind: Kind) -> Kind:
    """Let the public methods and properties of a query's class raise a ``SessionEndedError``.

    Without a session Spark's own calls fail in many ways, some without a text: an assertion of
    PySpark, an error of Py4J, a closed channel. The class decorator changes all of them, so that
    no method is forgotten.
    """
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name != "_repr_html_":
            continue
        if isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(_saying(name, member.fget), doc=member.__doc__))
        elif callable(member):
            setattr(kind, name, _saying(f"{name}()", member))
    return kind


def _saying(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def saying(self: CheckpointedQuery, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except (CkptError, StreamingQueryException):
            raise  # they have a text
        except Exception as exc:
            why = self._why_session_ended()
            if why is None:
                raise
            raise not_without_session(self.id, name, why) from exc

    return saying


def _capturing(orders: tuple[CaptureOrder, ...], text: str) -> str:
    """Return what the tasks of a query get, with other epochs that are captured."""
    runtime = decode_runtime(text, "")
    captures = msgspec.structs.replace(runtime.captures, orders=orders)
    return encode_runtime(msgspec.structs.replace(runtime, captures=captures))


class Restarter(Protocol):
    """Starts a query again in place; made by the writer that started the query."""

    def restart(
        self,
        query: Any,
        program: Program | None,
        parallelism: int | None,
        reason: str,
    ) -> InPlaceRestart:
        """Stop the query between two epochs and start it again.

        Parameters
        ----------
        query
            The query, which continues with the new run.
        program
            The new program, ``None`` for the query's own.
        parallelism
            The number of subtasks, ``None`` for what the program says.
        reason
            Who asks for it.
        """


@_says_that_session_ended
class CheckpointedQuery(StreamingQuery):
    """A query started by :func:`pyspark_ckpt.write_stream`.

    It is a ``StreamingQuery`` with checkpoints and savepoints. Call its methods on the driver, from
    any thread. It holds the query that the session's own PySpark made, classic or Connect, and
    passes calls on. It inherits from PySpark's class only for ``isinstance`` and type hints.

    Parameters
    ----------
    spark : SparkSession
        The session that started the query.
    query : StreamingQuery
        Spark's query.
    coordinator : CheckpointCoordinator
        Takes the query's checkpoints and savepoints.
    restore : RestoredFrom, optional
        What the query was restored from.
    restarter : Restarter, optional
        Starts the query again in place, ``None`` if its program is not in this process.

    Examples
    --------
    >>> checkpoint = query.triggerCheckpoint()
    >>> retained = query.checkpoints().where("kind = 'checkpoint' AND status = 'completed'")
    >>> retained.count() > 0
    True
    """

    def __init__(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        coordinator: CheckpointCoordinator,
        restore: RestoredFrom | None = None,
        restarter: Restarter | None = None,
    ) -> None:
        # Without `super().__init__`: it is for classic sessions, and this class passes calls on.
        self._query = query
        self._spark = spark
        self._restore = restore
        self._coordinator = coordinator
        self._turn = Turn(coordinator.files.query_id)
        self._restarter = restarter
        self._listeners: list[CheckpointListener] = []
        self._restarts_in: int | None = None
        self._changed = threading.Condition()
        """Notified when the query continues with another run, and at the end of a restart."""
        self._is_failure_raised = False

    def triggerCheckpoint(self) -> CompletedCheckpoint:
        """Checkpoint the newest committed epoch now, whatever interval and pause are configured.

        It waits for a checkpoint that is in progress. A failure counts towards
        ``tolerable-failed-checkpoints``.

        Returns
        -------
        CompletedCheckpoint
            Durable: checkpoint_id, path, epoch, triggered_at_ms, duration_ms, size_bytes. If no
            epoch was committed after the newest checkpoint, that checkpoint.

        Raises
        ------
        CheckpointAbortedError
            If the checkpoint was aborted; its `reason` says why. Also if no epoch is committed yet,
            or the query has ended.
        OSError, CkptError
            If unneeded files could not be deleted for longer than checkpoints may fail. The query
            is stopped.

        Examples
        --------
        >>> query.triggerCheckpoint().epoch
        0
        """
        return self._asked(lambda coordinator: coordinator.trigger_checkpoint())

    def addCheckpointListener(self, listener: CheckpointListener) -> None:
        """Notify a listener of every checkpoint that ends from now on, on the driver.

        Parameters
        ----------
        listener : CheckpointListener
            Its methods are called in a separate thread.

        Examples
        --------
        >>> listener = ckpt.CheckpointListener()
        >>> query.addCheckpointListener(listener)
        """
        with self._changed:
            self._listeners.append(listener)
            self._coordinator.listeners.add(listener)

    def removeCheckpointListener(self, listener: CheckpointListener) -> None:
        """Stop notifying a listener; has no effect if it was never added.

        Parameters
        ----------
        listener : CheckpointListener
            As given to :meth:`addCheckpointListener`.

        Examples
        --------
        >>> listener = ckpt.CheckpointListener()
        >>> query.addCheckpointListener(listener)
        >>> query.removeCheckpointListener(listener)
        """
        with self._changed:
            with suppress(ValueError):
                self._listeners.remove(listener)
            self._coordinator.listeners.remove(listener)

    def triggerSavepoint(
        self, directory: str | None = None, format: str = SavepointFormat.CANONICAL.value
    ) -> Savepoint:
        """Take a savepoint of the newest committed epoch while the query runs.

        The executors copy the state, one subtask per task. A progress bar shows their progress if
        standard output is a terminal; otherwise the log shows it.

        Parameters
        ----------
        directory : str, optional
            The parent of the new ``savepoint-...`` directory; by default
            ``spark.ckpt.execution.checkpointing.savepoint-dir``.
        format : str
            ``CANONICAL``: all state of a subtask in one Parquet file, sorted by key group, for
            every backend and every reader. ``NATIVE``: copies of the files as they are, which is
            faster.

        Returns
        -------
        Savepoint
            Self-contained and durable. Pass its ``path`` to ``restoreFrom``.

        Raises
        ------
        ConfigurationError
            If no directory is given or configured, there is no such format, the library of the
            directory's storage is not installed, or the directory is in the memory of one process
            or cannot create files exclusively.
        NotBuiltYetError, UnsafePathError
            If there is no storage for the directory's scheme, or its path steps upwards.
        CheckpointAbortedError, CorruptFileError
            If the savepoint could not be made, no epoch is committed yet, or the query's session
            has ended; no file of it remains.
        OSError
            If the directory cannot be written.

        Examples
        --------
        >>> native = query.triggerSavepoint(f"{directory}/savepoints", format="NATIVE")
        >>> native.format
        'NATIVE'
        """
        self._coordinator.check_session()
        target = None if directory is None else usable_directory(self._spark, str(directory))
        kind = SavepointFormat.of(format)
        return self._asked(lambda coordinator: coordinator.trigger_savepoint(target, kind))

    def release(self, uid: str, keys: Iterable[Any] | None = None) -> str:
        """Release quarantined keys: an epoch gives their rows to the processor.

        The next epoch that begins does it, in this run or after a restart with the mended program.
        Spark begins an epoch when there is input. The processor gets the rows of a key in a call
        for each epoch that they came in, before the key's new rows. If it raises again, the key
        stays quarantined. A key that is not quarantined is passed over.

        Parameters
        ----------
        uid : str
            The operator, which was built with ``onError="quarantine"``.
        keys : iterable, optional
            Values of a single key column, or tuples of one value per key column; by default all
            quarantined keys of the operator.

        Returns
        -------
        str
            The id of the request, which is durable.

        Raises
        ------
        PlanError
            If there is no such operator, or `keys` is one text.
        StateValueError
            If a key does not fit the key columns, or the keys are too many for one release.

        Examples
        --------
        >>> try:
        ...     query.release("count", ["ada"])
        ... except ckpt.errors.PlanError as error:
        ...     print(str(error).partition("it has")[2])
         none
        """
        return self._asked(lambda coordinator: coordinator.release(uid, keys))

    def stopWithSavepoint(
        self,
        directory: str | None = None,
        drain: bool = False,  # noqa: FBT001, FBT002  # as Flink's clients
        format: str = SavepointFormat.CANONICAL.value,
    ) -> Savepoint:
        """Stop the query and take a savepoint of its last epoch.

        The epoch in progress is finished, and no other epoch starts. So the savepoint has exactly
        what reached the sink, and a query that starts from it continues where this query ended. If
        the query has ended already, its last epoch is saved.

        Parameters
        ----------
        directory : str, optional
            As for :meth:`triggerSavepoint`.
        drain : bool
            For a query that will not be continued. The watermark first moves to its end, so every
            event-time timer fires and its output reaches the sink. This does not expire any state,
            and the savepoint has the true watermark.
        format : str
            As for :meth:`triggerSavepoint`.

        Returns
        -------
        Savepoint
            Durable.

        Raises
        ------
        ConfigurationError
            If no directory is given or configured, there is no such format, the library of the
            directory's storage is not installed, or the directory is in the memory of one process
            or cannot create files exclusively; the query still runs. Also in the function of
            ``foreachBatch``, whose epoch the stop would wait for.
        NotBuiltYetError
            If `drain` is set for a query with Spark's own stateful operators, or there is no
            storage for the directory's scheme; the query still runs.
        UnsafePathError, OSError
            If the directory's path steps upwards or cannot be made; the query still runs.
        CheckpointAbortedError, CorruptFileError
            If the savepoint could not be made. The query is stopped, and continues from its
            ``checkpointLocation`` when it is started again.
        FencedError
            If the query was started again in the meantime; that query still runs.

        Examples
        --------
        >>> last = query.stopWithSavepoint(f"{directory}/savepoints")
        >>> query.isActive
        False
        """
        self._coordinator.check_session()
        target = None if directory is None else usable_directory(self._spark, str(directory))
        with self._turn.taken("stopWithSavepoint"):
            return self._coordinator.stops.with_savepoint(
                target, SavepointFormat.of(format), drain=drain
            )

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the query to end, then for its last checkpoint; as ``StreamingQuery``.

        Parameters
        ----------
        timeout : int, optional
            How many seconds to wait; by default without end.

        Returns
        -------
        bool or None
            Whether the query has ended; ``None`` without a timeout.

        Raises
        ------
        FailedCheckpointsError
            If the query was stopped because it could not be checkpointed, if its last checkpoint
            failed, or if it was stopped for a savepoint that was not made. It is a
            :class:`SessionEndedError` if ``spark.stop()`` came before ``query.stop()``, or the JVM
            has ended.
        StreamingQueryException
            If the query failed. It is also an error of this library, such as
            :class:`ProcessorError`, where such an error made the query fail.

        Examples
        --------
        >>> query.awaitTermination(1)
        False
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        left: float | None = timeout
        while True:
            query = self._query
            ended = self._await_run(query, left)
            if self._coordinator.session_error() is not None:
                ended = True
                break
            if ended is False or not self._has_another_run(query, left):
                break
            if deadline is not None and (left := deadline - time.monotonic()) <= 0:
                return False
        if timeout is None or ended:
            self._coordinator.join()
            self._raise_failure()
        return ended

    def _await_run(self, query: StreamingQuery, timeout: float | None) -> bool | None:
        with library_errors(self._coordinator.files):
            if self._coordinator.session_error() is not None:
                return True  # Spark's own query may never end
            try:
                return query.awaitTermination(timeout)  # type: ignore[arg-type]  # floats, too
            except Exception as exc:
                if self._coordinator.session_error() is not None:
                    return True
                if not isinstance(exc, StreamingQueryException):
                    return self._ended_before(exc)
                if self._has_another_run(query, None):
                    return True
                self._coordinator.join()  # it may have to delete the checkpoints
                raise

    def _ended_before(self, error: Exception) -> bool:
        """Return true if the query had ended before its session did, else raise the error."""
        ended = None if self._why_session_ended() is None else self._ended
        if ended is None:
            raise error
        if ended.error is not None:
            raise ended.error
        return True

    def processAllAvailable(self) -> None:
        """Wait until all available input was processed; as ``StreamingQuery``.

        With processing-time timers Spark runs epochs without end, and its own query never returns
        here. This one waits for the input that is there when it is called.

        Raises
        ------
        FailedCheckpointsError
            If the query was stopped because it could not be checkpointed, if its last checkpoint
            failed, or if it was stopped for a savepoint that was not made.
        StreamingQueryException
            If the query failed. It is also an error of this library, such as
            :class:`ProcessorError`, where such an error made the query fail.

        Examples
        --------
        >>> query.processAllAvailable()
        >>> results["ada"]
        2
        """
        while True:
            query = self._query
            if self._coordinator.session_error() is not None:
                break
            try:
                with library_errors(self._coordinator.files):
                    if self._runs_without_input:
                        await_input(query)
                    else:
                        query.processAllAvailable()
            except Exception as exc:
                if self._coordinator.session_error() is not None:
                    break
                if isinstance(exc, StreamingQueryException):
                    # Until the query has ended for all who ask.
                    self._coordinator.state.wait_until_told(self._coordinator.timeout_s)
                    raise
                self._ended_before(exc)
            if not self._has_another_run(query, None):
                break
        if self._coordinator.session_error() is not None or self._coordinator.failure is not None:
            self._coordinator.join()
        self._raise_failure()

    @property
    def _runs_without_input(self) -> bool:
        """Whether Spark runs epochs all the time: an operator has processing-time timers."""
        operators = self._coordinator.files.operators.descriptors
        return any(each.time_mode is TimeMode.PROCESSING_TIME for each in operators)

    def exception(self) -> Exception | None:  # type: ignore[override]  # one more kind
        """Return what ended the query; as ``StreamingQuery``, or a ``FailedCheckpointsError``.

        Returns
        -------
        Exception or None
            ``None`` while the query runs, and if it ended without an error.

        Examples
        --------
        >>> print(query.exception())
        None
        """
        ended = self._ended
        return None if ended is None else ended.error

    def stop(self) -> None:
        """Stop the query and wait for its last checkpoint.

        With ``externalized-checkpoint-retention`` other than ``RETAIN_ON_CANCELLATION`` its
        checkpoints are deleted instead; the query still continues from its ``checkpointLocation``.
        A step that hangs is given up after ``spark.ckpt.execution.checkpointing.timeout``.

        Raises
        ------
        FailedCheckpointsError
            As :meth:`awaitTermination`, unless it was raised before, or the query had ended with
            its session and every epoch has a checkpoint.

        Examples
        --------
        >>> query.stop()
        >>> query.isActive
        False
        """
        with self._turn.taken_unless_in_batch(), library_errors(self._coordinator.files):
            with self._changed:  # no restart in place starts this run again
                query, coordinator = self._query, self._coordinator
                coordinator.state.keep_stopped()
            if coordinator.why_session_ended() is None:
                query.stop()
        # Without the turn: a listener that the coordinator waits for may ask for it.
        coordinator.join()
        error = coordinator.session_error()
        has_all = error is not None and error.epoch is None
        if not self._is_failure_raised and not has_all:
            self._raise_failure()

    def _raise_failure(self) -> None:
        self._coordinator.session_error()  # the failure, if the session has ended
        if self._coordinator.failure is not None:
            self._is_failure_raised = True
            raise self._coordinator.failure

    def rescale(self, parallelism: int) -> InPlaceRestart:
        """Give the running query another number of subtasks.

        The query stops between two epochs, its state is divided anew, and it starts again at the
        same location and into the same sink. No row is lost or written twice. The first epoch after
        it has no input. This object stays the query: `id` and epoch numbers continue, and `runId`
        changes. Listeners stay, and a thread in :meth:`awaitTermination` continues to wait.

        The query has to be written as a function that builds it: see :func:`write_stream`.

        Parameters
        ----------
        parallelism : int
            The number of subtasks of each operator.

        Returns
        -------
        InPlaceRestart
            Has the pause. The history keeps it, too.

        Raises
        ------
        ConfigurationError
            If `parallelism` is not a positive number, the query was not given as a function, or its
            location is temporary; the query still runs. Also in the function of ``foreachBatch``,
            whose epoch the restart would wait for.
        CheckpointAbortedError
            If the query has ended, somebody else stops it, no epoch is committed yet, or a
            savepoint under way takes too long.
        PlanError, IncompatibleStateError, NotBuiltYetError
            If the state cannot move. The query runs as before.
        FencedError
            If another driver runs the query.

        Examples
        --------
        >>> def build():
        ...     return ckpt.key_by(events, "user").transformWithState(
        ...         Count(), "user string, n long", "Update", "None", uid="count"
        ...     )
        >>> query = (
        ...     ckpt.write_stream(build)
        ...     .outputMode("update")
        ...     .start(format="noop", checkpointLocation=f"{directory}/rescaled")
        ... )
        >>> query.processAllAvailable()
        >>> query.rescale(3).parallelism
        3
        >>> query.stop()
        """
        if type(parallelism) is not int or parallelism < 1:
            raise ConfigurationError(
                f"rescale({parallelism!r}): give the number of subtasks, such as rescale(4)"
            )
        return self._restart(None, parallelism, f"rescale({parallelism})")

    def restartWith(self, program: Program) -> InPlaceRestart:
        """Restart the running query in place with another program; as :meth:`rescale`.

        The program may change what a restore may change: see :meth:`Location.plan`. If it is
        refused, the query runs as before. If it fails in its first epoch, the query has failed;
        that epoch is not committed, so any program that fits can be started there.

        Parameters
        ----------
        program : DataFrame or callable
            The new query, or a function without arguments that builds and returns it. What a
            function builds has the parallelism that the query has now; a DataFrame may have another
            one.

        Returns
        -------
        InPlaceRestart
            Has the pause.

        Raises
        ------
        ConfigurationError
            If `program` is neither a streaming DataFrame nor a function that returns one, or the
            DataFrame that a function returns was built for another parallelism. The query runs as
            before. Else as :meth:`rescale`.
        CheckpointAbortedError, FencedError
            As :meth:`rescale`.
        PlanError, IncompatibleStateError, RestoreError, NotBuiltYetError
            If the program does not fit the state. The query runs as before.

        Examples
        --------
        >>> def mended():
        ...     return ckpt.key_by(events.where("user <> 'bob'"), "user").transformWithState(
        ...         Count(), "user string, n long", "Update", "None", uid="count"
        ...     )
        >>> query = (
        ...     ckpt.write_stream(counts)
        ...     .outputMode("update")
        ...     .start(format="noop", checkpointLocation=f"{directory}/mended")
        ... )
        >>> query.processAllAvailable()
        >>> before = query.runId
        >>> query.restartWith(mended).reason
        'restartWith'
        >>> query.runId == before
        False
        >>> query.stop()
        """
        check_program(program, "restartWith")
        return self._restart(program, None, "restartWith")

    def _restart(
        self,
        program: Program | None,
        parallelism: int | None,
        reason: str,
        restarter: Restarter | None = None,
    ) -> InPlaceRestart:
        with self._turn.taken(reason):
            restarter = restarter or self._restarter
            if restarter is None:
                raise ConfigurationError(
                    f"query {self.id} was attached, so its program is not in this process: stop it "
                    "and start it again from its checkpointLocation"
                )
            self._restarts_in = threading.get_ident()
            try:
                return restarter.restart(self, program, parallelism, reason)
            except Exception:
                self._coordinator.check_session()
                raise
            finally:
                with self._changed:
                    self._restarts_in = None
                    self._changed.notify_all()

    def _hand_on(self, coordinator: CheckpointCoordinator) -> None:
        """Give the coordinator of the next run what it has to know before it begins."""
        coordinator.requests.taken |= self._coordinator.requests.taken  # one may ask for this

    def _take_back(
        self, former: CheckpointCoordinator | None, store: CompletedCheckpointStore
    ) -> None:
        """Return the fence to the former run, if the next one claimed it and was given up."""
        if self._coordinator is former:
            with suppress(CkptError, OSError):  # another driver may have the query by now
                former.take_back(store)

    def _continue_with(
        self,
        query: StreamingQuery,
        coordinator: CheckpointCoordinator,
        restarter: Restarter | None,
    ) -> None:
        """Become another run of the query, which has begun; called while it is restarted."""
        coordinator.restarts = self._coordinator.restarts
        with self._changed:
            for listener in self._listeners:
                coordinator.listeners.add(listener)
            self._query, self._coordinator, self._restarter = query, coordinator, restarter
            self._changed.notify_all()

    def _states_after(self, ended: LiveStates | None) -> LiveStates:
        """Return the states of the run after another one, which a restart under way may begin.

        It does not wait for the end of the restart: that waits for the first epoch of the new run,
        and a sink may read states in an epoch.
        """

        def is_known() -> bool:
            me = threading.get_ident()  # which may build the next program
            return self._coordinator.live is not ended or self._restarts_in in (None, me)

        with self._changed:
            self._changed.wait_for(is_known)
            return self._coordinator.live

    def _asked(self, call: Callable[[CheckpointCoordinator], Answer]) -> Answer:
        """Ask the coordinator of the run, and that of the next one if the run ended for a restart.

        Waits for a restart that is under way, as long as a checkpoint may take.
        """
        while True:
            coordinator = self._current
            try:
                return call(coordinator)
            except CheckpointAbortedError as exc:
                if exc.reason not in _MISSED or self._current is coordinator:
                    raise

    @property
    def _current(self) -> CheckpointCoordinator:
        with self._turn.taken_unless_in_batch(self._coordinator.timeout_s):
            return self._coordinator

    def _has_another_run(self, query: StreamingQuery, timeout: float | None) -> bool:
        """Return whether the query was restarted in place after this run of it.

        Waits for a restart that is under way, and returns true if it takes too long.
        """
        if not self._turn.wait(timeout):
            return True
        try:
            return self._query is not query
        finally:
            self._turn.leave()

    @property
    def _jsq(self) -> Any:
        """The JVM's query of a classic session, for what PySpark's class may add."""
        return java_query(self._query)

    @property
    def id(self) -> str:
        """The query's id, which it keeps when it is started again; as ``StreamingQuery.id``."""
        return self._coordinator.files.query_id

    @property
    def runId(self) -> str:
        """The id of this run of the query; as ``StreamingQuery.runId``."""
        return self._coordinator.run_id

    def capture(self, epochs: int | Iterable[int], uid: str | None = None) -> Capture:
        """Have epochs of the running query captured, from the next one that begins.

        As :meth:`Location.capture`, but without another start. Over Spark Connect it takes
        effect at the next start.

        Parameters
        ----------
        epochs : int or iterable of int
            The numbers of the epochs. Those that have begun are not captured.
        uid : str, optional
            The operator; by default all operators of the query.

        Returns
        -------
        Capture
            Has :meth:`Capture.save`, which makes one file of the captures.

        Raises
        ------
        PlanError
            If an epoch is not a number of an epoch, or there is none.
        CorruptFileError
            If an earlier request is damaged.
        CheckpointAbortedError
            If the query is being restarted in place for longer than a checkpoint may take, or its
            session has ended.

        Examples
        --------
        >>> query.capture(range(100, 103), uid="count")
        Capture(epochs=[100, 101, 102])
        """
        with self._turn.taken_unless_in_batch(self._coordinator.timeout_s):
            self._coordinator.check_session()
            files = self._coordinator.files
            checkpoints = RetryingStorage(files.storage)
            capture = Capture(checkpoints, files.spark_log, epochs, uid)
            capture.request()
            orders = CaptureFiles(checkpoints).orders()
            change_conf(self._query, RUNTIME_KEY, partial(_capturing, orders))
            return capture

    @property
    def name(self) -> str:
        """The query's name, ``None`` if it has none; as ``StreamingQuery.name``."""
        return self._coordinator.files.query_name  # type: ignore[return-value]  # or `None`

    @property
    def isActive(self) -> bool:
        """Whether the query runs; as ``StreamingQuery.isActive``.

        Also until its last checkpoint is complete, while it is restarted in place, and until a stop
        with a savepoint has made it. A query ends with its session: after ``spark.stop()`` it does
        not run.
        """
        return self._ended is None

    @property
    def _is_between_runs(self) -> bool:
        """Whether a stop with a savepoint or a restart in place is under way."""
        return self._restarts_in is not None or self._coordinator.state.is_being_stopped

    @property
    def _ended(self) -> Ended | None:
        """How the query has ended, ``None`` while it runs, is stopped, or is restarted."""
        while True:
            coordinator, is_restarted = self._coordinator, self._restarts_in is not None
            ended = coordinator.state.ended
            if is_restarted and coordinator.session_error() is None:
                return None
            if self._coordinator is coordinator:  # else a restart has just ended
                return ended

    @property
    def status(self) -> dict[str, Any]:
        """What the query does now; as ``StreamingQuery.status``."""
        ended = self._ended
        if ended is None:
            return self._query.status
        # Spark's own query says that it waits for input if its session has ended.
        error = ended.error
        message = "Stopped" if error is None else f"Terminated with exception: {error}"
        return {"message": message, "isDataAvailable": False, "isTriggerActive": False}

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Spark's report of each of the last epochs; as ``StreamingQuery.recentProgress``."""
        return self._query.recentProgress

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Spark's report of the last epoch; as ``StreamingQuery.lastProgress``."""
        return self._query.lastProgress

    def explain(self, extended: bool = False) -> None:  # noqa: FBT001, FBT002  # PySpark's
        """Print the plan of the last epoch; as ``StreamingQuery.explain``.

        Parameters
        ----------
        extended : bool
            Whether to print the logical plans too.

        Examples
        --------
        >>> query.explain()
        == Physical Plan ==
        ...
        """
        self._query.explain(extended)

    @property
    def lastRestore(self) -> RestoredFrom | None:
        """What the query was restored from when its location was filled, or ``None``.

        Its ``needs_original`` says whether this query still needs the original.
        """
        return self._restore

    def checkpoints(self) -> DataFrame:
        """Return what this query can be restored from, and which attempts were aborted.

        Returns
        -------
        DataFrame
            A row for each retained checkpoint, and for each savepoint and each aborted attempt of
            this run: kind, status (``completed``, ``corrupt`` or ``aborted``), checkpoint_id,
            epoch, triggered_at, duration_ms, size_bytes, new_bytes (not in the retained checkpoint
            before it), files, phases_ms (of gathering: handles, sources, verification), requests
            (of the driver to the storage since the checkpoint before; empty on a disk, null if
            another driver took the checkpoint), path, reason.
            :meth:`Location.subtask_history` has each subtask's part.

        Raises
        ------
        OSError
            If the checkpoints cannot be listed.
        SessionEndedError
            If the session of the query has ended; :meth:`history` needs none.

        Examples
        --------
        >>> query.checkpoints().select("kind", "status").distinct().orderBy("kind").collect()
        [Row(kind='checkpoint', status='completed'), Row(kind='savepoint', status='completed')]
        """
        entries = self._coordinator.entries()
        why = self._why_session_ended()
        if why is not None:  # Spark would fail when the frame is read
            raise not_without_session(self.id, "checkpoints()", why)
        return as_spark_frame(self._spark, entries)

    @property
    def lastOperatorProgress(self) -> list[dict[str, Any]]:
        """What each operator of this library did in the newest committed epoch.

        A list like ``lastProgress``, with a dict per operator. ``None`` means unknown. Each dict
        has:

        * counts of the epoch: rows, keys touched, state reads, cache hits and writes, timers fired,
          entries expired, and local copies rebuilt;
        * the milliseconds to open the state, to process rows and to make the epoch durable;
        * the requests that its tasks sent to the storage, 0 on a disk;
        * the bytes of each subtask's state;
        * the number of keys and timers, and the entries and bytes of each state, exact or estimated
          (``isEstimated``);
        * the lag of the watermark, late rows, and the age of the last checkpoint at the epoch's
          end.

        The call reads Spark's state store, with a small Spark job if there are many subtasks.
        """
        return self._coordinator.progress.last()

    @property
    def recentOperatorProgress(self) -> list[dict[str, Any]]:
        """What each operator did in the last epochs of this run, oldest first; up to 100 epochs.

        As :attr:`lastOperatorProgress`, with a dict per epoch and operator. Each call reads the
        epochs since the call before. Call it at least every 100 epochs to miss none.
        """
        return self._coordinator.progress.recent()

    @property
    def metricsReporters(self) -> dict[str, str]:
        """Where each reporter of ``spark.ckpt.metrics.reporters`` can be found, by its name.

        For a reporter that could not be started, such as at a port in use, it says why.
        """
        return self._coordinator.metrics_reporters

    def ui(self, port: int = 0, host: str = LOOPBACK) -> Console:
        """Serve the console's pages about this query in a separate process.

        It needs the extra ``ui``, reads the query's directories and asks nothing of the query. The
        process has the lowest priority, and ends with the driver.

        Parameters
        ----------
        port : int
            The port; 0 takes any free one.
        host : str
            Where to listen; elsewhere than on loopback, the address has a token.

        Returns
        -------
        Console
            Has its `url`, and ``close()``.

        Raises
        ------
        ConfigurationError, OSError
            If the extra is not installed, or the port is in use.

        Examples
        --------
        >>> query.ui().close()
        """
        return open_console(self._coordinator.directory.url, host=host, port=port)

    def state(self, operator: str, name: str) -> LiveState:
        """Return one state of the running query, to read it at the newest committed epoch.

        Parameters
        ----------
        operator : str
            The operator's uid.
        name : str
            The name of the state.

        Returns
        -------
        LiveState
            Has ``get``, ``to_pandas`` and ``to_arrow``. The query is neither stopped nor waits. It
            continues with the query when that is restarted in place.

        Raises
        ------
        StateUseError
            If there is no such operator or state.

        Examples
        --------
        >>> query.state("count", "count").get("ada")
        {'n': 2}
        """
        return LiveState(self._states_after, operator, name)

    def history(self) -> History:
        """Return the checkpoints, savepoints and aborted attempts of this query for pandas.

        Returns
        -------
        History
            The rows of :meth:`checkpoints` as :meth:`Location.history` has them. Its ``plot()``
            draws the checkpoints, if the extra ``plot`` is installed.

        Raises
        ------
        OSError
            If the checkpoints cannot be listed.

        Examples
        --------
        >>> history = query.history()
        >>> history["status"].unique().tolist()
        ['completed']
        """
        return History(as_frame(self._coordinator.entries()))

    def watch(self, refresh_s: float = 2.0) -> None:
        """Show the query while it runs: its newest epochs, checkpoints and savepoints.

        A notebook draws the view in place; elsewhere it is printed. The call returns when the query
        ends, or when you interrupt it. The query then continues.

        Parameters
        ----------
        refresh_s : float
            Seconds between two drawings.

        Examples
        --------
        >>> query.stop()
        >>> query.watch()
        query ...: ended
        ...
        """
        name = self.name or self.id
        watch(self._view(), f"query {name}", lambda: self.isActive, refresh_s)

    def _repr_html_(self) -> str:
        return self._view().read().html(f"Query {self.name or self.id}")

    def _view(self) -> QueryView:
        return QueryView(self._facts, self._progress_since, self._entries)

    # Of the run that there is: the query may be restarted in place while it is watched.
    def _progress_since(self, epoch: int | None) -> list[dict[str, Any]]:
        try:
            return progress_since(self._query, epoch)
        except Exception:
            if self._why_session_ended() is None:
                raise
            return []  # the view still has the checkpoints

    def _why_session_ended(self) -> str | None:
        return self._coordinator.why_session_ended()

    def _entries(self) -> list[HistoryEntry]:
        return self._coordinator.entries()

    def _facts(self) -> dict[str, object]:
        restore = self._restore
        return {
            "id": self.id,
            "state": "running" if self.isActive else "ended",
            "directory": self._coordinator.directory.url,
            "restored from": None if restore is None else f"{restore.path}, epoch {restore.epoch}",
            "failure": self._coordinator.failure,
            **{f"metrics: {name}": at for name, at in self.metricsReporters.items()},
        }
