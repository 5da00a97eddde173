"""The Spark jobs of one checkpoint or savepoint, and the errors that they raise on the driver.

The jobs have a description for Spark's job pages, and are cancelled together. They may run in a
thread of the user. Afterwards the thread has its own description, pool and tags again.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, ConfigurationError
from pyspark_ckpt.operator.task_failure import failure_in
from pyspark_ckpt.sessions.session import session_of

JOB_ERRORS = (PySparkException, Py4JJavaError)
"""What a job that failed raises on the driver. PySpark leaves many errors of the JVM as they are.
"""

_AGAIN_S = 0.5
"""How long after a cancellation the jobs are cancelled that started in between."""


class SparkJobs:
    """Jobs that belong together."""

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._session = session_of(spark)
        self._what = what
        self._tag = f"pyspark_ckpt-{secrets.token_hex(6)}"
        self._is_cancelled = False
        self._inside = 0
        self._guard = threading.Lock()

    @contextmanager
    def running(self, pool: str | None = None) -> Iterator[None]:
        """Add this thread's new jobs to these jobs; if the thread is interrupted, no job remains.

        If `pool` is ``None``, the thread's own scheduler pool is used. ``CheckpointAbortedError``
        is raised if the jobs were cancelled before.
        """
        if self._is_cancelled:
            raise self._expired_error()
        with self._session.tagged(self._tag, self._what, pool):
            self._count(1)
            try:
                yield
            except BaseException:
                with suppress(Exception):  # an application that has ended runs no jobs
                    self._cancel_tagged()
                raise
            finally:
                self._count(-1)

    def _cancel_tagged(self) -> None:
        self._session.cancel_tagged(self._tag)

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks of these jobs are done, and how many are known; from any thread.

        Spark counts the tasks of a job when it starts. A client of Spark Connect sees none.
        """
        return self._session.tasks_of(self._tag)

    def cancel(self) -> None:
        """Cancel the running jobs, from any thread, and the jobs that a thread starts later."""
        self._is_cancelled = True
        self._cancel_tagged()
        self._cancel_again_later()

    def _cancel_again_later(self) -> None:
        """Cancel again while a thread is inside: a cancellation between two jobs is lost."""
        with self._guard:
            if not self._inside:
                return
        timer = threading.Timer(_AGAIN_S, self._cancel_again)
        timer.daemon = True
        timer.start()

    def _cancel_again(self) -> None:
        with suppress(Exception):  # an application that has ended runs no jobs
            self._cancel_tagged()
            self._cancel_again_later()

    def _count(self, change: int) -> None:
        with self._guard:
            self._inside += change

    @contextmanager
    def expiring(self, timeout_ms: int) -> Iterator[None]:
        """Cancel the jobs when the context has lasted too long.

        ``CheckpointAbortedError`` is raised if the context then ended with an error.
        """
        timer = threading.Timer(timeout_ms / 1000, self.cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as exc:
            if self._is_cancelled:
                raise self._expired_error() from exc
            raise
        finally:
            timer.cancel()

    def _expired_error(self) -> CheckpointAbortedError:
        return CheckpointAbortedError(
            f"{self._what}: expired, and its Spark jobs were cancelled: look for what keeps the "
            "executors busy, or raise spark.ckpt.execution.checkpointing.timeout",
            AbortReason.EXPIRED,
        )


def collected(frame: DataFrame, what: str) -> list[Row]:
    """Run a job and return its rows; raise the error of a task that failed.

    An error of this library is raised as the ``CkptError`` that the task raised. Other failures are
    one of ``JOB_ERRORS``. The rows must be few enough for the driver.
    """
    try:
        with session_of(frame).described(what):
            return frame.collect()
    except JOB_ERRORS as exc:
        error = task_error(exc)
        if error is None:
            raise
        raise error from exc


WORKER_ADVICE = (
    "activate the environment that has the library, or set PYSPARK_PYTHON to its Python before the "
    "session is made (os.environ['PYSPARK_PYTHON'] = sys.executable where both run on one machine)"
)
"""What to do about Python workers that cannot import the library, on this machine."""

SHIP_ADVICE = (
    "On a cluster, ship an environment that has the library: venv-pack -o environment.tar.gz, then "
    "spark-submit --archives environment.tar.gz#environment with "
    "PYSPARK_PYTHON=./environment/bin/python (docs/clusters.md); --py-files is not enough, because "
    "the library needs packages with native code"
)
"""The same for executors on other machines."""

_NOT_IMPORTED = re.compile(
    r"ModuleNotFoundError: No module named '(?:pyspark_ckpt|state_backends|msgspec|rocksdict|lmdb"
    r"|fsspec)\b"
)
_JAVA_FRAME = "\tat "


def error_text(error: BaseException) -> str:
    """Return an error's class and message, without the stack in the message of a JVM's error."""
    lines = f"{type(error).__name__}: {error}".splitlines()
    return "\n".join(line for line in lines if not line.startswith(_JAVA_FRAME))


def task_error(failure: Exception) -> CkptError | None:
    """Return the error of this library that a task ended with.

    A worker that cannot import the library cannot mark its error. Its error is recognised by
    Python's message.
    """
    text = str(failure)
    missing = _NOT_IMPORTED.search(text)
    if missing is not None:
        return ConfigurationError(
            f"Spark's Python workers cannot import pyspark_ckpt ({missing.group()}'): "
            f"{WORKER_ADVICE}. {SHIP_ADVICE}"
        )
    return failure_in(text)
