"""Takes a query's savepoints, while it runs on and after it was stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pyspark_ckpt.abort_reason import AbortReason, reason_of
from pyspark_ckpt.checkpoint.cleaning import CleaningHold
from pyspark_ckpt.checkpoint.contents import gather_epoch
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.time_limit import in_time
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError
from pyspark_ckpt.formats.metadata import EpochContents
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.history.records import AbortedCheckpoint, Savepoint, SavepointFormat
from pyspark_ckpt.savepoint.attempt import SavepointAttempt
from pyspark_ckpt.savepoint.dispose import remove_interrupted
from pyspark_ckpt.savepoint.job import SavepointJob
from pyspark_ckpt.savepoint.savepoint import NewSavepoint
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.spark.jobs import SparkJobs, error_text

logger = logging.getLogger(__name__)


class SavepointTaker:
    """Takes the savepoints of one query; any number of threads at once may ask for one.

    Parameters
    ----------
    spark
        A session that reads Spark's state store as the query does.
    files
        The query's directories and operators.
    settings
        Where savepoints go by default, and how long one may take.
    hold
        Keeps the cleaner away from the files that are being copied.
    record_abort
        Is told of each that was given up.
    history
        The log of the query's checkpoints directory.
    idle_ms
        Tells for how long the query has had nothing to do.
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
        """Make the directory of a savepoint, before anything else is done for it.

        Raises
        ------
        ConfigurationError
            If there is no directory to put it in.
        OSError
            If the directory cannot be made.
        """
        target = directory or self._directory
        if target is None:
            raise ConfigurationError(
                "a savepoint needs a directory: give one, or set "
                "spark.ckpt.execution.checkpointing.savepoint-dir"
            )
        return NewSavepoint(self._files.query_id, target, self._files.run)

    def remove_interrupted(self) -> None:
        """Remove what earlier drivers of the query left of savepoints that they had begun."""
        remove_interrupted(self._history, self._files.query_id, self._files.run)

    @contextmanager
    def _noted_as_begun(self, new: NewSavepoint, triggered_at_ms: int) -> Iterator[None]:
        """Have the history tell of a savepoint, so that the next driver knows of it."""
        name = self._history.note_begun(new.path, triggered_at_ms, self._files.run)
        try:
            yield
        finally:
            self._history.forget(name)

    def take(self, directory: str | None, savepoint_format: SavepointFormat) -> Savepoint:
        """Take a savepoint of the newest committed epoch.

        Raises
        ------
        ConfigurationError
            If there is no directory to put it in.
        CheckpointAbortedError, CorruptFileError
            If it could not be made, or nothing is committed yet; its directory is removed.
        """
        triggered_at_ms = now_ms()
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
                    self._give_up(attempt, epoch, triggered_at_ms, exc)
                    raise
                return self._noted(attempt, new, epoch, triggered_at_ms, savepoint_format)

        return self._run(attempt, take, triggered_at_ms)

    def take_of_stopped(
        self,
        stop: Callable[[], None],
        directory: str | None,
        savepoint_format: SavepointFormat,
    ) -> Savepoint:
        """Stop the query and take a savepoint of its last epoch.

        Parameters
        ----------
        stop
            Stops the query and finishes its epochs; not called if there is no place for a
            savepoint.
        directory, savepoint_format
            As for :meth:`take`.
        """
        triggered_at_ms = now_ms()
        attempt = self._new_attempt()
        what = "making the savepoint's directory"
        new = in_time(what, self._timeout_ms, lambda: self.begin(directory))
        try:
            with self._noted_as_begun(new, triggered_at_ms):
                stop()
            epoch = self._files.spark_log.committed_epoch()
            if epoch is None:
                raise nothing_committed(self._files.query_id)
        except BaseException as exc:
            new.discard()
            if isinstance(exc, Exception):
                self._give_up(attempt, None, triggered_at_ms, exc)
            raise

        def complete() -> Savepoint:
            return self._noted(attempt, new, epoch, triggered_at_ms, savepoint_format)

        return self._run(attempt, complete, triggered_at_ms)

    def _new_attempt(self) -> SavepointAttempt:
        what = f"savepoint of query {self._files.query_id}"
        return SavepointAttempt(what, self._hold, self._timeout_ms)

    def _run(
        self, attempt: SavepointAttempt, work: Callable[[], Savepoint], triggered_at_ms: int
    ) -> Savepoint:
        try:
            return attempt.run(work)
        except Exception as exc:
            self._give_up(attempt, None, triggered_at_ms, exc)
            raise

    def _noted(
        self,
        attempt: SavepointAttempt,
        new: NewSavepoint,
        epoch: int,
        triggered_at_ms: int,
        savepoint_format: SavepointFormat,
    ) -> Savepoint:
        """Fill a savepoint that was begun; on failure its directory is removed.

        One that takes longer than a checkpoint may is given up, and its Spark jobs are cancelled.
        """
        with self._noted_as_begun(new, triggered_at_ms):
            return self._complete(attempt, new, epoch, triggered_at_ms, savepoint_format)

    def _complete(
        self,
        attempt: SavepointAttempt,
        new: NewSavepoint,
        epoch: int,
        triggered_at_ms: int,
        savepoint_format: SavepointFormat,
    ) -> Savepoint:
        query_id = self._files.query_id
        what = f"savepoint of epoch {epoch}, query {query_id}"
        jobs = attempt.jobs = SparkJobs(self._spark.sparkContext, what)
        try:
            attempt.check()
            with jobs.expiring(self._timeout_ms):
                contents = self._gather(epoch, jobs)
                job = SavepointJob(self._spark, what, jobs, self._idle_ms)
                savepoint = new.write(
                    contents,
                    self._files.storage,
                    savepoint_format,
                    job,
                    attempt.check,
                    triggered_at_ms=triggered_at_ms,
                )
        except BaseException as exc:
            new.discard()
            if isinstance(exc, Exception):
                self._give_up(attempt, epoch, triggered_at_ms, exc)
            raise
        self._taken.append(savepoint)
        self._history.note_savepoint(savepoint)
        logger.info("query %s: savepoint %s, epoch %s", query_id, savepoint.path, epoch)
        return savepoint

    def _gather(self, epoch: int, jobs: SparkJobs) -> EpochContents:
        with jobs.running():
            return gather_epoch(self._spark, self._files, epoch)

    def _give_up(
        self, attempt: SavepointAttempt, epoch: int | None, triggered_at_ms: int, error: Exception
    ) -> None:
        if not attempt.is_first_record():
            return
        aborted = AbortedCheckpoint(
            kind="savepoint",
            checkpoint_id=None,
            epoch=epoch,
            triggered_at_ms=triggered_at_ms,
            duration_ms=now_ms() - triggered_at_ms,
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
