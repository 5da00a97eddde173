"""What is planned and not there yet raises NotBuiltYetError, which names it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from tests.query.harness import Job, gist, refused
from tests.query.model import Count, events_of

OUTPUT = "k string, n long"


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Count, output=OUTPUT)


def transform(job: Job, **arguments: Any) -> DataFrame:
    wanted = {
        "statefulProcessor": Count(),
        "outputStructType": OUTPUT,
        "outputMode": "Append",
        "timeMode": "None",
        "uid": "op",
        **arguments,
    }
    return ckpt.key_by(job.feed.stream(job.spark), "k").transformWithState(**wanted)


@pytest.mark.parametrize("mode", ["ProcessingTime", "EventTime", "processingtime", "eventtime"])
def test_time_modes(job: Job, mode: str) -> None:
    """Timers are not there, so only timeMode None is."""
    with refused(ckpt.NotBuiltYetError, mode, "timeMode", unchanged=job.base) as caught:
        transform(job, timeMode=mode)
    assert caught.errisinstance(NotImplementedError)


def test_initial_state(job: Job) -> None:
    """A state to begin with cannot be given yet."""
    initial = job.spark.createDataFrame([("a", 1)], OUTPUT).groupBy("k")
    with refused(ckpt.NotBuiltYetError, "initialState", unchanged=job.base):
        transform(job, initialState=initial)


def test_event_time_column(job: Job) -> None:
    """An event time column for operators that follow cannot be given yet."""
    with refused(ckpt.NotBuiltYetError, "eventTimeColumnName", unchanged=job.base):
        transform(job, eventTimeColumnName="n")


class WithTtl(Count):
    """Count whose value state, or list or map state, would end."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def init(self, handle: Any) -> None:
        super().init(handle)
        schemas = ["n long", "n long"] if self.kind == "Map" else ["n long"]
        getattr(handle, f"get{self.kind}State")("other", *schemas, ttlDurationMs=1000)


class DeletesState(Count):
    """Count that gives up a state of an older version."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        handle.deleteIfExists("old")


class Timers(Count):
    """Emit for each method about timers which error it raises."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.methods = {
            "registerTimer": lambda: handle.registerTimer(1000),
            "deleteTimer": lambda: handle.deleteTimer(1000),
            "listTimers": lambda: list(handle.listTimers()),
        }

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for name, method in self.methods.items():
            with pytest.raises(NotImplementedError) as caught:
                method()
            yield Row(name, f"{caught.typename}: {caught.value}")


def failure(job: Job) -> str:
    """Text of the error of building or running the query."""
    job.feed.add(events_of(0))
    with pytest.raises((ckpt.NotBuiltYetError, StreamingQueryException)) as caught:
        job.run()
    print(gist(caught.value))
    assert job.result() == []
    return str(caught.value)


@pytest.mark.parametrize("kind", ["Value", "List", "Map"])
def test_time_to_live(job: Job, kind: str) -> None:
    """A state that ends by itself is refused, not kept for ever."""
    message = failure(job.but(processor=lambda: WithTtl(kind)))
    assert "ttlDurationMs" in message
    assert "NotBuiltYetError" in message or "not built yet" in message


def test_delete_if_exists(job: Job) -> None:
    """A state cannot be deleted for all keys at once yet."""
    message = failure(job.but(processor=DeletesState))
    assert "deleteIfExists" in message
    assert "not built yet" in message


def test_timers(job: Job) -> None:
    """The handle's methods about timers say that they are not there."""
    job.feed.add([("a", 1)])
    job = job.but(processor=Timers, output="name string, message string")
    job.run()
    messages = dict(job.result())
    assert set(messages) == {"registerTimer", "deleteTimer", "listTimers"}
    for name, message in messages.items():
        assert message.startswith("NotBuiltYetError: ")
        assert name in message


def test_batch_data_frame(job: Job) -> None:
    """Only streams can be keyed."""
    batch = job.spark.createDataFrame([("a", 1)], "k string, v long")
    with refused(ckpt.NotBuiltYetError, "batch", unchanged=job.base):
        ckpt.key_by(batch, "k")


def test_columns_of_types_that_are_not_built(job: Job) -> None:
    """Calendar intervals are not there, neither in input nor in output; the message names them."""
    df = job.feed.stream(job.spark).withColumn("nested", F.expr("array(make_interval(1))"))
    with refused(ckpt.NotBuiltYetError, "nested", "interval", unchanged=job.base):
        ckpt.key_by(df, "k")
    with refused(ckpt.NotBuiltYetError, "nested", "interval", unchanged=job.base):
        job.but(output="nested array<interval>").df()


def start(job: Job, df: DataFrame, location: str = "") -> None:
    writer = ckpt.write_stream(df).format("noop").outputMode("append")
    writer.option("checkpointLocation", location or str(job.location_path)).start()


def test_two_operators(job: Job) -> None:
    """One keyed operator to a query."""
    both = job.df().union(job.but(uid="second").df())
    with refused(ckpt.NotBuiltYetError, "op", "second", "operators", unchanged=job.base):
        start(job, both)


@pytest.mark.parametrize("where", ["before", "after"])
def test_aggregation_of_spark(job: Job, where: str) -> None:
    """State of Spark's own operators is in no checkpoint, so they are refused."""
    if where == "after":
        df = job.df().dropDuplicates(["k", "n"])
    else:
        rows = job.feed.stream(job.spark).dropDuplicates(["k", "v"])
        keyed = ckpt.key_by(rows, "k")
        df = keyed.transformWithState(Count(), OUTPUT, "Append", "None", uid="op")
    with refused(ckpt.NotBuiltYetError, "stateful", unchanged=job.base):
        start(job, df)


def test_aggregation_in_update_mode(job: Job) -> None:
    """groupBy().count() after the operator is refused as well."""
    counts = transform(job, outputMode="Update").groupBy("k").count()
    with refused(ckpt.NotBuiltYetError, "aggregat", unchanged=job.base):
        writer = ckpt.write_stream(counts).format("noop").outputMode("update")
        writer.option("checkpointLocation", str(job.location_path)).start()


@pytest.mark.parametrize("scheme", ["s3a", "hdfs"])
def test_locations_that_are_not_local(job: Job, scheme: str) -> None:
    """Only local file systems hold checkpoints so far."""
    location = f"{scheme}://bucket/loc"
    with refused(ckpt.NotBuiltYetError, location, "checkpointLocation", unchanged=job.base):
        start(job, job.df(), location)


def test_directories_that_are_not_local(job: Job) -> None:
    """The same goes for the other directories, and for what a query is restored from."""
    remote = "s3a://bucket/dir"
    for key in ("dir", "savepoint-dir"):
        key = f"spark.ckpt.execution.checkpointing.{key}"
        with refused(ckpt.CkptError, remote, unchanged=job.base) as caught:
            job.using({key: remote}).start()
        assert caught.errisinstance(ckpt.NotBuiltYetError)
    with refused(ckpt.NotBuiltYetError, remote, unchanged=job.base):
        job.start(restore=remote)
