"""Parallelism that was not set, and sessions with settings of Spark that other queries need."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.settings import PARALLELISM
from tests.query.harness import Job, newest_checkpoint, refused
from tests.query.model import events_of, expected, expected_after
from tests.query.session_conf import session_conf

PARTITIONS = "spark.sql.shuffle.partitions"
CORES = 2  # of the session of tests
STORE = "spark.sql.streaming.stateStore."
AVRO = {
    f"{STORE}encodingFormat": "avro",
    f"{STORE}providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@contextmanager
def nobody_set_it(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(PARTITIONS)
    spark.conf.unset(PARTITIONS)
    assert spark.conf.get(PARTITIONS) == "200"
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS, before)


def bound(job: Job) -> int:
    """The number of partitions that Spark wrote down for the query."""
    text = (job.location_path / "offsets" / "0").read_text().splitlines()[1]
    return int(json.loads(text)["conf"][PARTITIONS])


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "parallelism" in each.getMessage()]


@pytest.mark.slow
def test_parallelism_is_not_set(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """It comes from the cores, and one log line says so; plain queries keep Spark's default."""
    job.feed.add(events_of(0))
    with nobody_set_it(job.spark), caplog.at_level(logging.INFO, "pyspark_ckpt"):
        query = job.run()
        assert job.spark.conf.get(PARTITIONS) == "200"
        (line,) = lines(caplog)
        assert f"parallelism {CORES}" in line
        assert PARALLELISM in line
        fork = job.but(location="loc2", out="out2")
        fork.run(newest_checkpoint(query))
    assert bound(job) == CORES
    assert job.result() == expected(job.feed.rows)
    caplog.clear()
    job.feed.add(events_of(1))
    job.run()
    assert lines(caplog) == []
    assert job.result() == expected(job.feed.rows)


def test_a_key_of_its_own(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """The key wins over Spark's, and the error of a location with another number names it."""
    job.feed.add(events_of(0))
    with session_conf(job.spark, {PARALLELISM: "3"}):
        job.run()
        assert bound(job) == 3
        with session_conf(job.spark, {PARALLELISM: "4"}):
            with refused(ckpt.errors.PlanError, f"set {PARALLELISM} to 3", unchanged=job.base):
                job.run()
    assert job.result() == expected(job.feed.rows)
    late = f"the writer's option {PARALLELISM} = 5 comes too late. Set it in the session before"
    conf = session_conf(job.spark, {PARTITIONS: "3"})
    for set_by, by in ((conf, PARTITIONS), (nobody_set_it(job.spark), "by default")):
        with set_by:
            with refused(ckpt.errors.PlanError, f"({by}): {late} key_by", unchanged=job.base):
                job.using({PARALLELISM: "5"}).run()
    with session_conf(job.spark, {PARALLELISM: "no"}):
        with pytest.raises(ckpt.errors.ConfigurationError, match=PARALLELISM):
            job.df()


@pytest.mark.slow
def test_far_too_many(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    many = 4 * CORES + 1
    job.feed.add(events_of(0))
    with session_conf(job.spark, {PARTITIONS: str(many - 1)}):
        job.run()
        assert lines(caplog) == []
    with session_conf(job.spark, {PARTITIONS: str(many)}):
        job.but(location="loc2", out="out2").run()
    (line,) = lines(caplog)
    assert str(many) in line


@pytest.mark.soak
def test_a_session_that_stores_state_as_avro(job: Job) -> None:
    """Users of transformWithState have it: start, restart, restore, checkpoints, rollback."""
    job.feed.add(events_of(0))
    with session_conf(job.spark, AVRO):
        query = job.run()
        checkpoint = newest_checkpoint(query)
        assert query.lastOperatorProgress[0]["numInputRows"] == 20
        job.feed.add(events_of(1))
        job.run()
        fork = job.but(location="loc2", out="out2")
        fork.run(checkpoint)
        name = checkpoint.rpartition("/")[2]
        ckpt.location(str(job.location_path)).rollback(name)
        job.but(out="out3").run()
        assert job.spark.conf.get(f"{STORE}encodingFormat") == "avro"
    assert job.result() == expected(job.feed.rows)
    for other in (fork, job.but(out="out3")):
        assert other.result() == expected_after(job.feed.rows, 20)
