"""The state of one run of a query: it runs, somebody stops it, or it has ended, and why.

``isActive``, ``status``, ``exception()``, ``awaitTermination``, history and console ask this one
object, so they say the same. The coordinator's thread closes it, after the last checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, FailedCheckpointsError, SessionEndedError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.query.stopping.failure import cannot_continue
from pyspark_ckpt.sessions.session import Session

logger = library_logger(__name__)


class Stopper(Enum):
    """Who is stopping a run, or has stopped it; ``stop()`` may come while another one does."""

    NOBODY = auto()
    SAVEPOINT = auto()
    """A stop with a savepoint; the run has not ended before the savepoint is made."""
    RESTART = auto()
    """A restart in place; the run has not ended before the next one begins, or is given up."""
    FAILED_RESTART = auto()
    """A restart in place that asked for the stop and failed, while the run may go on."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run has ended: with an error, or as somebody wanted it."""

    error: Exception | None


def _process_ends() -> bool:
    """Return whether the main thread has ended: no pool of the process begins work from then on.

    PySpark's Connect client needs such a pool.
    """
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int)
    except RuntimeError as exc:
        return "shutdown" in str(exc)  # not if the machine has no room for another thread
    return False


class RunState:
    """The state of one run, which any thread may ask and change.

    `record` is called with each failure, and `session_error` returns ``None`` while the session is
    there. `failure` is the first failure that the library noted, and `error` the first error of the
    run, the library's or Spark's. `is_left` says that the process ends and leaves the query to its
    Spark Connect server.
    """

    def __init__(
        self,
        query: StreamingQuery,
        session: Session,
        record: Callable[[FailedCheckpointsError], None] = lambda _: None,
        session_error: Callable[[], SessionEndedError | None] = lambda: None,
    ) -> None:
        self._query = query
        self._session = session
        self._query_id = query.id
        self._record = record
        self._find_session_error = session_error
        self._looking = threading.RLock()
        """Held while somebody looks for the end of the session, which may take a while."""
        self._session_error: SessionEndedError | None = None
        self._is_ending = False
        self._changed = threading.Condition(threading.RLock())
        """Guards what follows; never held while Spark or a storage is asked."""
        self._stopper = Stopper.NOBODY
        self._savepoints = 0
        self._is_wanted = True
        self._without_checkpoint: FailedCheckpointsError | None = None
        self._is_closed = self._has_failed = False
        self._is_over = False
        self._error: Exception | None = None
        self.failure: FailedCheckpointsError | None = None
        self.is_left = False

    # How it has ended.

    @property
    def ended(self) -> Ended | None:
        """How the run has ended; ``None`` while it runs, or is being stopped.

        A run whose session has ended under it has ended. No run begins again after it has ended.
        """
        if self.session_error() is not None:
            return Ended(self._error)  # which may have stopped the query before
        with self._changed:
            return Ended(self._error) if self._is_over else None

    def end(self) -> None:
        """Note that Spark's query has ended by itself or by a call: its session may end now."""
        with self._looking:
            self._is_ending = True

    def fail(self, error: Exception) -> None:
        """Note Spark's own error: the run takes no last checkpoint, so nothing changes any more.

        If the session has ended before, Spark's error follows from that.
        """
        with self._looking:
            if self.session_error() is not None:
                return
            self._is_ending = True
        with self._changed:
            self._error = self._error or error
            self._has_failed = True
            self._settle()

    @property
    def error(self) -> Exception | None:
        """The first error of the run that somebody has noted; it stays."""
        return self._error

    def close(self) -> None:
        """Note that the coordinator does no more for the run."""
        with self._changed:
            self._is_closed = True
            self._settle()

    def wait_until_told(self, timeout_s: float) -> None:
        """Wait until the run has failed or is closed, because Spark has said that it ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_failed or self._is_closed, timeout_s)

    def _settle(self) -> None:
        """Let the run be over if nobody does anything about its end any more."""
        is_at_end = self._is_closed or self._has_failed
        is_free = not self._savepoints and self._stopper is not Stopper.RESTART
        self._is_over = self._is_over or (is_at_end and is_free)
        self._changed.notify_all()

    # Stops, each with the run's end or without.

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Stop the run with a savepoint while the context lasts; one stop at a time.

        A second one waits, and finds the run stopped: two must not both finish its last epoch. A
        restart that comes then is refused.

        CheckpointAbortedError means that the run was, or is being, stopped for a restart.
        """
        with self._changed:
            self._savepoints += 1
            try:
                self._changed.wait_for(lambda: self._stopper is not Stopper.SAVEPOINT)
                if self._stopper is Stopper.RESTART:
                    raise CheckpointAbortedError(
                        f"query {self._query_id} is being restarted in place: ask again when it "
                        "runs",
                        AbortReason.QUERY_ENDED,
                    )
                self._stopper = Stopper.SAVEPOINT
            except BaseException:
                self._savepoints -= 1
                self._settle()
                raise
        try:
            yield
        finally:
            with self._changed:
                self._stopper = Stopper.NOBODY
                self._savepoints -= 1
                self._settle()

    def keep_stopped(self) -> None:
        """Let no restart in place start the query again, because it is being stopped for good."""
        with self._changed:
            self._is_wanted = False
            error, self._without_checkpoint = self._without_checkpoint, None
        if error is not None:
            self.note(error)

    @property
    def is_being_stopped(self) -> bool:
        """Whether a stop with a savepoint or a restart in place is under way."""
        return self._savepoints > 0 or self._stopper is Stopper.RESTART

    @property
    def is_wanted(self) -> bool:
        """Whether nobody has stopped the run for good."""
        return self._is_wanted

    # A restart in place.

    def begin_restart(self) -> None:
        """Forget an earlier restart, which failed while the run went on."""
        with self._changed:
            if self._stopper is Stopper.FAILED_RESTART:
                self._stopper = Stopper.NOBODY

    @contextmanager
    def restarting(self) -> Iterator[None]:
        """Stop the run for a restart while the context lasts; one that still runs is as before.

        CheckpointAbortedError means that somebody else has stopped the run, or is about to.
        """
        is_active = self._query.isActive
        with self._changed:
            self.begin_restart()
            # A stop with a savepoint may have come and gone since Spark was asked.
            has_ended = not is_active or self._is_closed
            if has_ended or self._stopper is not Stopper.NOBODY or not self._is_wanted:
                raise self._is_stopped()
            self._stopper = Stopper.RESTART
        try:
            yield
        except BaseException:
            if self.may_run():
                self._leave_restart(Stopper.FAILED_RESTART)
            raise

    def check_wanted(self) -> None:
        """Raise a ``CheckpointAbortedError`` if somebody wants the run to stay stopped."""
        if not self._is_wanted:
            raise self._is_stopped()

    def _is_stopped(self) -> CheckpointAbortedError:
        return CheckpointAbortedError(
            f"query {self._query_id} has ended, or is being stopped: start it again with what the "
            "restart was to change",
            AbortReason.QUERY_ENDED,
        )

    @property
    def is_for_restart(self) -> bool:
        """Whether the run is being stopped, or was stopped, to start again in place."""
        return self._stopper is Stopper.RESTART

    def may_start_again(self) -> bool:
        """Whether the run ended, if it has, for the last restart in place and nothing else."""
        is_of_restart = self._stopper in (Stopper.RESTART, Stopper.FAILED_RESTART)
        return is_of_restart and self._is_wanted

    def give_up_restart(self) -> None:
        """Let the run be over, because its restart has left it stopped."""
        self._leave_restart(Stopper.NOBODY)

    def _leave_restart(self, stopper: Stopper) -> None:
        with self._changed:
            if self._stopper is Stopper.RESTART:
                self._stopper = stopper
            self._settle()

    def note_without_checkpoint(self, error: FailedCheckpointsError) -> None:
        """Note that the run ended without its last checkpoint.

        A restart in place takes it once more. If that fails too, the query runs as before, so the
        run has not failed.
        """
        with self._changed:
            is_taken_again = self.is_for_restart and self._is_wanted
            if is_taken_again:
                self._without_checkpoint = error
        if is_taken_again:
            logger.warning("%s", error)
        else:
            self.note(error)

    def note_checkpoint(self) -> None:
        """Note that a restart in place took the last checkpoint, or found it."""
        with self._changed:
            self._without_checkpoint = None

    def may_run(self) -> bool:
        """Return whether the run may go on: it is active, or cannot be asked."""
        # In another thread: the connection of this one may hold the answer to a call that the user
        # has interrupted.
        with ThreadPoolExecutor(1, "pyspark_ckpt after an error") as pool:
            try:
                return bool(pool.submit(lambda: self._query.isActive).result())
            except Exception:  # its server is out of reach
                return True

    # Failures.

    def session_error(self) -> SessionEndedError | None:
        """Return the error of a query whose session has ended under it; it is its failure then.

        Whoever asks first notes it, so that all who ask get one answer.
        """
        with self._looking:
            if self._session_error is None and not self._is_ending:
                found = self._find_session_error()
                if found is not None and self._is_left_by_process():
                    self.leave()  # PySpark closes the client, and the server runs the query on
                elif found is not None:
                    self._session_error = found
                    self._keep(found)
            return self._session_error

    def note(self, failure: FailedCheckpointsError) -> None:
        """Log a failure, and keep it if it is the first one.

        If the session of the query has ended, that is the failure, and the others follow from it.
        """
        if self.session_error() is not None:
            logger.debug("after the end of the session: %s", failure)
            return
        self._keep(failure)

    def _keep(self, failure: FailedCheckpointsError) -> None:
        logger.error("%s", failure)
        with self._changed:
            if self._error is not failure and failure.__cause__ is None:
                failure.__cause__ = self._error  # who gets the failure sees what came first
            self.failure = self.failure or failure
            self._error = self._error or failure
        self._record(failure)

    def stop(self, failure: FailedCheckpointsError) -> None:
        """Stop the query if it is active; callers that wait for it get the failure.

        A query of a Spark Connect server is left to it if the failure comes from the process's end.
        """
        if self._is_left_by_process():
            self.leave()
            return
        if self.session_error() is not None:
            return
        try:
            if self._query.isActive:
                self.note(failure)  # before the callers that wait are woken up
                self._query.stop()
        except Exception as exc:  # Spark itself is gone
            self.note(failure)
            logger.warning("query %s could not be stopped: %s", self._query_id, exc)
            return  # it may run on
        with self._changed:  # the failure is final: the coordinator takes no last checkpoint
            self._has_failed = self._has_failed or self.failure is not None
            self._settle()

    def _is_left_by_process(self) -> bool:
        return not self._session.has_jvm and _process_ends()

    def leave(self) -> None:
        """Warn, once, that the process ends while its Spark Connect server continues the query."""
        if self.is_left:
            return
        self.is_left = True
        if not self._session.outlives_client:
            return  # as a classic driver ends with its queries
        logger.warning(
            "query %s: this program ends without stopping it. As long as its Spark Connect server "
            "runs it, it has no more checkpoints: attach to it in another client, or start it "
            "again at its checkpointLocation",
            self._query_id,
        )

    def cannot_continue(self, error: BaseException) -> None:
        """Stop the query because its coordinator has failed."""
        logger.debug("traceback of the coordinator's failure", exc_info=error)
        self.stop(cannot_continue(self._query_id, error))
