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
from pyspark_ckpt.spark.state_changes import handles_in_changes
from pyspark_ckpt.spark.state_reader import encoded_handles
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import INTERVAL, Job, completed
from tests.query.model import events_of

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGES = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"


def log_of(job: Job) -> SparkLog:
    return SparkLog(LocalStorage(job.location_path))


def in_changes(job: Job, epoch: int) -> list[list[bytes] | None]:
    """What the files of an epoch's changes have, by partition."""
    location = LocalStorage(job.location_path)
    return [handles_in_changes(location, 0, partition, epoch) for partition in range(2)]


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


@pytest.mark.soak_variants
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
        written = in_changes(job, 1)
        assert number_of_jobs() == 0
        monkeypatch.setattr(state_rows, "FEW_PARTITIONS", 1)
        assert sorted(encoded_handles(session, str(job.location_path), 1, 0, 2)) == read
        assert number_of_jobs() == 1
    finally:
        session.sparkContext._jsc.clearJobGroup()
    handles = sorted(map(decode_handle, read), key=lambda handle: handle.subtask)
    if store == "HDFSBacked":
        assert [[decode_handle(each) for each in found or ()] for found in written] == [
            [handle] for handle in handles
        ]
    else:
        assert written == [None, None]
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


@pytest.mark.soak_variants
def test_a_checkpoint_has_the_handles_of_its_epoch(
    job: Job, session: SparkSession, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def read_by_spark(spark: SparkSession, location: str, epoch: int, *more: Any) -> list[bytes]:
        asked.append(epoch)
        return encoded_handles(spark, location, epoch, *more)

    monkeypatch.setattr(committed, "encoded_handles", read_by_spark)
    job.feed.add(*map(events_of, range(3)))
    query = job.but(spark=session).run()
    [checkpoint] = [row for row in completed(query) if row.epoch == 2]
    read = read_handles(session, log_of(job), 2, 0, 2)
    metadata = read_metadata(LocalStorage(Path(checkpoint.path)))
    stored = [msgspec.structs.replace(each, phases=(), slow_keys=None) for each in read]
    assert list(metadata.operators[0].handles) == stored
    assert (2 in asked[:-1]) == (store != "HDFSBacked")  # the last one is the test's


def test_a_subtask_without_rows_has_the_handle_that_it_had(job: Job, spark: SparkSession) -> None:
    keys = [f"key-{i}" for i in range(20)]
    job.feed.add([(key, 1) for key in keys], [(keys[0], 2)])
    query = job.run()
    [written] = [decode_handle(each) for found in in_changes(job, 1) for each in found or ()]
    handles = committed_handles(spark, query._coordinator._files, 1, 0)
    assert handles == tuple(read_handles(spark, log_of(job), 1, 0, 2))
    assert sorted((handle.subtask, handle.epoch) for handle in handles) == sorted(
        [(written.subtask, 1), (1 - written.subtask, 0)]
    )


@pytest.mark.soak
def test_spark_is_not_asked_again_for_subtasks_without_rows(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their handles are known from the checkpoint before; after many epochs Spark is asked.

    It is not asked for subtasks that have just written, however long ago the last checkpoint was.
    """
    monkeypatch.setattr(committed, "_MOST_FILES", 3)
    asked: list[int] = []

    def read_by_spark(spark: SparkSession, location: str, epoch: int, *more: Any) -> list[bytes]:
        asked.append(epoch)
        return encoded_handles(spark, location, epoch, *more)

    monkeypatch.setattr(committed, "encoded_handles", read_by_spark)
    job = job.using({INTERVAL: "1h"})
    with job.running() as query:
        of_all = {0, 12}
        steps = [[], [], None, [], None, None, None, [7], None, None, None, None, []]
        for epoch, expected in enumerate(steps):
            job.feed.add([(f"key-{i}", epoch) for i in range(20 if epoch in of_all else 1)])
            query.processAllAvailable()
            if expected is None:  # no checkpoint, so the epoch's handles are not read
                continue
            asked.clear()
            metadata = read_metadata(LocalStorage(Path(query.triggerCheckpoint().path)))
            assert asked == ([] if not expected else [epoch])
            read = read_handles(spark, log_of(job), epoch, 0, 2)
            stored = [msgspec.structs.replace(each, phases=(), slow_keys=None) for each in read]
            assert list(metadata.operators[0].handles) == stored
            assert {handle.epoch for handle in read} == {
                epoch,
                *({0} - {epoch} if epoch not in of_all else ()),
            }


def test_changes_are_read_or_refused(job: Job) -> None:
    """No damage of a file gives other handles than Spark wrote."""
    job.feed.add(events_of(0), events_of(1))
    job.run()
    whole = in_changes(job, 1)
    partition = next(place for place, found in enumerate(whole) if found)
    path = job.location_path / "state" / "0" / str(partition) / "2.delta"
    data = path.read_bytes()
    refused = 0
    for damaged in (b"", data[:-30], b"x" + data[1:], data + b"x", data[:60] + data[70:]):
        path.write_bytes(damaged)
        assert in_changes(job, 1)[partition] is None
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x04]) + data[place + 1 :])
        found = in_changes(job, 1)[partition]
        assert found in (None, whole[partition])
        refused += found is None
    assert refused > len(data) * 0.9


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
    assert sorted(map(str, in_changes(job, 0))) == ["[]", "[b'a']"]
    assert None in in_changes(job, 1)
    assert encoded_handles(spark, location, 1, 0, None) == [b"b"]


@pytest.mark.parametrize("size", [0, 1, 3999, 4000, 4001, 30_000])
def test_bytes_come_over_as_they_are(spark: SparkSession, size: int) -> None:
    unlucky = rb"\n\r\\" + b"\n\r\\\n\0" + bytes(range(256))
    sent = (unlucky * (size // len(unlucky) + 1))[-size:] if size else b""
    text = spark._jvm.org.apache.spark.unsafe.types.UTF8String.fromBytes(sent)  # type: ignore[union-attr]
    assert state_rows._bytes_of(spark, text) == sent
