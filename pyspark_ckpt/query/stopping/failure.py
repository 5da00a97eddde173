"""How a query ends with an error: its coordinator stops it, and what the user then reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    FailedCheckpointsError,
    SessionEndedError,
)
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.location.way_back import explained
from pyspark_ckpt.sessions import connect
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.spark.damage import is_of_files
from pyspark_ckpt.spark.jobs import error_text, task_error
from pyspark_ckpt.spark.log import Sources

logger = library_logger(__name__)
_START_AGAIN = "correct the cause and start the query again at its checkpointLocation"
_STOP_FIRST = "To stop it without an error, call the query's stop() before the session's stop()"
_CLASSES: dict[tuple[type[CkptError], type[StreamingQueryException]], Any] = {}


def query_has_ended(query_id: str) -> CheckpointAbortedError:
    """Return the error of a request to a query that has ended."""
    return CheckpointAbortedError(
        f"query {query_id} has ended: start it again to checkpoint it", AbortReason.QUERY_ENDED
    )


def savepoint_under_way(query_id: str) -> CheckpointAbortedError:
    """Return the error of a restart in place that a savepoint holds up."""
    return CheckpointAbortedError(
        f"query {query_id} is not restarted, because a savepoint takes longer than "
        "spark.ckpt.execution.checkpointing.timeout: restart it when the savepoint is complete",
        AbortReason.EXPIRED,
    )


def session_stopped(query_id: str, why: str) -> CheckpointAbortedError:
    """Return the error of a stop whose savepoint the end of the program prevented."""
    return CheckpointAbortedError(
        f"query {query_id} was stopped without its savepoint, because {why} before it was "
        "made: wait with query.awaitTermination(), which returns when the savepoint is made. Start "
        "the query again, and repeat the stop",
        AbortReason.QUERY_ENDED,
    )


def why_to_stop(
    query_id: str, last: CheckpointAbortedError, tolerable: int, *, is_exceeded: bool
) -> FailedCheckpointsError | None:
    """Return the error that stops a query, ``None`` if the query may continue."""
    if last.reason == AbortReason.FENCED:
        return _failure(
            f"query {query_id} was stopped, because another driver runs it and writes its "
            f"checkpoints from now on ({last})",
            last,
        )
    if is_exceeded:
        return _failure(
            f"query {query_id} was stopped, because more than {tolerable} checkpoints in a row "
            f"failed. The last one: {last}; {_START_AGAIN}, or raise "
            "spark.ckpt.execution.checkpointing.tolerable-failed-checkpoints",
            last,
        )
    return None


def cannot_continue(query_id: str, error: BaseException) -> FailedCheckpointsError:
    """Return the error of a query whose coordinator has failed."""
    return _failure(
        f"query {query_id} was stopped, because the coordinator of its checkpoints failed: "
        f"{_text(error)}; {_START_AGAIN}",
        error,
    )


def last_checkpoint_failed(query_id: str, error: BaseException) -> FailedCheckpointsError:
    """Return the error of a query that has ended without its last checkpoint."""
    return _failure(
        f"query {query_id} has ended, and its last checkpoint failed: {_text(error)}; its epochs "
        f"are committed, and its older checkpoints are as they were; {_START_AGAIN}: it then takes "
        "the checkpoint",
        error,
    )


def checkpoints_stay(query_id: str, error: BaseException) -> FailedCheckpointsError:
    """Return the error of a query that has ended, and whose checkpoints could not be deleted."""
    return _failure(
        f"query {query_id} has ended, and its checkpoints could not be deleted: {_text(error)}; "
        "start and stop the query again to delete them",
        error,
    )


def stop_failed(query_id: str, error: BaseException) -> FailedCheckpointsError:
    """Return the error of a query that was stopped for a savepoint that failed."""
    return _failure(
        f"query {query_id} was stopped for a savepoint, and the savepoint was not made: "
        f"{_text(error)}; {_START_AGAIN}",
        error,
    )


def restart_failed(
    query_id: str, error: BaseException, last: BaseException
) -> FailedCheckpointsError:
    """Return the error of a query that a restart in place stopped, and that could not continue."""
    also = "" if last is error else f", and it could not be started as it was: {_text(last)}"
    return _failure(
        f"query {query_id} was stopped for a restart in place, which failed: {_text(error)}{also}; "
        f"{_START_AGAIN}",
        error,
    )


def session_ended(query_id: str, why: str, epoch: int | None) -> SessionEndedError:
    """Return the error of a query whose Spark session has ended before the query.

    `epoch` is the newest committed epoch if that epoch has no checkpoint, else ``None``.
    """
    if epoch is None:
        return SessionEndedError(
            f"query {query_id} has ended, because {why}. Start the query again at its "
            f"checkpointLocation. {_STOP_FIRST}"
        )
    error = SessionEndedError(
        f"query {query_id} has ended, because {why} before a checkpoint of epoch {epoch} was "
        "taken. Start the query again at its checkpointLocation: it then takes the checkpoint. "
        f"{_STOP_FIRST}"
    )
    error.epoch = epoch
    return error


def not_without_session(query_id: str, what: str, why: str) -> SessionEndedError:
    """Return the error of a call that needs a session which has ended."""
    return SessionEndedError(
        f"query {query_id} has ended, and {what} is not possible any more, because {why}. Start "
        "the query again at its checkpointLocation in another session. pyspark_ckpt.history and "
        "open_state read its directories without a session"
    )


def not_saved_without_session(query_id: str, why: str) -> CheckpointAbortedError:
    """Return the error of a request to save or restart a query whose session has ended."""
    return CheckpointAbortedError(
        f"query {query_id} has ended, because {why}: start it again at its checkpointLocation in "
        "another session, and repeat the call",
        AbortReason.QUERY_ENDED,
    )


def ended_without_epoch(query_id: str, failure: Exception | None) -> CheckpointAbortedError:
    """Return the error of a request to save a query that ended before its first epoch."""
    reason = AbortReason.QUERY_ENDED
    if failure is None:
        return CheckpointAbortedError(
            f"query {query_id} has ended before its first epoch, so there is nothing to save: "
            "start it again",
            reason,
        )
    cause = task_error(failure) if isinstance(failure, PySparkException) else None
    return CheckpointAbortedError(
        f"query {query_id} has failed before its first epoch was committed, so there is nothing "
        f"to save: {_text(cause or failure)}",
        reason,
    )


def _failure(message: str, cause: BaseException) -> FailedCheckpointsError:
    failure = FailedCheckpointsError(message)
    failure.__cause__ = cause
    return failure


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, CheckpointAbortedError) else error_text(error)


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


class WatchedQuery:
    """A query, and the failure for which it was stopped.

    `record` is called with each failure, and `session_error` returns ``None`` while the session is
    there. `failure` is the first noted failure, for every caller that waits for the query.
    `is_left` says that the process ends and leaves the query to its Spark Connect server.
    """

    def __init__(
        self,
        query: StreamingQuery,
        record: Callable[[FailedCheckpointsError], None] = lambda _: None,
        session_error: Callable[[], SessionEndedError | None] = lambda: None,
    ) -> None:
        self._query = query
        self._record = record
        self._find_session_error = session_error
        self._session_error: SessionEndedError | None = None
        self._has_ended = False
        self._looking = threading.RLock()
        self._query_id = query.id
        self.failure: FailedCheckpointsError | None = None
        self.is_left = False

    def session_error(self) -> SessionEndedError | None:
        """Return the error of a query whose session has ended under it; it is its failure then.

        Whoever asks first notes it, so that all who ask get one answer.
        """
        with self._looking:
            if self._session_error is None and not self._has_ended:
                found = self._find_session_error()
                if found is not None and is_connect(self._query) and _process_ends():
                    self.leave()  # PySpark closes the client, and the server runs the query on
                elif found is not None:
                    self._session_error = found
                    self._keep(found)
            return self._session_error

    def end(self) -> None:
        """Note that the query has ended by itself or by a call: its session may end now."""
        with self._looking:
            self._has_ended = True

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
        self.failure = self.failure or failure
        self._record(failure)

    def stop(self, failure: FailedCheckpointsError) -> None:
        """Stop the query if it is active; callers that wait for it get the failure.

        A query of a Spark Connect server is left to it if the failure comes from the process's end.
        """
        if is_connect(self._query) and _process_ends():
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

    def leave(self) -> None:
        """Warn, once, that the process ends while its Spark Connect server continues the query."""
        if self.is_left:
            return
        self.is_left = True
        session: Any = self._query
        if connect.server_ends_with_process(session._session):  # noqa: SLF001  # PySpark's
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


@contextmanager
def library_errors(files: QueryFiles) -> Iterator[None]:
    """Raise a query's failure as this library's error too, as :func:`library_error`."""
    try:
        yield
    except StreamingQueryException as exc:
        failure = library_error(exc, files)
        if failure is exc or failure is None:
            raise
        raise failure from None  # the message is complete; the cause is the JVM's copy of it


def library_error(failure: Exception | None, files: QueryFiles) -> Exception | None:
    """Return a query's failure, as this library's error too where it has one.

    It has one if a task raised such an error, or if Spark could not read one of its files in
    the query's location. Both ``except ProcessorError`` and ``except StreamingQueryException``
    catch it.
    """
    if not isinstance(failure, StreamingQueryException):
        return failure
    error = task_error(failure) or _file_error(failure, files)
    if error is None:
        return failure
    both = _both(type(error), type(failure))
    combined: Exception = both.__new__(both)
    combined.__dict__.update(error.__dict__)
    combined.__dict__.update(failure.__dict__)  # Spark's condition and stack trace
    combined.args = (str(error),)
    return combined


def _file_error(failure: StreamingQueryException, files: QueryFiles) -> CkptError | None:
    """Return the error of the file in the location that Spark could not read."""
    if not is_of_files(failure):
        return None
    sources = Sources(files.source_ids, files.given_names)
    parallelisms = files.operators.parallelisms
    return explained(failure, files.spark_log, files.storage, sources, parallelisms)


def _both(kind: type[CkptError], failure: type[StreamingQueryException]) -> Any:
    """Return a subclass of both classes; its errors print as the library's errors."""
    if (kind, failure) not in _CLASSES:
        content = {"__str__": _message, "__module__": kind.__module__, "__doc__": kind.__doc__}
        _CLASSES[kind, failure] = type(kind.__name__, (kind, failure), content)
    return _CLASSES[kind, failure]


def _message(error: Exception) -> str:
    return str(error.args[0])
