"""The coordinator: takes a running query's checkpoints and savepoints, and answers requests.

It is one thread per query on the driver. It decides when a checkpoint is taken; the runner takes
it. A checkpoint is made of an epoch that Spark has committed. A checkpoint that fails is aborted
with a reason, and the older checkpoints stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.cleaning import CleaningHold
from pyspark_ckpt.checkpoint.epoch_race import EpochRace
from pyspark_ckpt.checkpoint.machine import Refusal
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.query_runner import runner_of
from pyspark_ckpt.checkpoint.runner import Patience, patience_ms
from pyspark_ckpt.checkpoint.time_limit import in_time
from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    FailedCheckpointsError,
    FencedError,
    SessionEndedError,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
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
from pyspark_ckpt.log_fields import library_logger, log_fields
from pyspark_ckpt.metrics.reporters import Reporters
from pyspark_ckpt.metrics.values import MeasuredQuery, QueryMetrics
from pyspark_ckpt.operator.quarantine.releases import request_release
from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.query.requests import (
    POLL_MS,
    REMOTE_POLL_MS,
    Actions,
    RequestHandler,
    WorkUnderWay,
)
from pyspark_ckpt.query.run_recorder import RecentProgress, RunRecorder, start_record
from pyspark_ckpt.query.stopping.drain import LastEpochs
from pyspark_ckpt.query.stopping.failure import (
    checkpoints_stay,
    ended_without_epoch,
    last_checkpoint_failed,
    library_error,
    not_saved_without_session,
    query_has_ended,
    session_ended,
)
from pyspark_ckpt.query.stopping.run_state import RunState
from pyspark_ckpt.query.stopping.stops import Run, RunStops
from pyspark_ckpt.restore.location.swap import remove_leftovers_of_restarts
from pyspark_ckpt.savepoint.taker import SavepointTaker, nothing_committed
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import Retention, Settings
from pyspark_ckpt.spark.callback_thread import end_callback_thread
from pyspark_ckpt.spark.query import ended_within, idle_ms, progress_since
from pyspark_ckpt.spark.session import reading_session
from pyspark_ckpt.storage.fenced import FencedStorage, Lease
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.owner import resolved_path

logger = library_logger(__name__)

LISTENERS_PATIENCE_S = 2.0
"""How long the record of a query's end waits for listeners, which may be the user's."""


class CheckpointCoordinator:
    """Checkpoints one running query.

    `listeners` are called on the driver. `progress` has the operators' progress. `live` reads the
    states at the newest committed epoch. `requests` answers those of other processes.

    `continues` says whether the run starts from stored state. Without `store`, the store of its
    checkpoints is claimed now. `former` is the query's run before this one in this process: while a
    savepoint of it is copied, this run deletes no file.
    """

    def __init__(
        self,
        spark: SparkSession,
        streaming_query: StreamingQuery,
        files: QueryFiles,
        settings: Settings,
        last_epochs: LastEpochs,
        *,
        continues: bool = True,
        store: CompletedCheckpointStore | None = None,
        former: CheckpointCoordinator | None = None,
    ) -> None:
        self._spark = reading_session(spark)
        self._query = streaming_query
        self._files = files
        self._settings = settings
        self._under_way = WorkUnderWay()
        self._race = EpochRace(streaming_query, files.spark_log)
        storage = RetryingStorage(files.storage)
        hold = None if former is None else former.hold
        self._runner = runner_of(self._spark, files, storage, settings, store, hold)
        self.listeners = self._runner.listeners
        self._recorder = RunRecorder(
            files.storage,
            start_record(spark, streaming_query, files, settings),
            partial(progress_since, streaming_query),
            self._runner.metadata_of,
        )
        self.state = RunState(
            streaming_query, session_of(spark), self._recorder.failed, self._end_of_session
        )
        self._taker = CheckpointTaker(
            self._runner,
            self._race,
            self.state,
            files.spark_log.committed_epoch,
            settings.tolerable_failed_checkpoints,
        )
        self.history = history = HistoryLog(storage, self._runner.last_id())
        self.restarts: list[HistoryEntry] = []
        self.listeners.add_own(history)
        self.progress = RecentProgress(self._spark, streaming_query, files)
        self.listeners.add_own(self.progress)
        self.listeners.add_own(self._recorder)
        self._metrics = QueryMetrics(
            MeasuredQuery.of(spark, streaming_query, files, continues=continues),
            partial(progress_since, streaming_query),
            self._runner.metadata_of,
            self._runner.is_under_way,
        )
        self._reporters: Reporters | None = None
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
        self.stops = RunStops(
            Run(
                spark=self._spark,
                query=streaming_query,
                files=files,
                timeout_ms=settings.timeout_ms,
                state=self.state,
                runner=self._runner,
                taker=self._taker,
                savepoints=self._savepoints,
                last_epochs=last_epochs,
                join=self.wait_until_closed,
                error_so_far=self.error_so_far,
                check_session=self.check_session,
                under_way=self._under_way,
            )
        )
        actions = Actions(self.trigger_savepoint, self.stops.with_savepoint)
        self.requests = RequestHandler(
            storage, settings.savepoints_directory, actions, self._under_way
        )
        self._housekeeping = Housekeeping(
            self.requests,
            partial(
                remove_leftovers,
                self._savepoints.remove_interrupted,
                FencedStorage(files.spark_log.storage, self._runner.lease),
            ),
            settings,
            monotonic_ms,
            REMOTE_POLL_MS if storage.is_remote else 0,
        )
        self._thread = threading.Thread(
            target=self._run, name=f"pyspark_ckpt coordinator {files.query_id}", daemon=True
        )

    @property
    def files(self) -> QueryFiles:
        """The query's directories and operators."""
        return self._files

    @property
    def directory(self) -> Storage:
        """The location if it has the checkpoints, else the directory of checkpoints."""
        location = self._files.spark_log.storage
        checkpoints = self._files.storage
        return location if checkpoints.url.startswith(f"{location.url}/") else checkpoints

    @property
    def run_id(self) -> str:
        """Spark's id of the run."""
        return self._recorder.run_id

    @property
    def failure(self) -> FailedCheckpointsError | None:
        """Why the coordinator stopped the query, or what failed at the query's end."""
        return self.state.failure

    def error_so_far(self) -> Exception | None:
        """Return the error with which the run has failed, if it has, the library's or Spark's."""
        return self.state.error or library_error(self._query.exception(), self._files)

    def session_error(self) -> SessionEndedError | None:
        """Return the error of a run whose Spark session has ended under it."""
        return self.state.session_error()

    def why_session_ended(self) -> str | None:
        """Return why the run's session is gone, also after the run's own end; else ``None``."""
        return session_of(self._spark).why_ended()

    def _end_of_session(self) -> SessionEndedError | None:
        """Return the error of the run if its session has ended; it then has no fence any more."""
        session, why = session_of(self._spark), self.why_session_ended()
        if why is None:
            return None
        self._runner.fence.give_way()
        if not session.has_jvm:  # else the coordinator waits for a server that is gone
            # In a thread: it ends the calls that wait for the server.
            threading.Thread(
                target=session.release_ended,
                name=f"pyspark_ckpt releases the session of {self._files.query_id}",
                daemon=True,
            ).start()
        return session_ended(self._files.query_id, why, self._newest_without_checkpoint())

    def _newest_without_checkpoint(self) -> int | None:
        try:
            epoch = self._files.spark_log.committed_epoch()
        except (CkptError, OSError) as exc:
            logger.warning("%s: its newest epoch is unknown: %s", self._name, exc)
            return None
        return None if epoch is None or self._runner.covers(epoch) else epoch

    def is_at(self, location: str, query_id: str | None) -> bool:
        """Return whether it is a run at a location, or of a query."""
        files = self._files
        return files.spark_log.storage.url == location or files.query_id == query_id

    def runs_elsewhere(self, location: Storage, query_id: str) -> bool:
        """Return whether it is a run of a query, not ended, at another location than this one."""
        files = self._files
        is_of_query = files.query_id == query_id and not self.has_ended
        return is_of_query and resolved_path(files.spark_log.storage) != resolved_path(location)

    def end_if_session_ended(self, *, waits: bool) -> None:
        """Let a run whose session has ended do nothing any more; perhaps wait for its end."""
        if not self.has_ended and self.session_error() is not None:
            # Else a call waits for minutes for a server that is gone.
            session_of(self._spark).release_ended()
            if waits:
                self.join(self.timeout_s)

    @contextmanager
    def _while_session_lasts(self) -> Iterator[None]:
        """Raise an error with a reason if the session has ended, or ends in the block."""
        self.check_session()
        try:
            yield
        except Exception:
            self.check_session()
            raise

    def check_session(self) -> None:
        """Refuse to act for a run whose session has ended."""
        why = self.why_session_ended()
        if why is not None:
            self.session_error()
            raise not_saved_without_session(self._files.query_id, why)

    @property
    def metrics_reporters(self) -> dict[str, str]:
        """The address of each reporter of metrics, or why it does not report."""
        return {} if self._reporters is None else dict(self._reporters.addresses)

    @property
    def has_ended(self) -> bool:
        """Whether it checkpoints no more; asks no server, which may have ended."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Begin to checkpoint at the interval, until the query ends."""
        self._recorder.start()
        if self._settings.metrics_reporters:
            self.listeners.add_own(self._metrics)
            with log_fields(query=self._files.query_id):
                self._reporters = Reporters(self._metrics, self._settings)
        self._thread.start()

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the last checkpoint and savepoint of a query that has ended.

        Returns at once in a call of the coordinator's own thread.
        """
        if threading.current_thread() is not self._thread:
            self.wait_until_closed(timeout_seconds)
            self._under_way.wait(timeout_seconds)
            self._runner.hold.wait(timeout_seconds)  # another start would clean its files
            self.listeners.wait(timeout_seconds or self._settings.timeout_ms / 1000)

    def wait_until_closed(self, timeout_s: float | None = None) -> None:
        """Wait until it does no more for a run that has ended; savepoints may be under way.

        Returns at once in a call of the coordinator's own thread.
        """
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def entries(self) -> list[HistoryEntry]:
        """Return the retained checkpoints, then savepoints, then attempts aborted in this run.

        Restarts in place of this process come last. Each group is ordered, oldest first.
        """
        retained = ((n, self._runner.path(n), each) for n, each in self._runner.retained())
        return [
            *map(self._with_requests, checkpoint_entries(retained)),
            *map(savepoint_entry, self._savepoints.taken()),
            *map(aborted_entry, self._runner.aborted()),
            *self.restarts,
        ]

    def _with_requests(self, entry: HistoryEntry) -> HistoryEntry:
        assert entry.checkpoint_id is not None  # it is a checkpoint's
        requests = self._runner.requests_of(entry.checkpoint_id)
        return msgspec.structs.replace(entry, requests=requests)

    def trigger_checkpoint(self, *, waits_for_listeners: bool = True) -> CompletedCheckpoint:
        """Checkpoint the newest committed epoch, and delete what is no longer retained.

        If no epoch was committed after the newest checkpoint, that checkpoint is returned. With
        `waits_for_listeners`, it returns after the listeners' calls. If the checkpoint was aborted,
        `reason` of the CheckpointAbortedError says why.
        """
        with self._while_session_lasts():
            taken = self._taker.take(periodic=False, waits_for_listeners=waits_for_listeners)
        if taken is Refusal.NO_NEW_EPOCH and (newest := self._runner.newest()) is not None:
            return newest
        if isinstance(taken, CompletedCheckpoint):
            return taken
        if taken is Refusal.NO_COMMITTED_EPOCH and not self._query.isActive:
            raise self._ended_without_epoch()
        if taken is Refusal.QUERY_ENDED:
            raise query_has_ended(self._files.query_id)
        raise nothing_committed(self._files.query_id)

    def release(self, uid: str, keys: Iterable[Any] | None) -> str:
        """Request that the next epoch releases quarantined keys; as :func:`request_release`."""
        files = self._files
        return request_release(files.storage, files.operators.descriptors, uid, keys)

    def trigger_savepoint(
        self, directory: str | None, savepoint_format: SavepointFormat, *, is_noted: bool = True
    ) -> Savepoint:
        """Take a savepoint of the newest committed epoch; as :meth:`SavepointTaker.take`."""
        try:
            with log_fields(query=self._files.query_id), self._while_session_lasts():
                return self._savepoints.take(directory, savepoint_format, is_noted=is_noted)
        except CheckpointAbortedError as exc:
            if exc.reason != AbortReason.NO_COMMITTED_EPOCH or self._query.isActive:
                raise
        raise self._ended_without_epoch()

    @property
    def timeout_s(self) -> float:
        """How long a checkpoint, a savepoint, or the wait for one may take."""
        return self._settings.timeout_ms / 1000

    def newest_metadata(self) -> tuple[str, CheckpointMetadata] | None:
        """Return path and metadata of the newest checkpoint, ``None`` if there is none."""
        newest = self._runner.newest()
        metadata = None if newest is None else self._runner.metadata_of(newest.checkpoint_id)
        return None if newest is None or metadata is None else (newest.path, metadata)

    @property
    def hold(self) -> CleaningHold:
        """Keeps the files of the query's checkpoints while a savepoint is copied."""
        return self._runner.hold

    @property
    def lease(self) -> Lease:
        """The right to change the query's location."""
        return self._runner.lease

    def give_way(self) -> None:
        """Leave the checkpoints to the query's next run in this process, which is about to begin.

        Its own last checkpoint may still be under way, because Spark ends the run that is active
        when a query is started again.
        """
        self._runner.fence.give_way()

    def take_back(self, store: CompletedCheckpointStore) -> None:
        """Have the fence again that a next run claimed, with this store, and could not use.

        FencedError is raised if another driver has taken over the query by then.
        """
        self._runner.fence.take_back(store)

    def _run(self) -> None:
        """Checkpoint the query until it ends; any error here ends it."""
        try:
            with log_fields(query=self._files.query_id):
                self._checkpoint_until_the_end()
        finally:
            if not self.state.is_left:  # else the query runs on
                self.state.close()

    def _checkpoint_until_the_end(self) -> None:
        has_failed = False
        try:
            while not ended_within(self._query, self._wait_seconds()):
                if self.session_error() is not None:
                    break
                session_of(self._spark).keep_in_use()
                self._housekeeping.do(has_won=self._race.has_won)
                if self._runner.due_in_ms() <= 0:
                    self._taker.take_periodic()
        except StreamingQueryException as exc:
            has_failed = True  # the user gets it from the query itself
            self.state.fail(library_error(exc, self._files) or exc)
        except BaseException as exc:
            self.state.cannot_continue(exc)
        if self.state.is_left:
            return  # without an end of the run, because the query runs on
        if self._ended_with_session(has_failed=has_failed):
            # A run of the next session may have begun, and what is unfinished is its work: this
            # run takes and deletes no checkpoint.
            self._try("stopping Spark's query", self._stop_without_session)
            self._close(continues=False)
            return
        self.state.end()
        self._end(has_failed=has_failed or self.failure is not None)

    def _ended_with_session(self, *, has_failed: bool) -> bool:
        """Return whether the run has ended because its session did.

        A server stops the queries of a session that ends, as if somebody had asked for it.
        """
        by_itself = not has_failed and session_of(self._spark).has_jvm
        if self.failure is None and (by_itself or not self.state.is_wanted):
            return False
        return self.session_error() is not None

    def _stop_without_session(self) -> None:
        """End Spark's own thread, which would begin an epoch as soon as there is input."""
        session = session_of(self._spark)
        session.release_ended()
        if session.has_jvm:
            with suppress(Py4JError, OSError):  # the JVM is gone
                self._query.stop()

    def _wait_seconds(self) -> float:
        return min(max(self._runner.due_in_ms(), 1), POLL_MS) / 1000

    def _end(self, *, has_failed: bool) -> None:
        """Take the last checkpoint, or delete all checkpoints, as the settings say."""
        retention = self._settings.retention
        is_kept = self.state.is_for_restart or retention is Retention.RETAIN_ON_CANCELLATION
        retains = is_kept or (retention is Retention.DELETE_ON_CANCELLATION and has_failed)
        if retains and not has_failed:
            self._take_last()
        self._close(continues=self.state.is_for_restart)
        if not retains:
            self._discard()

    def _close(self, *, continues: bool) -> None:
        """Record why the run ended and close what it used; a run that follows gets the requests."""
        end_callback_thread(self.run_id)
        self._try("closing the live states", self.live.close)
        self._record_end()
        if self._reporters is not None:
            self._try("ending the reports of metrics", self._reporters.close)
        if not continues:
            self._try("refusing requests", self.refuse_requests)
        self._try("closing the checkpoints", self._runner.close)

    def refuse_requests(self) -> None:
        """Refuse the open requests, because the query has ended, unless another driver runs it."""
        try:
            self._runner.lease.check()
        except FencedError:
            return
        except (CkptError, OSError) as exc:
            logger.warning("%s: it is unknown whether another driver runs it: %s", self._name, exc)
        self.requests.close()

    def _record_end(self) -> None:
        """Record why the query ended, after the checkpoints that ended before."""
        self.listeners.wait_for_own(LISTENERS_PATIENCE_S)
        try:
            error = self.error_so_far()
        except Exception as exc:  # Spark ends now; a failure has been noted before
            logger.warning("%s: Spark does not say how it ended: %s", self._name, exc)
            error = None
        if error is not None and self.failure is None:
            self.state.fail(error)
        session = session_of(self._spark)
        asks_spark = session.has_jvm or session.why_ended() is None
        self._recorder.end(error, asks_spark=asks_spark)

    def _take_last(self) -> None:
        try:
            self._taker.take(periodic=False, waits_for_listeners=False)
        except BaseException as exc:
            if getattr(exc, "reason", None) == AbortReason.FENCED:
                logger.warning("%s: no last checkpoint: %s", self._name, exc)
            else:
                self.state.note_without_checkpoint(
                    last_checkpoint_failed(self._files.query_id, exc)
                )

    def _discard(self) -> None:
        try:
            has_won = self._race.has_won
        except Exception as exc:  # Spark ends now
            logger.warning("%s: its checkpoints are not deleted: %s", self._name, exc)
            return
        if not has_won:
            logger.warning(
                "%s: its checkpoints are not deleted, because this run has committed no epoch and "
                "another driver may run the query",
                self._name,
            )
            return
        error = self._try("deleting the checkpoints", self._runner.discard_all)
        if isinstance(error, FencedError):
            logger.warning(
                "%s: another driver runs the query now. Checkpoints and files that were not "
                "deleted before it started stay until its own checkpoints replace them",
                self._name,
            )
        elif error is not None:
            self.state.note(checkpoints_stay(self._files.query_id, error))

    def _try(self, what: str, step: Callable[[], None]) -> BaseException | None:
        """Do a step of the query's end, and return its error; the next steps follow in any case."""
        try:
            in_time(what, self._settings.timeout_ms, step)
        except BaseException as exc:
            logger.warning("%s: %s failed: %s", self._name, what, exc)
            return exc
        return None

    def _ended_without_epoch(self) -> CheckpointAbortedError:
        return ended_without_epoch(self._files.query_id, self.error_so_far())

    @property
    def _name(self) -> str:
        return f"query {self._files.query_id}"


