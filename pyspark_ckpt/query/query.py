"""The running query: a ``StreamingQuery`` with checkpoints and savepoints."""

from __future__ import annotations

from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.formats.origin import Restore
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import CompletedCheckpoint, Savepoint, SavepointFormat
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.entries_frame import as_spark_frame
from pyspark_ckpt.query.failure import library_error, library_errors
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.query import java_query


class CheckpointedQuery(StreamingQuery):
    """A query started by :func:`pyspark_ckpt.write_stream`.

    Everything that ``StreamingQuery`` has, and :meth:`checkpoints`, :meth:`triggerCheckpoint`,
    :meth:`triggerSavepoint`, :meth:`stopWithSavepoint`, :meth:`addCheckpointListener` and
    :attr:`lastRestore`.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        coordinator: CheckpointCoordinator,
        restore: Restore | None = None,
    ) -> None:
        super().__init__(java_query(query))
        self._spark = spark
        self._restore = restore
        self._coordinator = coordinator
        self._is_failure_raised = False

    @property
    def lastRestore(self) -> Restore | None:
        """What the query was restored from when its location was filled, ``None`` if it was not.

        Its ``needs_original`` tells whether that may be deleted as far as this query goes.
        """
        return self._restore

    def checkpoints(self) -> DataFrame:
        """Return what this query can be restored from, and what was given up.

        Returns
        -------
        DataFrame
            A row for each retained checkpoint, and for each savepoint and each aborted attempt
            since the query was started: kind, status (``completed``, ``corrupt`` or
            ``aborted``), checkpoint_id, epoch, triggered_at, duration_ms, size_bytes, new_bytes
            (not in the retained checkpoint before it), files, phases_ms (of gathering: handles,
            sources, verification), path, reason. :func:`pyspark_ckpt.subtask_history` has each
            subtask's part.
        """
        return as_spark_frame(self._spark, self._coordinator.entries())

    @property
    def lastOperatorProgress(self) -> list[dict[str, Any]]:
        """What each operator of this library did in the newest committed epoch.

        Beside ``lastProgress``, in its style: rows, keys touched, state reads, cache hits and
        writes, timers fired, entries expired, local copies rebuilt, milliseconds to open the
        state, to process and to make the epoch durable, and the size of each subtask's state; keys,
        timers, and entries and bytes of each state, exact or estimated (``isEstimated``); lag of
        the watermark, late rows, and the age of the last checkpoint at the epoch's end. ``None`` is
        what is not known.
        Reads Spark's state store, with a small Spark job if the subtasks are many.
        """
        return self._coordinator.progress.last()

    @property
    def recentOperatorProgress(self) -> list[dict[str, Any]]:
        """What each operator did in the last epochs of this run, oldest first; up to 100 epochs.

        As :attr:`lastOperatorProgress`, an entry per epoch and operator. Epochs are read when they
        are asked for, and not again: who asks every 100 epochs misses none.
        """
        return self._coordinator.progress.recent()

    def triggerCheckpoint(self) -> CompletedCheckpoint:
        """Checkpoint the newest committed epoch now, whatever interval and pause.

        Waits for a checkpoint that is under way. A failure counts towards
        ``tolerable-failed-checkpoints``.

        Returns
        -------
        CompletedCheckpoint
            Durable: checkpoint_id, path, epoch, triggered_at_ms, duration_ms, size_bytes. If no
            epoch was committed since the newest one, that one.

        Raises
        ------
        CheckpointAbortedError
            If it was given up; its `reason` says why.
        """
        return self._coordinator.trigger_checkpoint()

    def addCheckpointListener(self, listener: CheckpointListener) -> None:
        """Have a listener hear of every checkpoint that ends from now on, on the driver."""
        self._coordinator.listeners.add(listener)

    def removeCheckpointListener(self, listener: CheckpointListener) -> None:
        """Have a listener hear of nothing more."""
        self._coordinator.listeners.remove(listener)

    def triggerSavepoint(
        self, directory: str | None = None, format: str = SavepointFormat.CANONICAL.value
    ) -> Savepoint:
        """Take a savepoint of the newest committed epoch while the query runs on.

        The executors copy the state, one subtask per task; a progress bar tells how far they are
        if standard output is a terminal, else the log.

        Parameters
        ----------
        directory
            Where the new ``savepoint-...`` directory goes; by default
            ``spark.ckpt.execution.checkpointing.savepoint-dir``.
        format
            ``CANONICAL``: all state of a subtask in one Parquet file, sorted by key group, for
            every backend and every reader; ``NATIVE``: the files as they are, which is faster.

        Returns
        -------
        Savepoint
            Self-contained and durable; its ``path`` is what ``restoreFrom`` takes.

        Raises
        ------
        ConfigurationError
            If no directory is given or configured.
        CheckpointAbortedError, CorruptFileError
            If it could not be made; nothing of it is left behind.
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

        The epoch that is under way is finished, no other is begun, so the savepoint has exactly
        what has reached the sink: a query that starts from it goes on where this one ended. Of a
        query that has ended already, the last epoch is saved.

        Parameters
        ----------
        directory, format
            As for :meth:`triggerSavepoint`.
        drain
            For a query that is over for good: the watermark is taken to its end first, so that
            every event-time timer fires and its output reaches the sink. No state expires of
            that, and the watermark of the savepoint is the true one.

        Returns
        -------
        Savepoint
            Durable.

        Raises
        ------
        ConfigurationError
            If no directory is given or configured; the query runs on.
        CheckpointAbortedError, CorruptFileError
            If it could not be made; the query is stopped, and goes on from its
            ``checkpointLocation`` when it is started again.
        FencedError
            If it was started again meanwhile; that query runs on.
        """
        target = None if directory is None else qualified_path(self._spark, str(directory))
        return self._coordinator.stop_with_savepoint(
            target, SavepointFormat.of(format), drain=drain
        )

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the query to end, then for its last checkpoint; as ``StreamingQuery``.

        Raises
        ------
        FailedCheckpointsError
            If the query was stopped because it could not be checkpointed, if its last checkpoint
            failed, or if it was stopped for a savepoint that was not made.
        StreamingQueryException
            If the query failed. It is also an error of this library, such as
            :class:`ProcessorError`, where one made the query fail.
        """
        with library_errors():
            try:
                ended = super().awaitTermination(timeout)
            except StreamingQueryException:
                self._coordinator.join()  # its checkpoints may have to go
                raise
        if timeout is None or ended:
            self._coordinator.join()
            self._raise_failure()
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all input that is there was processed; as ``StreamingQuery``.

        Raises
        ------
        FailedCheckpointsError, StreamingQueryException
            As :meth:`awaitTermination`.
        """
        with library_errors():
            super().processAllAvailable()
        self._raise_failure()

    def exception(self) -> Exception | None:  # type: ignore[override]  # one more kind
        """Return what ended the query; as ``StreamingQuery``, or a ``FailedCheckpointsError``."""
        return self._coordinator.failure or library_error(super().exception())

    def stop(self) -> None:
        """Stop the query and wait for its last checkpoint.

        With ``externalized-checkpoint-retention`` other than ``RETAIN_ON_CANCELLATION`` its
        checkpoints are deleted instead; the query continues from its ``checkpointLocation`` all the
        same. The wait ends after ``spark.ckpt.execution.checkpointing.timeout`` for each step that
        hangs.

        Raises
        ------
        FailedCheckpointsError
            As :meth:`awaitTermination`, unless it has been raised before.
        """
        with library_errors():
            super().stop()
        self._coordinator.join()
        if not self._is_failure_raised:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._coordinator.failure is not None:
            self._is_failure_raised = True
            raise self._coordinator.failure
