"""A start, restore, rollback or drain changes nothing in the user's session, in any thread."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager

import pyspark_ckpt as ckpt
from tests.query.harness import DEADLINE, INLINE, RETAINED, Job, completed, newest_checkpoint, until
from tests.query.model import Reveal, events_of, expected, expected_after
from tests.query.session_conf import session_conf

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def conf_of(spark: SparkSession) -> str:
    """All conf of a session, in one call of the JVM."""
    return str(spark._jsparkSession.conf().getAll().toString())


@contextmanager
def conf_watched(spark: SparkSession) -> Iterator[None]:
    """Let another thread read the session's conf all the time."""
    before, seen, over = conf_of(spark), set(), threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.add(conf_of(spark))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert seen == {before}


class Noted(StreamingQueryListener):
    """A listener that notes its events, and the session's conf in the middle of every start."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.conf: list[str] = []
        self.heard: list[tuple[str, str]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.conf.append(conf_of(self.spark))
        self.heard.append(("started", str(event.id)))

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.heard.append(("terminated", str(event.id)))


@contextmanager
def listening(spark: SparkSession) -> Iterator[Noted]:
    noted = Noted(spark)
    spark.streams.addListener(noted)
    try:
        yield noted
    finally:
        spark.streams.removeListener(noted)


def two_operators(job: Job) -> DataFrame:
    """Return a plan that Spark refuses without conf that its check of the plan reads."""
    inner = job.but(uid="inner").process(ckpt.key_by(job.stream(), "k"))
    values = inner.selectExpr("k", "n AS v")
    return job.process(ckpt.key_by(values, "k"))


def test_conf_in_the_middle_of_a_start(job: Job) -> None:
    job.feed.add(events_of(0))
    job = job.but(plan=two_operators)
    before, session = conf_of(job.spark), SparkSession.getActiveSession()
    with listening(job.spark) as noted:
        job.run()
    assert noted.conf == [before]
    assert conf_of(job.spark) == before
    assert SparkSession.getActiveSession() is session
    with pytest.raises(PySparkException, match="Multiple applyInPandasWithState"):
        two_operators(job).writeStream.format("noop").start()


@pytest.mark.soak
def test_another_thread_sees_nothing(job: Job) -> None:
    """Of starts, a restore at another parallelism, a rollback and a drain."""
    job = job.using({INLINE: "0b", RETAINED: 10})
    spark = job.spark
    for epoch in range(2):
        job.feed.add(events_of(epoch))
        with conf_watched(spark):
            query = job.run()
    first = min(completed(query), key=lambda row: row.checkpoint_id)
    # Of the checkpoint's own settings the session has none any more.
    with session_conf(spark, {PARTITIONS: "3", PROVIDER: ROCKSDB}):
        other = job.but(location="loc3", out="out3")
        with conf_watched(spark):
            other.run(first.path)
        assert other.result() == expected_after(job.feed.rows, 20)
        with conf_watched(spark):
            ckpt.location(str(job.location_path)).rollback(f"chk-{first.checkpoint_id}")
    again = job.but(out="out2")
    with conf_watched(spark), again.running() as query:
        query.processAllAvailable()
        query.stopWithSavepoint(str(job.base / "savepoints"), drain=True)
    assert again.result() == expected_after(job.feed.rows, 20)


@pytest.mark.slow
def test_a_plain_query_that_starts_meanwhile(job: Job) -> None:
    """It gets the session's parallelism and state store, not the ones of a rollback."""
    job.feed.add(events_of(0))
    query = job.run()
    spark, bound = job.spark, []
    over = threading.Event()

    def start() -> None:
        while not over.is_set():
            location = job.base / f"plain{len(bound)}"
            counts = job.feed.stream(spark).groupBy("k").count()
            writer = counts.writeStream.format("noop").outputMode("complete")
            writer = writer.option("checkpointLocation", str(location))
            plain = writer.trigger(availableNow=True).start()
            plain.awaitTermination()
            conf = json.loads((location / "offsets" / "0").read_text().splitlines()[1])["conf"]
            bound.append((conf[PARTITIONS], conf[PROVIDER]))

    with session_conf(spark, {PARTITIONS: "3", PROVIDER: ROCKSDB}):
        thread = threading.Thread(target=start)
        thread.start()
        try:
            ckpt.location(str(job.location_path)).rollback(Path(newest_checkpoint(query)).name)
        finally:
            over.set()
            thread.join()
    assert set(bound) == {("3", ROCKSDB)}


