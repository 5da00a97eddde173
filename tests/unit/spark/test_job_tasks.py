"""The tasks of jobs that belong together are counted while they run, and no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.spark.jobs import SparkJobs
from tests.query.harness import until


@pytest.mark.slow
def test_tasks_are_counted_while_they_run(spark: SparkSession, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def last_waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        for batch in batches:
            while 3 in batch.column(0).to_pylist() and not Path(gate).exists():
                time.sleep(0.01)
            yield batch

    jobs = SparkJobs(spark, "counted")

    def run() -> None:
        with jobs.running():
            spark.range(4, numPartitions=4).mapInArrow(last_waits, "id long").collect()

    assert jobs.tasks() == (0, 0)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: jobs.tasks() == (3, 4), "three tasks of four never ended")
    finally:
        Path(gate).touch()
        thread.join()
    spark.range(4).collect()  # a job of somebody else
    assert jobs.tasks() == (4, 4)
