"""Copies a savepoint's subtasks in small Spark jobs on the executors, beside the running query.

With Spark's default scheduler, the job that was submitted first runs first. One large job would
hold every slot until it is done, so:

* A job takes at most half the slots. Between two jobs, the query's tasks come first.
* Copies of about a second may take every slot if the query has waited for input for as long as
  they will take. It will most likely wait as long again.
* A copy runs in a thread of lower priority than the tasks of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, CorruptFileError
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.durable.savepoint_copy import SubtaskCopy, at_low_priority
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.savepoint.progress import Progress, shown_progress
from pyspark_ckpt.spark.jobs import SparkJobs, error_text, task_error
from pyspark_ckpt.spark.session import tasks_at_once

SCHEDULER_POOL = "pyspark_ckpt"
"""Pool of the jobs if the user has switched Spark's fair scheduler on."""

_MAX_TASKS = 64
_QUICK_BYTES = 64 << 20
"""Larger files are copied in half the slots, so that an epoch that begins meanwhile waits less."""

_COPIED_BYTES_PER_MS = 80_000
"""Speed of a canonical copy on one of two processors (measured, design 16)."""

_RESULT = "number long, handle binary"


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
        largest_bytes = max((_size_bytes(copy.handle) for copy in copies), default=0)
        handles: list[Handle] = []
        with shown_progress(self._what, len(copies)) as progress:
            while remaining := copies[len(handles) :]:
                slots = tasks_at_once(self._spark)
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
        # Spark makes the rows: rows made by Python would start a second worker beside each task.
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


def _size_bytes(handle: Handle) -> int:
    return sum(file.size_bytes for file in handle.files())
