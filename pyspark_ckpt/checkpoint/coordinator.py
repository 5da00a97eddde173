"""The coordinator: takes a query's checkpoints and savepoints while the query runs on.

One thread per query on the driver, which says when; the runner takes the checkpoints. Each is made
of an epoch that Spark has committed, after the fact; one that fails is given up with its reason
and leaves those before it as they are.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.checkpoint.abort_reason import AbortReason, reason_of
from pyspark_ckpt.checkpoint.acknowledgement import Subtask
from pyspark_ckpt.checkpoint.checkpoint_machine import Refusal
from pyspark_ckpt.checkpoint.checkpoint_runner import CheckpointRunner
from pyspark_ckpt.checkpoint.committed_handles import committed_handles
from pyspark_ckpt.checkpoint.operator_progress import operator_progress
from pyspark_ckpt.checkpoint.outcome import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.checkpoint.savepoint import Savepoint, write_savepoint
from pyspark_ckpt.checkpoint.snapshot import QueryFiles, take_snapshot
from pyspark_ckpt.configuration import DELETE_ON_CANCELLATION, RETAIN_ON_CANCELLATION, Settings
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    ConfigurationError,
    FailedCheckpointsError,
    FencedError,
)
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata

_STATE_STORE_SETTINGS = "spark.sql.streaming.stateStore."

logger = logging.getLogger(__name__)


class CheckpointCoordinator:
    """Checkpoints one running query.

    Parameters
    ----------
    spark
        The session that the query was started from.
    streaming_query
        The running query.
    files
        Its directories and operators.
    settings
        Interval, timeout, retention and savepoints directory.

    `listeners` are called on the driver. `failure` is why the coordinator stopped the query.

    Raises
    ------
    OSError
        If the checkpoints directory cannot be read.
    """

    def __init__(
        self,
        spark: SparkSession,
        streaming_query: StreamingQuery,
        files: QueryFiles,
        settings: Settings,
    ) -> None:
        self.failure: FailedCheckpointsError | None = None
        self._spark = _session_like(spark)
        self._query = streaming_query
        self._files = files
        self._settings = settings
        self._savepoints: list[Savepoint] = []
        self._runner = CheckpointRunner(
            files.query_id,
            frozenset(
                Subtask(operator.uid, number)
                for operator in files.operators
                for number in range(operator.parallelism)
            ),
            files.storage,
            settings,
            self._snapshot,
        )
        self.listeners = self._runner.listeners
        self._thread = threading.Thread(
            target=self._run, name=f"pyspark_ckpt coordinator {files.query_id}", daemon=True
        )

    def start(self) -> None:
        """Begin to checkpoint at the interval, until the query ends."""
        self._thread.start()

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the last checkpoint of a query that has ended; not in a listener's call."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_seconds)

    def retained(self) -> list[tuple[int, CheckpointMetadata | CkptError]]:
        """Return the retained checkpoints with their ids, oldest first.

        In the place of one that cannot be read stands the reason.
        """
        return self._runner.retained()

    def savepoints(self) -> list[Savepoint]:
        """Return the savepoints taken since the query was started."""
        return list(self._savepoints)

    def aborted(self) -> list[AbortedCheckpoint]:
        """Return what was given up since the query was started."""
        return self._runner.aborted()

    def path(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint."""
        return self._runner.path(checkpoint_id)

    def operator_progress(self) -> list[dict[str, Any]]:
        """Return what each operator did in the newest committed epoch; runs a small Spark job."""
        epoch = self._files.spark_log.committed_epoch()
        if epoch is None:
            return []
        files = self._files
        return [
            operator_progress(
                operator.uid,
                epoch,
                files.backend_type,
                committed_handles(
                    self._spark, files.checkpoint_location, epoch, files.query_id, operator, number
                ),
            )
            for number, operator in enumerate(files.operators)
        ]

    def trigger_checkpoint(self) -> CompletedCheckpoint:
        """Checkpoint the newest committed epoch and clean up behind it.

        Returns
        -------
        CompletedCheckpoint
            The newest one there is, if no epoch was committed since.

        Raises
        ------
        CheckpointAbortedError
            If there is none; its `reason` says why.
        """
        taken = self._take(periodic=False)
        if taken is Refusal.NO_NEW_EPOCH and (newest := self._runner.newest()) is not None:
            return newest
        if isinstance(taken, CompletedCheckpoint):
            return taken
        if taken is Refusal.QUERY_ENDED:
            raise CheckpointAbortedError(
                f"query {self._files.query_id} has ended: start it again to checkpoint it",
                AbortReason.QUERY_ENDED,
            )
        raise self._nothing_committed()

    def trigger_savepoint(self, directory: str | None) -> Savepoint:
        """Take a savepoint of the newest committed epoch.

        Raises
        ------
        ConfigurationError
            If there is no directory to put it in.
        CheckpointAbortedError
            If nothing is committed yet.
        """
        target = directory or self._settings.savepoints_directory
        if target is None:
            raise ConfigurationError(
                "triggerSavepoint needs a directory: give one, or set "
                "spark.ckpt.execution.checkpointing.savepoint-dir"
            )
        with self._runner.exclusive:
            triggered_at_ms = _now_ms()
            epoch = self._files.spark_log.committed_epoch()
            try:
                if epoch is None:
                    raise self._nothing_committed()
                snapshot = msgspec.structs.replace(
                    self._snapshot(epoch), triggered_at_ms=triggered_at_ms
                )
                savepoint = write_savepoint(snapshot, self._files.storage, target)
            except Exception as exc:
                self._record_savepoint_abort(epoch, triggered_at_ms, exc)
                raise
            self._savepoints.append(savepoint)
        logger.info("query %s: savepoint %s, epoch %s", self._files.query_id, savepoint.path, epoch)
        return savepoint

    def _run(self) -> None:
        has_failed = False
        try:
            while not self._query.awaitTermination(self._wait_seconds()):
                self._take_quietly(periodic=True)
        except StreamingQueryException:
            has_failed = True  # the user hears of it from the query itself
        self._end(has_failed=has_failed or self.failure is not None)

    def _wait_seconds(self) -> Any:  # PySpark takes floats too
        return max(self._runner.due_in_ms(), 1) / 1000

    def _end(self, *, has_failed: bool) -> None:
        """Take the last checkpoint, or drop all, as the settings say."""
        retention = self._settings.retention
        retains = retention == RETAIN_ON_CANCELLATION or (
            retention == DELETE_ON_CANCELLATION and has_failed
        )
        if retains and not has_failed:
            self._take_quietly(periodic=False)
        self._runner.close()
        if not retains:
            self._discard()

    def _discard(self) -> None:
        try:
            self._runner.discard_all()
        except (OSError, FencedError) as exc:
            logger.warning("query %s: its checkpoints stay: %s", self._files.query_id, exc)

    def _take(self, *, periodic: bool) -> CompletedCheckpoint | Refusal:
        try:
            return self._runner.take(self._files.spark_log.committed_epoch, periodic=periodic)
        except CheckpointAbortedError as exc:
            self._stop_if_intolerable(exc)
            raise

    def _take_quietly(self, *, periodic: bool) -> None:
        try:
            self._take(periodic=periodic)
        except Exception as exc:
            logger.warning("query %s: checkpoint given up: %s", self._files.query_id, exc)
            logger.debug("where it happened", exc_info=True)

    def _stop_if_intolerable(self, last: CheckpointAbortedError) -> None:
        if last.reason == AbortReason.FENCED and self._query.isActive:
            # Whatever it writes from now on, another driver writes too.
            self.failure = FailedCheckpointsError(
                f"query {self._files.query_id} was stopped: another driver runs it ({last})"
            )
            self.failure.__cause__ = last
            logger.error("%s", self.failure)
            self._query.stop()
            return
        if not self._runner.tolerance_is_exceeded or not self._query.isActive:
            return
        tolerable = self._settings.tolerable_failed_checkpoints
        self.failure = FailedCheckpointsError(
            f"query {self._files.query_id} was stopped: more than {tolerable} checkpoints in a row "
            f"failed, the last one is {last}; mend that and start the query again at its "
            "checkpointLocation, or raise "
            "spark.ckpt.execution.checkpointing.tolerable-failed-checkpoints"
        )
        self.failure.__cause__ = last
        logger.error("%s", self.failure)
        self._query.stop()

    def _snapshot(self, epoch: int) -> CheckpointMetadata:
        self._spark.sparkContext.setJobDescription(f"pyspark_ckpt: handles of epoch {epoch}")
        return take_snapshot(self._spark, self._files, epoch)

    def _nothing_committed(self) -> CheckpointAbortedError:
        return CheckpointAbortedError(
            f"query {self._files.query_id} has no committed epoch yet: try again after its first "
            "one",
            AbortReason.NO_COMMITTED_EPOCH,
        )

    def _record_savepoint_abort(
        self, epoch: int | None, triggered_at_ms: int, error: Exception
    ) -> None:
        self._runner.record_abort(
            AbortedCheckpoint(
                kind="savepoint",
                checkpoint_id=None,
                epoch=epoch,
                triggered_at_ms=triggered_at_ms,
                duration_ms=_now_ms() - triggered_at_ms,
                reason=reason_of(error),
                message=f"{type(error).__name__}: {error}",
            )
        )


def _session_like(spark: SparkSession) -> SparkSession:
    """Return a session of the coordinator's own that reads Spark's state store as the query does.

    The user's session may be given other settings while the query runs.
    """
    session = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if key.startswith(_STATE_STORE_SETTINGS):
            session.conf.set(key, value)
    return session


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
