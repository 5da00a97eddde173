"""The running query: a ``StreamingQuery`` with checkpoints and savepoints."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.formats.modes import SavepointFormat, TimeMode
from pyspark_ckpt.formats.origin import Restore
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import CompletedCheckpoint, Savepoint
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.failure import library_error, library_errors
from pyspark_ckpt.query.restartable import RestartableQuery, Restarter
from pyspark_ckpt.query.session_errors import says_that_session_ended
from pyspark_ckpt.spark.paths import usable_directory
from pyspark_ckpt.spark.query import await_input


@says_that_session_ended
class CheckpointedQuery(RestartableQuery):
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
    restore : Restore, optional
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
        restore: Restore | None = None,
        restarter: Restarter | None = None,
    ) -> None:
        super().__init__(spark, query, coordinator, restore, restarter)
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
            Its methods are called in a thread of their own.

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
        """Release parked keys: an epoch gives their rows to the processor.

        The next epoch that begins does it, in this run or after a restart with the mended program.
        Spark begins an epoch when there is input. The processor gets the rows of a key in a call
        for each epoch that they came in, before the key's new rows. If it raises again, the key
        stays parked. A key that is not parked is passed over.

        Parameters
        ----------
        uid : str
            The operator, which was built with ``onError="quarantine"``.
        keys : iterable, optional
            Values of a single key column, or tuples of one value per key column; by default all
            parked keys of the operator.

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
        NotBuiltYetError
            If `keys` is given and only Spark can hash the key columns.

        Examples
        --------
        >>> try:
        ...     query.release("count", ["ada"])
        ... except ckpt.PlanError as error:
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
            If the query was started again meanwhile; that query still runs.

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
        coordinator = self._coordinator
        if coordinator.why_session_ended() is None or not coordinator.has_ended:
            raise error
        if coordinator.outcome is not None:
            raise coordinator.outcome
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
                    raise
                self._ended_before(exc)
            if not self._has_another_run(query, None):
                break
        if self._coordinator.session_error() is not None:
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
        coordinator = self._coordinator
        if coordinator.session_error() is not None or coordinator.failure is not None:
            return coordinator.failure
        try:
            return library_error(self._query.exception(), coordinator.files)
        except Exception:
            if coordinator.why_session_ended() is None or not coordinator.has_ended:
                raise
            return coordinator.outcome

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
            query, coordinator = self._to_be_stopped()
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
