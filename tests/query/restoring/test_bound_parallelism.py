"""Spark fixes the parallelism of a location with the first offsets that it writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.query.harness import Job, refused, until
from tests.query.model import Reveal, events_of, expected

PARTITIONS = "spark.sql.shuffle.partitions"


class Failing(Reveal):
    """Reveal that fails until a file is there."""

    def __init__(self, mended: Path) -> None:
        self.mended = mended

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if not self.mended.exists():
            raise ZeroDivisionError("not mended")
        yield from super().handleInputRows(key, rows, timerValues)


@contextmanager
def partitions(spark: SparkSession, number: int) -> Iterator[None]:
    before = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, number)
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS, before)


def run_in_vain(job: Job) -> None:
    """Run a query that fails; return once its tasks are over.

    Spark ends the query at the first task that has failed too often. Other tasks may continue
    for a while, and discard their state store's files when they end.
    """
    with pytest.raises(StreamingQueryException, match="not mended"):
        job.run()
    context = job.spark.sparkContext._jsc.sc()

    def are_over() -> bool:
        context.listenerBus().waitUntilEmpty()
        executors = context.statusStore().executorList(True)
        return sum(executors.apply(n).activeTasks() for n in range(executors.size())) == 0

    until(are_over, "tasks of the failed query still run")


@pytest.mark.soak
def test_another_number_after_a_crash_in_epoch_0(job: Job) -> None:
    """Offsets without a commit fix the parallelism; with the old number, nothing is lost.

    As the message says, a fresh location takes the new number: the old one has no commit.
    """
    mended = job.base / "mended"
    job = job.but(processor=lambda: Failing(mended))
    job.feed.add(events_of(0), events_of(1))
    run_in_vain(job)
    assert (job.location_path / "offsets" / "0").exists()
    assert not list((job.location_path / "commits").glob("[0-9]*"))
    mended.touch()
    fresh = job.but(location="fresh", out="fresh-out")
    with partitions(job.spark, 4):
        with refused(
            ckpt.errors.PlanError, "2", "4", "fresh checkpointLocation", unchanged=job.base
        ):
            job.run()
        fresh.run()
    job.run()
    assert job.result() == fresh.result() == expected(job.feed.rows)
