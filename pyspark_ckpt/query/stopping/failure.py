"""The errors of a query that ends, or that is asked after its end, and Spark's failure as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    FailedCheckpointsError,
    FencedError,
    SessionEndedError,
)
from pyspark_ckpt.restore.location.way_back import explained
from pyspark_ckpt.spark.damage import is_of_another_driver, is_of_files
from pyspark_ckpt.spark.jobs import error_text, task_error
from pyspark_ckpt.spark.log import Sources

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
        "the query again at its checkpointLocation in another session. The methods of "
        "pyspark_ckpt.location read its directories without a session"
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

    It has one if a task raised such an error, if Spark could not read one of its files in the
    query's location, or if another driver writes there. Both ``except ProcessorError`` and
    ``except StreamingQueryException`` catch it.
    """
    if not isinstance(failure, StreamingQueryException):
        return failure
    error = task_error(failure) or _file_error(failure, files) or _two_drivers(failure, files)
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


def _two_drivers(failure: StreamingQueryException, files: QueryFiles) -> FencedError | None:
    """Return the error of a query whose next epoch another driver has begun or committed."""
    if not is_of_another_driver(failure, files.spark_log.storage.hadoop_url):
        return None
    return FencedError(
        f"query {files.query_id} was stopped, because another driver runs it at "
        f"{files.checkpoint_location} and has written the next epoch. Run a query once at a time: "
        "let that driver run it, or start it here again once it has ended there"
    )


def _both(kind: type[CkptError], failure: type[StreamingQueryException]) -> Any:
    """Return a subclass of both classes; its errors print as the library's errors."""
    if (kind, failure) not in _CLASSES:
        content = {"__str__": _message, "__module__": kind.__module__, "__doc__": kind.__doc__}
        _CLASSES[kind, failure] = type(kind.__name__, (kind, failure), content)
    return _CLASSES[kind, failure]


def _message(error: Exception) -> str:
    return str(error.args[0])