@pytest.mark.slow
def test_the_streams_of_the_session(job: Job) -> None:
    """Queries are active, found and awaited there; old and new listeners hear of them."""
    spark, streams = job.spark, job.spark.streams
    listeners = len(streams._jsqm.listListeners())
    streams.resetTerminated()
    job.feed.add(events_of(0))
    with listening(spark) as before:
        query = job.writer().queryName("named").start()
        with listening(spark) as after:
            assert [each.id for each in streams.active] == [query.id]
            assert streams.get(query.id).name == "named"
            twin = job.but(location="loc2", out="out2").writer().queryName("named")
            with pytest.raises(PySparkException, match="named"):
                twin.start()
            assert [each.id for each in streams.active] == [query.id]
            assert not streams.awaitAnyTermination(0.01)
            query.stop()
            assert streams.awaitAnyTermination(DEADLINE)
            until(lambda: len(before.heard) > 1 and len(after.heard) > 0, "no event came")
    assert before.heard == [("started", query.id), ("terminated", query.id)]
    assert after.heard == [("terminated", query.id)]
    assert streams.active == []
    assert len(streams._jsqm.listListeners()) == listeners
    assert streams.awaitAnyTermination(0)
    streams.resetTerminated()
    job.feed.add(events_of(1))  # the first query may have taken all the input
    job.but(processor=Fails).start()
    with pytest.raises(PySparkException):
        streams.awaitAnyTermination(DEADLINE)
    streams.resetTerminated()


class Fails(Reveal):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        raise ValueError(key)


def test_views_of_the_session(job: Job) -> None:
    """A view that the plan reads, the table of the memory sink, the session in foreachBatch."""
    spark, seen = job.spark, []
    job.feed.add(events_of(0))
    job.feed.stream(spark).createOrReplaceTempView("events")
    df = job.process(ckpt.key_by(spark.sql("SELECT k, v FROM events"), "k"))
    writer = ckpt.write_stream(df).format("memory").queryName("kept").outputMode("append")
    query = writer.option("checkpointLocation", str(job.base / "a")).start()
    query.processAllAvailable()
    query.stop()
    assert sorted(spark.table("kept").collect()) == expected(job.feed.rows)

    def batch(rows: DataFrame, epoch: int) -> None:
        kept = rows.sparkSession.sql("SELECT * FROM kept")
        seen.append((rows.count(), kept.count()))

    writer = ckpt.write_stream(df).foreachBatch(batch).trigger(availableNow=True)
    writer.option("checkpointLocation", str(job.base / "b")).start().awaitTermination()
    assert seen == [(20, 20)]


def test_frames_of_rdds_stay_frames_of_the_session(job: Job) -> None:
    """PySpark lets ``toDF`` use the session object that was made last."""
    spark = job.spark.newSession()
    job = job.but(spark=spark)
    job.feed.add(events_of(0))
    job.run()
    frame = spark.sparkContext.parallelize([(1,)]).toDF(["n"])  # type: ignore[attr-defined]
    assert frame.sparkSession is spark


class Slow(Reveal):
    """A processor whose initial state waits for a write into a pipe."""

    def __init__(self, pipe: str) -> None:
        self.pipe = pipe

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        with Path(self.pipe).open() as pipe:
            pipe.read()


@pytest.mark.slow
def test_a_start_does_not_wait_for_another_ones_initial_state(job: Job) -> None:
    pipe = job.base / "pipe"
    os.mkfifo(pipe)
    initial = job.spark.createDataFrame([("k0", 1)], "k string, v long").groupBy("k")
    slow = job.but(
        processor=lambda: Slow(str(pipe)),
        location="slow",
        out="slow-out",
        arguments={"initialState": initial},
    )
    job.feed.add(events_of(0))
    seeding = threading.Thread(target=slow.run)
    seeding.start()
    try:
        until((job.base / "slow" / "metadata").exists, "the slow start did not begin")
        quick = threading.Thread(target=job.run)
        quick.start()
        quick.join(DEADLINE)
        assert not quick.is_alive()
        assert seeding.is_alive()
        assert job.result() == expected(job.feed.rows)
    finally:
        pipe.write_text("go on")
        seeding.join()


def test_a_spark_that_starts_queries_otherwise(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark that never reports a start: the query does not run without its settings."""
    job.feed.add(events_of(0))
    with monkeypatch.context() as patch:
        patch.setattr(StreamingQueryManager, "addListener", lambda *_: None)
        with pytest.raises(ckpt.errors.NotBuiltYetError, match=job.spark.version):
            job.start()
    assert job.spark.streams.active == []
