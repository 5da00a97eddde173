"""A savepoint's work as small Spark jobs on the executors, beside the query that goes on.

With Spark's default scheduler a job that was submitted first goes first, so one large job would
hold every slot until it is done. Jobs of at most half the slots leave room, and between two of
them the query's tasks, submitted earlier, come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.checkpoint.progress import Progress, shown_progress
from pyspark_ckpt.checkpoint.spark_jobs import SparkJobs
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError
from pyspark_ckpt.on_disk.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.subtask_copy import SubtaskCopy

SCHEDULER_POOL = "pyspark_ckpt"
"""Pool of the jobs where the user has switched Spark's fair scheduler on."""

_MAX_TASKS = 64
_TASK = T.StructType().add("number", T.IntegerType()).add("task", T.BinaryType())
_RESULT = T.StructType().add("number", T.IntegerType()).add("handle", T.BinaryType())


class SavepointJob:
    """Runs the copies of a savepoint's subtasks on the executors.

    Parameters
    ----------
    spark
        A session of the application that the query runs in.
    what
        What is made, for the progress bar and the log.
    jobs
        What its jobs are of.
    """

    def __init__(self, spark: SparkSession, what: str, jobs: SparkJobs) -> None:
        self._spark = spark
        self._what = what
        self._jobs = jobs

    def __call__(self, copies: Sequence[SubtaskCopy]) -> list[Handle]:
        """Copy all subtasks; each task copies one, and Spark retries those that fail.

        Raises
        ------
        CorruptFileError, CheckpointAbortedError
            If a task failed for good.
        """
        at_once = max(1, min(self._spark.sparkContext.defaultParallelism // 2, _MAX_TASKS))
        handles: list[Handle] = []
        with shown_progress(self._what, len(copies)) as progress:
            for first in range(0, len(copies), at_once):
                with self._jobs.running(SCHEDULER_POOL):
                    handles += self._run(copies[first : first + at_once], progress)
        return handles

    def _run(self, copies: Sequence[SubtaskCopy], progress: Progress) -> list[Handle]:
        rows = [(number, msgspec.msgpack.encode(copy)) for number, copy in enumerate(copies)]
        tasks = self._spark.sparkContext.parallelize(rows, len(rows))
        frame = self._spark.createDataFrame(tasks, _TASK, verifySchema=False)
        try:
            results = frame.mapInPandas(_run_copies, _RESULT).collect()
        except Exception as exc:
            cause = _cause(exc)
            error = CorruptFileError if "CorruptFileError" in cause else CheckpointAbortedError
            raise error(
                f"{self._what}: copying the state on the executors failed: {cause}"
            ) from exc
        progress.advance(len(results))
        by_number = {row.number: decode_handle(bytes(row.handle)) for row in results}
        return [by_number[number] for number in range(len(copies))]


def _run_copies(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for number, task in zip(frame["number"], frame["task"], strict=True):
            handle = msgspec.msgpack.decode(bytes(task), type=SubtaskCopy).run()
            yield pd.DataFrame({"number": [number], "handle": [encode_handle(handle)]})


def _cause(error: Exception) -> str:
    """Return the last line of a Python worker's traceback, which says what happened where."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if "Error: " in line and not line.startswith(("at ", "File"))]
    return told[-1] if told else (lines[0] if lines else type(error).__name__)
