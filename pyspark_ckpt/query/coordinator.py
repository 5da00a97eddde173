"""The coordinator: takes a query's checkpoints and savepoints while the query runs.

It is one thread per query on the driver. It decides when a checkpoint is taken; the runner takes
it. A checkpoint is made of an epoch that Spark has committed. A checkpoint that fails is aborted
with a reason, and the older checkpoints stay as they are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.contents import Gathering
from pyspark_ckpt.checkpoint.epoch_race import EpochRace
from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.checkpoint.machine import Refusal, Subtask
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.checkpoint.time_limit import in_time
from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    FailedCheckpointsError,
    FencedError,
    NotBuiltYetError,
)
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.log import (
    HistoryEntry,
    HistoryLog,
    aborted_entry,
    checkpoint_entries,
    savepoint_entry,
)
from pyspark_ckpt.history.records import CompletedCheckpoint, Savepoint
from pyspark_ckpt.live.states import LiveStates
from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.query.drain import LastEpochs
from pyspark_ckpt.query.housekeeping import Housekeeping
from pyspark_ckpt.query.recent_progress import RecentProgress
from pyspark_ckpt.query.requests import (
    POLL_MS,
    REMOTE_POLL_MS,
    Actions,
    RequestHandler,
    WorkUnderWay,
)
from pyspark_ckpt.query.stopping_failure import (
    checkpoints_stay,
    ended_without_epoch,
    last_checkpoint_failed,
    spark_ended,
    stop_failed,
)
from pyspark_ckpt.query.watched_query import WatchedQuery
from pyspark_ckpt.savepoint.taker import SavepointTaker, nothing_committed
from pyspark_ckpt.settings import Retention, Settings
from pyspark_ckpt.spark.query import idle_ms, stop_between_epochs
from pyspark_ckpt.spark.session import has_ended, reading_session
from pyspark_ckpt.storage.retrying import RetryingStorage

logger = logging.getLogger(__name__)


class CheckpointCoordinator:
    """Checkpoints one running query.

    `listeners` are called on the driver. `progress` has the operators' progress. `live` reads the
    states at the newest committed epoch.

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
    last_epochs
        Runs the epochs that a stopped query still needs.

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
        last_epochs: LastEpochs,
    ) -> None:
        self._spark = reading_session(spark)
        self._query = streaming_query
        self._files = files
        self._settings = settings
        self._last_epochs = last_epochs
        self._stopping = WorkUnderWay()
        self._race = EpochRace(streaming_query, files.spark_log)
        self._watched = WatchedQuery(streaming_query)
        storage = RetryingStorage(files.storage)
        self._runner = _runner(self._spark, files, storage, settings)
        self.listeners = self._runner.listeners
        self._taker = CheckpointTaker(
            self._runner,
            self._race,
            self._watched,
            files.spark_log.committed_epoch,
            settings.tolerable_failed_checkpoints,
        )
        history = HistoryLog(storage, self._runner.last_id())
        self.listeners.add(history)
        self.progress = RecentProgress(self._spark, streaming_query, files)
        self.listeners.add(self.progress)
        self.live = LiveStates(self._spark, files)
        self._savepoints = SavepointTaker(
            self._spark,
            files,
            settings,
            self._runner.hold,
            self._runner.record_abort,
            history,
            partial(idle_ms, streaming_query),
        )
        actions = Actions(self.trigger_savepoint, self.stop_with_savepoint)
        self._requests = RequestHandler(
            storage, settings.savepoints_directory, actions, self._stopping
        )
        self._housekeeping = Housekeeping(
            self._requests,
            self._savepoints.remove_interrupted,
            settings,
            monotonic_ms,
            REMOTE_POLL_MS if storage.is_remote else 0,
        )
        self._thread = threading.Thread(
            target=self._run, name=f"pyspark_ckpt coordinator {files.query_id}", daemon=True
        )

    @property
    def failure(self) -> FailedCheckpointsError | None:
        """Why the coordinator stopped the query, or what failed at the query's end."""
        return self._watched.failure

    def start(self) -> None:
        """Begin to checkpoint at the interval, until the query ends."""
        self._thread.start()

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the last checkpoint and savepoint of a query that has ended.

        Returns at once in a listener's call.
        """
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_seconds)
            self._stopping.wait(timeout_seconds)
            self._runner.hold.wait(timeout_seconds)  # another start would clean its files
            self.listeners.wait(timeout_seconds or self._settings.timeout_ms / 1000)

    def entries(self) -> list[HistoryEntry]:
        """Return the retained checkpoints, then savepoints, then attempts aborted in this run.

        Each of the three groups is ordered, oldest first.
        """
        retained = ((n, self._runner.path(n), each) for n, each in self._runner.retained())
        return [
            *map(self._with_requests, checkpoint_entries(retained)),
            *map(savepoint_entry, self._savepoints.taken()),
            *map(aborted_entry, self._runner.aborted()),
        ]

    def _with_requests(self, entry: HistoryEntry) -> HistoryEntry:
        assert entry.checkpoint_id is not None  # it is a checkpoint's
        requests = self._runner.requests_of(entry.checkpoint_id)
        return msgspec.structs.replace(entry, requests=requests)

    def trigger_checkpoint(self) -> CompletedCheckpoint:
        """Checkpoint the newest committed epoch, and delete what is no longer retained.

        Returns
        -------
        CompletedCheckpoint
            The newest checkpoint, if no epoch was committed after it.

        Raises
        ------
        CheckpointAbortedError
            If it was aborted; its `reason` says why.
        """
        taken = self._taker.take(periodic=False)
        if taken is Refusal.NO_NEW_EPOCH and (newest := self._runner.newest()) is not None:
            return newest
        if isinstance(taken, CompletedCheckpoint):
            return taken
        if taken is Refusal.NO_COMMITTED_EPOCH and not self._query.isActive:
            raise self._ended_without_epoch()
        if taken is Refusal.QUERY_ENDED:
            raise CheckpointAbortedError(
                f"query {self._files.query_id} has ended: start it again to checkpoint it",
                AbortReason.QUERY_ENDED,
            )
        raise nothing_committed(self._files.query_id)

    def trigger_savepoint(
        self, directory: str | None, savepoint_format: SavepointFormat
    ) -> Savepoint:
        """Take a savepoint of the newest committed epoch; as :meth:`SavepointTaker.take`."""
        try:
            return self._savepoints.take(directory, savepoint_format)
        except CheckpointAbortedError as exc:
            if exc.reason != AbortReason.NO_COMMITTED_EPOCH or self._query.isActive:
                raise
        raise self._ended_without_epoch()

    def stop_with_savepoint(
        self, directory: str | None, savepoint_format: SavepointFormat, *, drain: bool
    ) -> Savepoint:
        """Stop the query after the epoch in progress, and take a savepoint of that epoch.

        Parameters
        ----------
        directory, savepoint_format
            As for :meth:`trigger_savepoint`.
        drain
            Whether all event-time timers fire first.

        Raises
        ------
        NotBuiltYetError
            If `drain` is set for a query with Spark's own stateful operators.
        """
        if drain and self._files.operators.spark_operators:
            raise NotBuiltYetError(
                f"query {self._files.query_id}: a drain would close the windows of Spark's own "
                "stateful operators for good, so it is not supported: stop the query without drain"
            )

        was_active = False

        def stop() -> None:
            nonlocal was_active
            was_active = self._query.isActive
            if was_active:
                self._taker.take_back_if_fenced()
            stop_between_epochs(self._spark, self._query, self._settings.timeout_ms)
            self._thread.join()
            self._runner.check_not_fenced()  # this run may begin no epoch if another driver runs
            self._last_epochs.finish_begun()
            if drain:
                self._last_epochs.drain(self._all_handles, len(self._files.operators.ours))

        with self._stopping.under_way():
            try:
                return self._savepoints.take_of_stopped(stop, directory, savepoint_format)
            except BaseException as exc:
                if was_active:  # without this failure the query's end would look like a success
                    self._watched.note(stop_failed(self._files.query_id, exc))
                elif getattr(exc, "reason", None) == AbortReason.NO_COMMITTED_EPOCH:
                    raise self._ended_without_epoch() from exc
                raise

    def _all_handles(self, epoch: int) -> list[Handle]:
        location = self._files.checkpoint_location
        return [
            handle
            for operator_id in self._files.operators.ours
            for handle in read_handles(self._spark, location, epoch, operator_id)
        ]

    def _run(self) -> None:
        """Checkpoint the query until it ends; any error here ends it."""
        has_failed = False
        try:
            while not self._query.awaitTermination(self._wait_seconds()):
                if has_ended(self._spark):
                    has_failed = True
                    self._note_end_of_spark()
                    break
                self._housekeeping.do(has_won=self._race.has_won)
                if self._runner.due_in_ms() <= 0:
                    self._taker.take_periodic()
        except StreamingQueryException:
            has_failed = True  # the user gets it from the query itself
        except BaseException as exc:
            self._watched.cannot_continue(exc)
        self._end(has_failed=has_failed or self.failure is not None)

    def _wait_seconds(self) -> Any:  # PySpark takes floats too
        return min(max(self._runner.due_in_ms(), 1), POLL_MS) / 1000

    def _end(self, *, has_failed: bool) -> None:
        """Take the last checkpoint, or delete all checkpoints, as the settings say."""
        retention = self._settings.retention
        retains = retention is Retention.RETAIN_ON_CANCELLATION or (
            retention is Retention.DELETE_ON_CANCELLATION and has_failed
        )
        if retains and not has_failed:
            self._take_last()
        self._try("closing the live states", self.live.close)
        self._try("closing the checkpoints", self._runner.close)
        self._try("refusing requests", self._requests.close)
        if not retains:
            self._discard()

    def _take_last(self) -> None:
        try:
            self._taker.take(periodic=False, waits_for_listeners=False)
        except BaseException as exc:
            if getattr(exc, "reason", None) == AbortReason.FENCED:
                logger.warning("%s: no last checkpoint: %s", self._name, exc)
            else:
                self._watched.note(last_checkpoint_failed(self._files.query_id, exc))

    def _discard(self) -> None:
        if not self._race.has_won:
            logger.warning(
                "%s: its checkpoints are not deleted, because this run has committed no epoch and "
                "another driver may run the query",
                self._name,
            )
            return
        error = self._try("deleting the checkpoints", self._runner.discard_all)
        if error is not None and not isinstance(error, FencedError):
            self._watched.note(checkpoints_stay(self._files.query_id, error))

    def _try(self, what: str, step: Callable[[], None]) -> BaseException | None:
        """Do a step of the query's end, and return its error; the next steps follow in any case."""
        try:
            in_time(what, self._settings.timeout_ms, step)
        except BaseException as exc:
            logger.warning("%s: %s failed: %s", self._name, what, exc)
            return exc
        return None

    def _ended_without_epoch(self) -> CheckpointAbortedError:
        failure = self.failure or self._query.exception()
        return ended_without_epoch(self._files.query_id, failure)

    def _note_end_of_spark(self) -> None:
        epoch, newest = self._files.spark_log.committed_epoch(), self._runner.newest()
        if epoch is not None and (newest is None or newest.epoch < epoch):
            self._watched.note(spark_ended(self._files.query_id, epoch))

    @property
    def _name(self) -> str:
        return f"query {self._files.query_id}"


def _runner(
    spark: SparkSession, files: QueryFiles, storage: RetryingStorage, settings: Settings
) -> CheckpointRunner:
    gathering = Gathering(spark, files.through(storage))
    subtasks = frozenset(
        Subtask(operator.uid, number)
        for operator in files.operators.descriptors
        for number in range(operator.parallelism)
    )
    return CheckpointRunner(
        files.query_id, subtasks, storage, settings, gathering.gather, gathering.cancel
    )
