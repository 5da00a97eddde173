"""Queries without a checkpointLocation, into the sinks for which Spark creates one."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from tests.query.harness import Job, until
from tests.query.model import Reveal, events_of, expected
from tests.query.session_conf import session_conf
from tests.query.stored import metadata_of

ROOT = "spark.sql.streaming.checkpointLocation"


class Fails(Reveal):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        raise ValueError(key)


def writer(job: Job, sink: str, seen: list[Any]) -> ckpt.CheckpointedStreamWriter:
    started = ckpt.write_stream(job.df()).trigger(availableNow=True)
    if sink == "foreachBatch":
        return started.foreachBatch(lambda rows, epoch: seen.extend(rows.collect()))
    return started.format(sink).queryName("emitted")


def location_of(query: ckpt.CheckpointedQuery) -> Path:
    root = str(query._jsq.streamingQuery().resolvedCheckpointRoot())
    return Path(root.removeprefix("file:"))


def nobody_deletes(location: Path) -> bool:
    """Return whether the thread that decides about this query's location has ended."""
    return not any(thread.name.endswith(location.name) for thread in threading.enumerate())


def await_decision(location: Path) -> None:
    """Wait for the thread that decides about the location; warn of where it is if that is long."""
    try:
        until(lambda: nobody_deletes(location), "")
    except AssertionError:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = "\n".join(
            f"{names.get(ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
        )
        warnings.warn(f"slow to decide about {location}:\n{stacks}", stacklevel=2)
        until(lambda: nobody_deletes(location), f"a thread is left: {stacks}")


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["foreachBatch", "memory", "console", "noop"])
def test_a_temporary_one(job: Job, sink: str, caplog: pytest.LogCaptureFixture) -> None:
    """It comes with a warning and ends with the query; the next start gets another one."""
    job.feed.add(events_of(0))
    seen: list[Any] = []
    started = writer(job, sink, seen)
    with caplog.at_level(logging.WARNING, "pyspark_ckpt"):
        query = started.start()
    location = location_of(query)
    (warning,) = (each.getMessage() for each in caplog.records if "deleted" in each.getMessage())
    assert str(location) in warning
    assert "checkpointLocation" in warning
    query.awaitTermination()
    until(lambda: not location.exists(), f"{location} stays")
    rows = job.spark.table("emitted").collect() if sink == "memory" else seen
    if sink in ("foreachBatch", "memory"):
        assert sorted(rows) == expected(job.feed.rows)
    if sink == "foreachBatch":
        again = started.start()
        assert location_of(again) != location
        again.awaitTermination()
        assert sorted(seen) == sorted([*expected(job.feed.rows), *expected(job.feed.rows)])


def test_a_savepoint_at_its_end(job: Job) -> None:
    job.feed.add(events_of(0))
    query = writer(job, "noop", []).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    savepoint = query.stopWithSavepoint(str(job.base / "savepoints"))
    assert metadata_of(savepoint.path).epoch == 0
    location = location_of(query)
    until(lambda: not location.exists(), f"{location} stays")


def test_nothing_is_claimed_for_a_query_whose_location_is_deleted(job: Job) -> None:
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints"))
    fork = writer(job, "noop", []).trigger(availableNow=True)
    with pytest.raises(ckpt.errors.ConfigurationError, match="its location is temporary"):
        fork.restoreFrom(savepoint.path, claimMode="CLAIM").start()
    query = fork.restoreFrom(savepoint.path).start()
    query.awaitTermination()
    assert Path(savepoint.path, "_metadata").exists()


@pytest.mark.soak
def test_it_stays_after_an_error(job: Job) -> None:
    """It stays, as Spark's does, unless Spark's setting says otherwise."""
    job.feed.add(events_of(0))
    failing = job.but(processor=Fails)
    for forced in (False, True):
        key = "spark.sql.streaming.forceDeleteTempCheckpointLocation"
        with session_conf(job.spark, {key: str(forced).lower()}):
            query = writer(failing, "noop", []).start()
        location = location_of(query)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
        if forced:
            until(lambda path=location: not path.exists(), f"{location} stays")
        else:
            await_decision(location)
            assert location.exists()


def test_below_spark_s_root(job: Job) -> None:
    """A query without a name gets its own directory, which stays."""
    job.feed.add(events_of(0))
    root = job.base / "root"
    query: ckpt.CheckpointedQuery
    seen: list[Any] = []
    with session_conf(job.spark, {ROOT: str(root)}):
        query = writer(job, "foreachBatch", seen).start()
        query.awaitTermination()
    assert location_of(query).parent == root
    assert location_of(query).exists()
    assert sorted(seen) == expected(job.feed.rows)


def test_hadoop_s_default_file_system_is_another_one(job: Job) -> None:
    """Spark would look for a path without a scheme there, and this library on the disk."""
    job.feed.add(events_of(0))
    of_hadoop = {
        "fs.defaultFS": "viewfs://cluster/",
        "fs.viewfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystem",
        "fs.AbstractFileSystem.viewfs.impl": "org.apache.hadoop.fs.viewfs.ViewFs",
        f"fs.viewfs.mounttable.cluster.link.{job.feed.path}": f"file://{job.feed.path}",
    }
    seen: list[Any] = []
    with session_conf(job.spark, of_hadoop):
        query = writer(job, "foreachBatch", seen).start()
        query.awaitTermination()
    assert sorted(seen) == expected(job.feed.rows)


def test_other_sinks_need_one(job: Job) -> None:
    def parquet(df: DataFrame) -> ckpt.CheckpointedStreamWriter:
        return ckpt.write_stream(df).format("parquet").option("path", str(job.base / "out"))

    with pytest.raises(ckpt.errors.ConfigurationError, match="checkpointLocation"):
        parquet(job.df()).start()
    with pytest.raises(ckpt.errors.ConfigurationError, match="checkpointLocation"):
        ckpt.write_stream(job.df()).foreachBatch(print).toTable("nowhere")
