"""Spark's newer ways to run a query: refused by name, by Spark or by this library."""

from __future__ import annotations

from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException

import pyspark_ckpt as ckpt
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import Job, gist, newest_checkpoint, refused
from tests.query.model import Count, counted, counted_after, events_of, sequences
from tests.query.session_conf import session_conf

PARALLELISM = "spark.sql.shuffle.partitions"
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))


@pytest.fixture
def job(job: Job) -> Job:
    job.feed.add(events_of(0))
    return job.but(processor=Count, output="k string, n long")


@pytest.mark.soak
@pytest.mark.skipif(VERSION < (4, 2), reason="Spark repartitions state since 4.2")
def test_a_location_that_spark_has_repartitioned(job: Job) -> None:
    """Neither parallelism starts there; the newest checkpoint restores at the new one."""
    spark = job.spark
    with session_conf(spark, ROCKSDB):
        checkpoint = newest_checkpoint(job.run())
        before = int(spark.conf.get(PARALLELISM))
        spark._streamingCheckpointManager.repartition(str(job.location_path), before + 1)
        log = SparkLog(LocalStorage(job.location_path))
        assert log.offsets_entry(log.begun_epoch()).parallelism == before + 1
        for parallelism in (before, before + 1):
            with session_conf(spark, {PARALLELISM: str(parallelism)}):
                with refused(
                    ckpt.errors.PlanError, "repartitioning", f"from {before} to {before + 1}",
                    "restoreFrom", unchanged=job.location_path,
                ):  # fmt: skip
                    job.start()
        job.feed.add(events_of(1))
        with session_conf(spark, {PARALLELISM: str(before + 1)}):
            fork = job.but(location="loc2", out="out2")
            fork.run(checkpoint)
        rows = [*job.result(), *fork.result()]
    assert sequences(rows) == counted(job.feed.rows)


@pytest.mark.soak
def test_format_2_of_the_state_store(job: Job) -> None:
    """A restart and a fork read the files whose names have ids."""
    version = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    with session_conf(job.spark, {**ROCKSDB, version: "2"}):
        job.run()
        job.feed.add(events_of(1))
        checkpoint = newest_checkpoint(job.run())
        assert sequences(job.result()) == counted(job.feed.rows)
        assert (job.location_path / "commits" / "1").read_text().startswith("v2\n")
        before = len(job.feed.rows)
        fork = job.but(location="loc2", out="out2")
        job.feed.add(events_of(2))
        fork.run(checkpoint)
        assert sequences(fork.result()) == counted_after(job.feed.rows, before)


def run(writer: ckpt.CheckpointedStreamWriter) -> None:
    query = writer.start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "trigger", "says"),
    [
        ({"asyncProgressTrackingEnabled": "true"}, {}, "stateful"),
        ({}, {"continuous": "1 second"}, "continuous"),
        pytest.param(
            {}, {"realTime": "5 minutes"}, "real-time",
            marks=pytest.mark.skipif(VERSION < (4, 3), reason="PySpark has the trigger since 4.3"),
        ),
    ],
    ids=["async progress", "continuous", "real-time"],
)  # fmt: skip
def test_modes_without_stateful_operators(
    job: Job, options: dict[str, str], trigger: dict[str, Any], says: str
) -> None:
    """Spark's own error leaves start() or ends the query before its first epoch."""
    writer = ckpt.write_stream(job.df()).format("console").outputMode("append")
    writer = writer.option("checkpointLocation", str(job.location_path)).options(**options)
    with pytest.raises(PySparkException) as caught:
        run(writer.trigger(**trigger) if trigger else writer)
    print(gist(caught.value))
    assert says in str(caught.value).lower().replace("_", "-")
    assert not list(job.location_path.glob("commits/*"))
