"""Handles as Spark's state store has them, read on the driver and by a Spark job."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint import state_rows
from pyspark_ckpt.checkpoint.committed_handles import committed_handles, read_handles
from pyspark_ckpt.checkpoint.state_rows import encoded_handles, written_handles
from pyspark_ckpt.on_disk.handle import decode_handle
from tests.query.harness import Job
from tests.query.model import events_of

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGES = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"


@pytest.fixture(params=["HDFSBacked", "RocksDB", "RocksDB with changes"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def session(spark: SparkSession, store: str) -> Iterator[SparkSession]:
    """A session whose state store is not that of the first one."""
    session = spark.newSession()
    session.conf.set(PROVIDER, f"{PACKAGE}.{store.split()[0]}StateStoreProvider")
    session.conf.set(CHANGES, str("with changes" in store).lower())
    yield session
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@pytest.mark.parametrize("timed", [False, True])
def test_the_driver_reads_what_a_job_reads(
    job: Job, session: SparkSession, store: str, timed: bool, monkeypatch: pytest.MonkeyPatch
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
        written = sorted(written_handles(session, str(job.location_path), 1, 0))
        assert not tracker.getJobIdsForGroup(group)
        monkeypatch.setattr(state_rows, "FEW_PARTITIONS", 1)
        assert sorted(encoded_handles(session, str(job.location_path), 1, 0)) == read
        assert len(tracker.getJobIdsForGroup(group)) == 1
    finally:
        session.sparkContext._jsc.clearJobGroup()
    assert written == ([] if store == "RocksDB" else read)
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


def test_a_subtask_without_rows_has_the_handle_that_it_had(job: Job, spark: SparkSession) -> None:
    keys = [f"key-{i}" for i in range(20)]
    job.feed.add([(key, 1) for key in keys], [(keys[0], 2)])
    query = job.run()
    [(operator_id, operator)] = query._coordinator._files.operators.ours.items()
    place = (spark, str(job.location_path), 1, operator_id)
    [written] = map(decode_handle, written_handles(*place))
    handles = committed_handles(*place[:3], written.query_id, operator, operator_id)
    assert handles == tuple(read_handles(*place))
    assert sorted((handle.subtask, handle.epoch) for handle in handles) == sorted(
        [(written.subtask, 1), (1 - written.subtask, 0)]
    )


def test_a_state_store_without_changes_though_the_session_has_others(
    job: Job, session: SparkSession, store: str
) -> None:
    job.feed.add(events_of(0))
    job.but(spark=session).run()
    session.conf.set(PROVIDER, f"{PACKAGE}.HDFSBackedStateStoreProvider")
    written = written_handles(session, str(job.location_path), 0, 0)
    assert len(written) == (0 if store == "RocksDB" else 2)
    assert len(encoded_handles(session, str(job.location_path), 0, 0)) == 2


@pytest.mark.parametrize("size", [0, 1, 3999, 4000, 4001, 30_000])
def test_bytes_come_over_as_they_are(spark: SparkSession, size: int) -> None:
    sent = bytes(i * 7 % 256 for i in range(size))
    text = spark._jvm.org.apache.spark.unsafe.types.UTF8String.fromBytes(sent)  # type: ignore[union-attr]
    assert state_rows._bytes_of(spark, text) == sent
