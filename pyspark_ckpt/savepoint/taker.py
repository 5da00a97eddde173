"""Takes a query's savepoints, while the query runs and after it was stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote
from pyspark.util import InheritableThread

from pyspark_ckpt.abort_reason import AbortReason, reason_of
from pyspark_ckpt.checkpoint.cleaning import CleaningHold
from pyspark_ckpt.checkpoint.contents import gather_epoch
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.time_limit import expired, in_time
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError
from pyspark_ckpt.formats.layout import DRAIN_MARKER
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.history.records import AbortedCheckpoint, Savepoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.savepoint.dispose import remove_interrupted
from pyspark_ckpt.savepoint.job import SavepointJob
from pyspark_ckpt.savepoint.savepoint import NewSavepoint
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.spark.jobs import SparkJobs, error_text

logger = library_logger(__name__)

_LONGEST_GRACE_MS = 30_000
"""Spark jobs are cancelled at the timeout, and may then end by themselves for so long."""


class SavepointTaker:
    """Takes the savepoints of one query; several threads may take one at once.

    `record_abort` is called with each savepoint that was aborted. `idle_ms` returns for how long
    the query has had nothing to do.
    """

    def __init__(
        self,
        spark: SparkSession,
        files: QueryFiles,
        settings: Settings,
        hold: CleaningHold,
        record_abort: Callable[[AbortedCheckpoint], None],
        history: HistoryLog,
        idle_ms: Callable[[], float],
    ) -> None:
        self._spark = spark
        self._idle_ms = idle_ms
        self._files = files
        self._directory = settings.savepoints_directory
        self._timeout_ms = settings.timeout_ms
        self._hold = hold
        self._record_abort = record_abort
        self._history = history
        self._taken: list[Savepoint] = []

    def taken(self) -> list[Savepoint]:
        """Return the savepoints taken so far."""
        return list(self._taken)

    def begin(self, directory: str | None) -> NewSavepoint:
        """Make the directory of a savepoint, before anything else is done for the savepoint.

        If `directory` is ``None``, the configured directory is used.
        """
        target = directory or self._directory
        if target is None:
            raise ConfigurationError(
                "a savepoint needs a directory: give one, or set "
                "spark.ckpt.execution.checkpointing.savepoint-dir"
            )
        return NewSavepoint(self._files.query_id, target, self._files.run)

    def remove_interrupted(self) -> None:
        """Remove the savepoints that earlier drivers of the query began and did not complete."""
        remove_interrupted(self._history, self._files.query_id, self._files.run)

    @contextmanager
    def _noted_as_begun(self, new: NewSavepoint, attempt: SavepointAttempt) -> Iterator[None]:
        """Note a savepoint in the history while it is written; remove it if that fails.

        What cannot be removed stays noted, so that the next driver finds it.
        """
        name = self._history.note_begun(new.path, attempt.triggered_at_ms, self._files.run)
        try:
            yield
        except BaseException:
            if new.discard():
                self._history.forget(name)
            raise
        self._history.forget(name)

    def take(
        self,
        directory: str | None,
        savepoint_format: SavepointFormat,
        *,
        is_noted: bool = True,
    ) -> Savepoint:
        """Take a savepoint of the newest committed epoch.

        ``CheckpointAbortedError`` is raised also if nothing is committed yet. The directory of a
        savepoint that could not be taken is removed. With `is_noted`, the history names the
        savepoint once it is complete.
        """
        attempt = self._new_attempt()

        def take() -> Savepoint:
            with attempt.holding():
                epoch = None
                try:
                    epoch = self._files.spark_log.committed_epoch()
                    if epoch is None:
                        raise nothing_committed(self._files.query_id)
                    new = self.begin(directory)
                except Exception as exc:
                    self._record_failure(attempt, epoch, exc)
                    raise
                return self._complete(attempt, new, epoch, savepoint_format, is_noted=is_noted)

        return self._run(attempt, take)

    def take_of_stopped(
        self,
        stop: Callable[[], None],
        directory: str | None,
        savepoint_format: SavepointFormat,
    ) -> Savepoint:
        """Stop the query and take a savepoint of its last epoch.

        `stop` stops the query and completes its epochs. It is not called if the directory of the
        savepoint cannot be made.
        """
        attempt = self._new_attempt()
        what = "making the savepoint's directory"
        new = in_time(what, self._timeout_ms, lambda: self.begin(directory))
        try:
            with self._noted_as_begun(new, attempt):
                stop()
                epoch = self._files.spark_log.committed_epoch()
                if epoch is None:
                    raise nothing_committed(self._files.query_id)
        except Exception as exc:
            self._record_failure(attempt, None, exc)
            raise

        def complete() -> Savepoint:
            return self._complete(attempt, new, epoch, savepoint_format)

        return self._run(attempt, complete)

    def _new_attempt(self) -> SavepointAttempt:
        what = f"savepoint of query {self._files.query_id}"
        return SavepointAttempt(what, self._hold, self._timeout_ms)

    def _run(self, attempt: SavepointAttempt, work: Callable[[], Savepoint]) -> Savepoint:
        try:
            return attempt.run(work)
        except Exception as exc:
            self._record_failure(attempt, None, exc)
            raise

    def _complete(
        self,
        attempt: SavepointAttempt,
        new: NewSavepoint,
        epoch: int,
        savepoint_format: SavepointFormat,
        *,
        is_noted: bool = True,
    ) -> Savepoint:
        """Write a savepoint into its directory; on failure the directory is removed.

        A savepoint that takes longer than a checkpoint may is aborted, and its Spark jobs are
        cancelled.
        """
        query_id = self._files.query_id
        what = f"savepoint of epoch {epoch}, query {query_id}"
        try:
            with self._noted_as_begun(new, attempt):
                savepoint = self._write(attempt, new, epoch, savepoint_format, what)
                if is_noted:
                    self._taken.append(savepoint)
                    self._history.note_savepoint(savepoint)
        except Exception as exc:
            self._record_failure(attempt, epoch, exc)
            raise
        logger.info("query %s: savepoint %s, epoch %s", query_id, savepoint.path, epoch)
        return savepoint

    def _write(
        self,
        attempt: SavepointAttempt,
        new: NewSavepoint,
        epoch: int,
        savepoint_format: SavepointFormat,
        what: str,
    ) -> Savepoint:
        jobs = attempt.jobs = SparkJobs(self._spark, what)
        attempt.check()
        with jobs.expiring(self._timeout_ms):
            with jobs.running():
                contents = gather_epoch(self._spark, self._files, epoch)
            location = self._files.spark_log.storage
            if location.exists(DRAIN_MARKER):
                raise CheckpointAbortedError(
                    f"{what}: the query is being drained, or its drain was interrupted, so its "
                    "watermark is not the true one: call stopWithSavepoint, which finishes the "
                    "drain, or start the query again"
                )
            return new.write(
                contents,
                self._files.storage,
                savepoint_format,
                SavepointJob(self._spark, what, jobs, self._idle_ms),
                attempt.check,
                triggered_at_ms=attempt.triggered_at_ms,
            )

    def _record_failure(
        self, attempt: SavepointAttempt, epoch: int | None, error: Exception
    ) -> None:
        """Record that a savepoint was aborted; once for each attempt."""
        if not attempt.is_first_record():
            return
        aborted = AbortedCheckpoint(
            kind=CheckpointKind.SAVEPOINT,
            checkpoint_id=None,
            epoch=epoch,
            triggered_at_ms=attempt.triggered_at_ms,
            duration_ms=now_ms() - attempt.triggered_at_ms,
            reason=reason_of(error),
            message=error_text(error),
        )
        self._record_abort(aborted)
        self._history.onCheckpointAborted(aborted)


def nothing_committed(query_id: str) -> CheckpointAbortedError:
    """Return the error of a query that has no epoch to save yet."""
    return CheckpointAbortedError(
        f"query {query_id} has no committed epoch yet: try again after its first one",
        AbortReason.NO_COMMITTED_EPOCH,
    )


class SavepointAttempt:
    """One attempt to take a savepoint; `triggered_at_ms` is when it was made."""

    def __init__(self, what: str, hold: CleaningHold, timeout_ms: int) -> None:
        self.triggered_at_ms = now_ms()
        self._what = what
        self._hold = hold
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._is_given_up = False
        self._is_recorded = False
        self._held = ExitStack()
        self.jobs: SparkJobs | None = None

    def run(self, work: Callable[[], Savepoint]) -> Savepoint:
        """Return what `work` returns; it has the local properties and tags of this thread.

        ``CheckpointAbortedError`` is raised if `work` hangs. `work` cannot be cancelled, but it
        publishes nothing if it continues later.
        """
        grace_ms = min(self._timeout_ms, _LONGEST_GRACE_MS)
        try:
            return in_time(self._what, self._timeout_ms + grace_ms, work, _thread_class())
        except BaseException:
            self._give_up()
            raise

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep the cleaner away until the context ends or the attempt is given up."""
        with ExitStack() as own:
            own.enter_context(self._hold.held())
            with self._lock:
                if not self._is_given_up:
                    self._held = own.pop_all()
            try:
                yield
            finally:
                self._let_go()

    def check(self) -> None:
        """Check that the savepoint may still be completed."""
        if self._is_given_up:
            raise expired(self._what, self._timeout_ms)

    def is_first_record(self) -> bool:
        """Return true at the first call, so that a failure is recorded once."""
        with self._lock:
            is_first, self._is_recorded = not self._is_recorded, True
            return is_first

    def _give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
        self._let_go()
        if self.jobs is not None:
            with suppress(Exception):  # an application that has ended runs no jobs
                self.jobs.cancel()

    def _let_go(self) -> None:
        with self._lock:
            held = self._held.pop_all()
        held.close()


def _thread_class() -> type[threading.Thread]:
    """Return a thread with the caller's Spark properties, which Spark Connect does not have."""
    return threading.Thread if is_remote() else InheritableThread
