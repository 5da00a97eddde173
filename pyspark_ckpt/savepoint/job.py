"""Copies a savepoint's subtasks in small Spark jobs on the executors, and shows their progress.

With Spark's default scheduler, the job that was submitted first runs first. One large job would
hold every slot until it is done, so:

* A job takes at most half the slots. Between two jobs, the query's tasks come first.
* Copies of about a second may take every slot if the query has waited for input for as long as
  they will take. It will most likely wait as long again.
* A copy runs in a thread of lower priority than the tasks of an epoch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pkgutil import iter_modules
from typing import Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import Progress as Bar

from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, CorruptFileError
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.jobs import SparkJobs, error_text, task_error
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy, at_low_priority

SCHEDULER_POOL = "pyspark_ckpt"
"""Pool of the jobs if the user has switched Spark's fair scheduler on."""

_MAX_TASKS = 64

_QUICK_BYTES = 64 << 20
"""Larger files are copied in half the slots, so that an epoch that begins then waits less."""

_COPIED_BYTES_PER_MS = 80_000
"""Speed of a canonical copy on one of two processors (measured)."""

_RESULT = "number long, handle binary"
logger = library_logger(__name__)
_LOGGED_STEPS = 10
_POLL_SECONDS = 0.5

Tasks = Callable[[], tuple[int, int]]
"""Returns how many of Spark's tasks are done, and how many are known."""


class SavepointJob:
    """Runs the copies of a savepoint's subtasks on the executors."""

    def __init__(
        self, spark: SparkSession, what: str, jobs: SparkJobs, idle_ms: Callable[[], float]
    ) -> None:
        self._spark = spark
        self._what = what
        self._jobs = jobs
        self._idle_ms = idle_ms

    def __call__(self, copies: Sequence[SubtaskCopy]) -> list[Handle]:
        """Copy all subtasks; each task copies one, and Spark retries tasks that fail."""
        sizes = (sum(file.size_bytes for file in copy.handle.files()) for copy in copies)
        largest_bytes = max(sizes, default=0)
        handles: list[Handle] = []
        with shown_progress(self._what, len(copies)) as progress:
            while remaining := copies[len(handles) :]:
                slots = session_of(self._spark).tasks_at_once()
                if not self._may_have_all(largest_bytes):
                    slots //= 2
                with self._jobs.running(SCHEDULER_POOL):
                    handles += self._run(remaining[: max(1, min(slots, _MAX_TASKS))], progress)
        return handles

    def _may_have_all(self, copy_bytes: int) -> bool:
        idle_ms = self._idle_ms()
        expected_ms = copy_bytes / _COPIED_BYTES_PER_MS
        return copy_bytes <= _QUICK_BYTES and 0 < idle_ms >= expected_ms

    def _run(self, copies: Sequence[SubtaskCopy], progress: Progress) -> list[Handle]:
        # Spark makes the rows: rows made by Python would start a second worker for each task.
        places = self._spark.range(len(copies), numPartitions=len(copies))
        run_copies = _CopySubtasks(tuple(map(msgspec.msgpack.encode, copies)))
        try:
            results = places.mapInArrow(run_copies, _RESULT).collect()
        except Exception as exc:
            error = task_error(exc)
            is_corrupt = isinstance(error, CorruptFileError)
            kind = CorruptFileError if is_corrupt else CheckpointAbortedError
            raise kind(
                f"{self._what}: copying the state on the executors failed: "
                f"{error or error_text(exc)}"
            ) from exc
        progress.advance(len(results))
        by_number = {row.number: decode_handle(bytes(row.handle)) for row in results}
        return [by_number[number] for number in range(len(copies))]


class _CopySubtasks:
    """The function given to ``mapInArrow`` over the numbers of copies: yields their handles."""

    def __init__(self, copies: tuple[bytes, ...]) -> None:
        self._copies = copies

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                copy = msgspec.msgpack.decode(self._copies[number], type=SubtaskCopy)
                try:
                    handle = encode_handle(at_low_priority(copy.run))
                except CkptError:
                    raise
                except Exception as exc:  # so that the driver gets its message
                    raise CheckpointAbortedError(f"{type(exc).__name__}: {exc}") from exc
                yield pa.RecordBatch.from_pydict({"number": [number], "handle": [handle]})


class Progress(Protocol):
    """Shows how far the work has come."""

    def advance(self, parts: int) -> None:
        """Show that `parts` more are done."""


@contextmanager
def shown_progress(what: str, total: int, tasks: Tasks | None = None) -> Iterator[Progress]:
    """Show the progress of `what`: a bar in a terminal or notebook, else lines in the log."""
    if not (sys.stdout.isatty() or _is_notebook()):
        yield _LoggedProgress(what, total)
        return
    with Bar(transient=True) as bar:
        if tasks is None:
            yield _ShownProgress(bar, what, total)
            return
        with _following(bar, what, tasks):
            yield _NoProgress()


def _is_notebook() -> bool:
    """Return whether a notebook can show a bar; rich needs Jupyter's widgets for that."""
    return Console().is_jupyter and any(each.name == "ipywidgets" for each in iter_modules())


@contextmanager
def _following(bar: Bar, what: str, tasks: Tasks) -> Iterator[None]:
    """Show the tasks that are done, from a separate thread."""
    number = bar.add_task(what, total=None)
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.wait(_POLL_SECONDS):
            done, known = tasks()
            if known:
                bar.update(number, completed=done, total=known)

    thread = threading.Thread(target=follow, name="pyspark_ckpt-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class _NoProgress:
    """The bar shows something else."""

    def advance(self, parts: int) -> None:
        pass


class _ShownProgress:
    def __init__(self, bar: Bar, what: str, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task(what, total=total)

    def advance(self, parts: int) -> None:
        self._bar.advance(self._task, parts)


class _LoggedProgress:
    """Writes at most ten lines for the whole work."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._logged = 0

    def advance(self, parts: int) -> None:
        self._done += parts
        step = self._done * _LOGGED_STEPS // max(self._total, 1)
        if step > self._logged:
            self._logged = step
            logger.info("%s: %s of %s subtasks", self._what, self._done, self._total)