def remove_leftovers(
    remove_interrupted_savepoints: Callable[[], None],
    location: FencedStorage,
) -> None:
    """Remove what drivers before this one left in the savepoints and in the location."""
    remove_interrupted_savepoints()
    with suppress(FencedError):  # what is in the location may be another driver's work
        remove_leftovers_of_restarts(location)


class Housekeeping:
    """Does the work that is due between two checkpoints."""

    def __init__(
        self,
        requests: RequestHandler,
        remove_interrupted: Callable[[], None],
        settings: Settings,
        clock: Callable[[], int],
        poll_ms: int,
    ) -> None:
        self._clock = clock
        self._poll_ms = poll_ms
        self._polled_ms: int | None = None
        self._timeout_ms = settings.timeout_ms
        limit_ms = patience_ms(settings)
        self._once = [
            ("answering requests of an earlier driver", requests.refuse_interrupted),
            ("removing savepoints that were interrupted", remove_interrupted),
        ]
        self._poll = ("looking for requests", requests.poll)
        self._patience = {
            what: Patience(what, limit_ms, clock) for what, _ in (*self._once, self._poll)
        }

    def do(self, *, has_won: bool) -> None:
        """Do the steps that are due.

        `has_won` says whether this run has committed an epoch, because only then is it certain that
        earlier drivers have ended. An error is raised only if a step has failed for longer than
        checkpoints may fail.
        """
        if has_won:
            self._once = [step for step in self._once if not self._is_done(*step)]
        now_ms = self._clock()
        if self._polled_ms is None or now_ms - self._polled_ms >= self._poll_ms:
            self._polled_ms = now_ms
            self._is_done(*self._poll)

    def _is_done(self, what: str, step: Callable[[], None]) -> bool:
        patience = self._patience[what]
        try:
            in_time(what, self._timeout_ms, step)
        except (OSError, CkptError) as exc:
            patience.failed(exc)
            return False
        patience.succeeded()
        return True
