"""The running query: a ``StreamingQuery`` with checkpoints and savepoints."""

from __future__ import annotations

from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.formats.origin import Restore
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import CompletedCheckpoint, Savepoint
from pyspark_ckpt.live.states import LiveState
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.entries_frame import as_spark_frame
from pyspark_ckpt.query.failure import library_error, library_errors
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.query import java_query


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
    restore : Restore, optional
        What the query was restored from.

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
    ) -> None:
        # Without `super().__init__`: it is for classic sessions, and this class passes calls on.
        self._query = query
        self._spark = spark
        self._restore = restore
        self._coordinator = coordinator
        self._is_failure_raised = False

    @property
    def _jsq(self) -> Any:
        """The JVM's query of a classic session, for what PySpark's class may add."""
        return java_query(self._query)

    @property
    def id(self) -> str:
        """The query's id, which it keeps when it is started again; as ``StreamingQuery.id``."""
        return self._query.id

    @property
    def runId(self) -> str:
        """The id of this run of the query; as ``StreamingQuery.runId``."""
        return self._query.runId

    @property
    def name(self) -> str:
        """The query's name, ``None`` if it has none; as ``StreamingQuery.name``."""
        return self._query.name

    @property
    def isActive(self) -> bool:
        """Whether the query runs; as ``StreamingQuery.isActive``."""
        return self._query.isActive

    @property
    def status(self) -> dict[str, Any]:
        """What the query does now; as ``StreamingQuery.status``."""
        return self._query.status

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
    def lastRestore(self) -> Restore | None:
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
            :func:`pyspark_ckpt.subtask_history` has each subtask's part.

        Raises
        ------
        OSError
            If the checkpoints cannot be listed.

        Examples
        --------
        >>> query.checkpoints().select("kind", "status").distinct().orderBy("kind").collect()
        [Row(kind='checkpoint', status='completed'), Row(kind='savepoint', status='completed')]
        """
        return as_spark_frame(self._spark, self._coordinator.entries())

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
            Has ``get``, ``to_pandas`` and ``to_arrow``. The query is neither stopped nor waits.

        Raises
        ------
        StateUseError
            If there is no such operator or state.

        Examples
        --------
        >>> query.state("count", "count").get("ada").value
        {'n': 2}
        """
        return self._coordinator.live.state(operator, name)

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
        return self._coordinator.trigger_checkpoint()

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
            If no directory is given or configured, there is no such format, or the library of the
            directory's storage is not installed.
        NotBuiltYetError, UnsafePathError
            If there is no storage for the directory's scheme, or its path steps upwards.
        CheckpointAbortedError, CorruptFileError
            If the savepoint could not be made, or no epoch is committed yet; no file of it remains.
        OSError
            If the directory cannot be written.

        Examples
        --------
        >>> native = query.triggerSavepoint(f"{directory}/savepoints", format="NATIVE")
        >>> native.format
        'NATIVE'
        """
        target = None if directory is None else qualified_path(self._spark, str(directory))
        return self._coordinator.trigger_savepoint(target, SavepointFormat.of(format))

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
            If no directory is given or configured, there is no such format, or the library of the
            directory's storage is not installed; the query still runs.
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
        target = None if directory is None else qualified_path(self._spark, str(directory))
        return self._coordinator.stop_with_savepoint(
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
            failed, or if it was stopped for a savepoint that was not made.
        StreamingQueryException
            If the query failed. It is also an error of this library, such as
            :class:`ProcessorError`, where such an error made the query fail.

        Examples
        --------
        >>> query.awaitTermination(1)
        False
        """
        with library_errors():
            try:
                ended = self._query.awaitTermination(timeout)
            except StreamingQueryException:
                self._coordinator.join()  # it may have to delete the checkpoints
                raise
        if timeout is None or ended:
            self._coordinator.join()
            self._raise_failure()
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all available input was processed; as ``StreamingQuery``.

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
        with library_errors():
            self._query.processAllAvailable()
        self._raise_failure()

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
        return self._coordinator.failure or library_error(self._query.exception())

    def stop(self) -> None:
        """Stop the query and wait for its last checkpoint.

        With ``externalized-checkpoint-retention`` other than ``RETAIN_ON_CANCELLATION`` its
        checkpoints are deleted instead; the query still continues from its ``checkpointLocation``.
        A step that hangs is given up after ``spark.ckpt.execution.checkpointing.timeout``.

        Raises
        ------
        FailedCheckpointsError
            As :meth:`awaitTermination`, unless it was raised before.

        Examples
        --------
        >>> query.stop()
        >>> query.isActive
        False
        """
        with library_errors():
            self._query.stop()
        self._coordinator.join()
        if not self._is_failure_raised:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._coordinator.failure is not None:
            self._is_failure_raised = True
            raise self._coordinator.failure
