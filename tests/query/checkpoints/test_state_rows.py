"""Handles in Spark's state store, read on the driver and by a Spark job."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.checkpoint import handles as committed
from pyspark_ckpt.checkpoint.handles import committed_handles, read_handles
from pyspark_ckpt.formats.handle import decode_handle
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.spark import state_reader as state_rows
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.state_reader import encoded_handles, written_handles
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import Job, completed
from tests.query.model import events_of

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGES = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"


def log_of(job: Job) -> SparkLog:
    return SparkLog(LocalStorage(job.location_path))


@pytest.fixture(params=["HDFSBacked", "RocksDB", "RocksDB with changes"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def session(spark: SparkSession, store: str) -> Iterator[SparkSession]:
    """A session whose state store is not that of the first one."""
    session = spark.newSession()
    session.conf.set(PROVIDER, f"{PACKAGE}.{store.split()[0]}StateStoreProvider")
    if "with changes" in store:
        session.conf.set(CHANGES, "true")
    yield session
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@pytest.mark.wide_variants
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

    def number_of_jobs() -> int:
        session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # the tracker hears of them
        return len(session.sparkContext.statusTracker().getJobIdsForGroup(group))

    session.sparkContext.setJobGroup(group, "none is expected")
    try:
        read = sorted(encoded_handles(session, str(job.location_path), 1, 0, 2))
        written = sorted(written_handles(session, str(job.location_path), 1, 0))
        assert number_of_jobs() == 0
        monkeypatch.setattr(state_rows, "FEW_PARTITIONS", 1)
        assert sorted(encoded_handles(session, str(job.location_path), 1, 0, 2)) == read
        assert number_of_jobs() == 1
    finally:
        session.sparkContext._jsc.clearJobGroup()
    assert written == ([] if store == "RocksDB" else read)
    handles = list(map(decode_handle, read))
    assert sorted(handle.subtask for handle in handles) == [0, 1]
    assert {handle.epoch for handle in handles} == {1}


def test_an_epoch_that_spark_does_not_have(job: Job) -> None:
    job.feed.add(events_of(0))
    job.run()
    with pytest.raises(PySparkException):
        encoded_handles(job.spark, str(job.location_path), 7, 0, 2)


def test_the_active_session_stays(job: Job) -> None:
    job.feed.add(events_of(0))
    job.run()
    active = SparkSession.getActiveSession()
    assert active is not None
    encoded_handles(job.spark.newSession(), str(job.location_path), 0, 0, 2)
    after = SparkSession.getActiveSession()
    assert after is not None
    assert after._jsparkSession.equals(active._jsparkSession)


@pytest.mark.wide_variants
def test_a_checkpoint_has_the_handles_of_its_epoch(
    job: Job, session: SparkSession, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def written(spark: SparkSession, location: str, epoch: int, operator_id: int) -> list[bytes]:
        asked.append(epoch)
        return written_handles(spark, location, epoch, operator_id)

    monkeypatch.setattr(committed, "written_handles", written)
    job.feed.add(*map(events_of, range(3)))
    query = job.but(spark=session).run()
    [checkpoint] = [row for row in completed(query) if row.epoch == 2]
    read = read_handles(session, log_of(job), 2, 0, 2)
    metadata = read_metadata(LocalStorage(Path(checkpoint.path)))
    stored = [msgspec.structs.replace(each, phases=(), slow_keys=None) for each in read]
    assert list(metadata.operators[0].handles) == stored
    assert asked == ([2] if store == "HDFSBacked" else [])


def test_a_subtask_without_rows_has_the_handle_that_it_had(job: Job, spark: SparkSession) -> None:
    keys = [f"key-{i}" for i in range(20)]
    job.feed.add([(key, 1) for key in keys], [(keys[0], 2)])
    query = job.run()
    place = (spark, str(job.location_path), 1, 0)
    [written] = map(decode_handle, written_handles(*place))
    handles = committed_handles(spark, query._coordinator._files, 1, 0)
    assert handles == tuple(read_handles(spark, log_of(job), 1, 0, 2))
    assert sorted((handle.subtask, handle.epoch) for handle in handles) == sorted(
        [(written.subtask, 1), (1 - written.subtask, 0)]
    )


def test_changes_with_a_removed_state_do_not_count(job: Job, spark: SparkSession) -> None:
    def toggle(key: tuple[str], rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[Any]:
        if state.exists:
            state.remove()
        else:
            state.update((key[0].encode(),))
        yield from ()

    job.feed.add([("a", 1)], [("a", 1), ("b", 1)])
    location = str(job.location_path)
    (
        job.stream()
        .groupBy("k")
        .applyInPandasWithState(toggle, "k string", "handle binary", "append", "NoTimeout")
        .writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", location)
        .start()
        .awaitTermination()
    )
    assert written_handles(spark, location, 0, 0) == [b"a"]
    assert written_handles(spark, location, 1, 0) == []
    assert encoded_handles(spark, location, 1, 0, None) == [b"b"]


@pytest.mark.parametrize("size", [0, 1, 3999, 4000, 4001, 30_000])
def test_bytes_come_over_as_they_are(spark: SparkSession, size: int) -> None:
    unlucky = rb"\n\r\\" + b"\n\r\\\n\0" + bytes(range(256))
    sent = (unlucky * (size // len(unlucky) + 1))[-size:] if size else b""
    text = spark._jvm.org.apache.spark.unsafe.types.UTF8String.fromBytes(sent)  # type: ignore[union-attr]
    assert state_rows._bytes_of(spark, text) == sent
