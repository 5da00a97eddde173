"""Handles as Spark's state store has them, read on the driver and by a Spark job."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint import state_rows
from pyspark_ckpt.checkpoint.state_rows import encoded_handles
from pyspark_ckpt.on_disk.handle import decode_handle
from tests.query.harness import Job
from tests.query.model import events_of

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"


@pytest.fixture(params=["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session whose state store is not that of the first one."""
    session = spark.newSession()
    session.conf.set(PROVIDER, f"{PACKAGE}.{request.param}")
    yield session
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@pytest.mark.parametrize("timed", [False, True])
def test_the_driver_reads_what_a_job_reads(
    job: Job, session: SparkSession, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job.but(spark=session, time_mode="ProcessingTime" if timed else "None")
    job.feed.add(*map(events_of, range(3)))
    job.run()
    other = session.newSession()  # active, but not the one to read with
    other.sql("SELECT 1")
    group = secrets.token_hex(8)
    tracker = session.sparkContext.statusTracker()
    session.sparkContext.setJobGroup(group, "none is expected")
    try:
        read = sorted(encoded_handles(session, str(job.location_path), 1, 0))
        assert not tracker.getJobIdsForGroup(group)
        monkeypatch.setattr(state_rows, "FEW_PARTITIONS", 1)
        assert sorted(encoded_handles(session, str(job.location_path), 1, 0)) == read
        assert len(tracker.getJobIdsForGroup(group)) == 1
    finally:
        session.sparkContext._jsc.clearJobGroup()
    handles = list(map(decode_handle, read))
    assert sorted(handle.subtask for handle in handles) == [0, 1]
    assert {handle.epoch for handle in handles} == {1}


def test_an_epoch_that_spark_has_not_got(job: Job) -> None:
    job.feed.add(events_of(0))
    job.run()
    with pytest.raises(PySparkException):
        encoded_handles(job.spark, str(job.location_path), 7, 0)


def test_the_active_session_stays(job: Job) -> None:
    job.feed.add(events_of(0))
    job.run()
    active = SparkSession.getActiveSession()
    assert active is not None
    encoded_handles(job.spark.newSession(), str(job.location_path), 0, 0)
    after = SparkSession.getActiveSession()
    assert after is not None
    assert after._jsparkSession.equals(active._jsparkSession)
