"""A query's failure as Spark's exception and as the error of this library that caused it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import StreamingQueryException

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.restore.location.way_back import explained
from pyspark_ckpt.spark.damage import is_of_files
from pyspark_ckpt.spark.jobs import task_error
from pyspark_ckpt.spark.log import Sources

_CLASSES: dict[tuple[type[CkptError], type[StreamingQueryException]], Any] = {}


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

    It has one if a task raised such an error, or if Spark could not read one of its own files in
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
