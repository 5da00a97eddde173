"""Real Spark jobs are cancelled together."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.spark.jobs import SparkJobs


def test_a_job_that_starts_after_the_cancellation_is_cancelled(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A thread between two jobs does not notice the cancellation: its next job would run on."""
    context = spark.sparkContext
    jobs = SparkJobs(spark, "two jobs")
    ended = tmp_path / "ended"

    def wait_for_the_end(_: int) -> None:
        while not ended.exists():
            time.sleep(0.1)

    def both() -> None:
        with jobs.running():
            context.parallelize([0], 1).count()
            jobs.cancel()
            context.parallelize([0], 1).foreach(wait_for_the_end)

    errors: list[BaseException] = []

    def run() -> None:
        try:
            both()
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    ended.touch()  # where nothing cancels the job, it ends so
    thread.join()
    (error,) = errors
    assert "cancelled" in str(error).lower()
    with pytest.raises(CheckpointAbortedError, match="expired"), jobs.running():
        pass
    assert not isinstance(error, PySparkException)
