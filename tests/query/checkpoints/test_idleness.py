"""How long a query has had nothing to do, by Spark's progress events."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.checkpoint.epoch_race import Standing
from pyspark_ckpt.spark.query import idle_ms
from tests.query.harness import DEADLINE, Feed, Job, until
from tests.query.model import events_of
from tests.query.session_conf import session_conf

NO_DATA_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


def second_epoch_held() -> tuple[
    threading.Event, threading.Event, Callable[[DataFrame, int], None]
]:
    """Return an event for the second epoch's begin, one that lets it end, and the sink."""
    in_epoch, may_end = threading.Event(), threading.Event()

    def sink(_: DataFrame, epoch: int) -> None:
        if epoch == 1:
            in_epoch.set()
            assert may_end.wait(DEADLINE)

    return in_epoch, may_end, sink


def test_busy_then_idle_then_stopped(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    in_epoch, may_end, sink = second_epoch_held()
    feed.add(*map(events_of, range(2)))
    writer = feed.stream(spark).writeStream.foreachBatch(sink)
    with session_conf(spark, {NO_DATA_INTERVAL: "600000"}):
        query = writer.option("checkpointLocation", str(tmp_path / "loc")).start()
    try:
        assert in_epoch.wait(DEADLINE)
        assert idle_ms(query) == 0
        may_end.set()
        query.processAllAvailable()
        until(lambda: 0 < idle_ms(query) < DEADLINE * 1000, "it never waited for input")
        before = idle_ms(query)
        until(lambda: idle_ms(query) > before, "waiting took no time")
    finally:
        may_end.set()
        query.stop()
    assert idle_ms(query) == math.inf


def test_spark_reports_that_nothing_came(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    in_epoch, may_end, sink = second_epoch_held()
    with session_conf(spark, {NO_DATA_INTERVAL: "50"}):
        feed.add(events_of(0))
        writer = feed.stream(spark).writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(tmp_path / "loc")).start()
        try:
            query.processAllAvailable()
            until(lambda: idle_ms(query) == math.inf, "Spark reported nothing")
            feed.add(events_of(1))
            assert in_epoch.wait(DEADLINE)
            assert idle_ms(query) == 0
        finally:
            may_end.set()
            query.stop()


@pytest.mark.slow
def test_an_idle_query_is_still_the_one_that_committed_its_epochs(job: Job) -> None:
    """Spark's report that nothing came names no epoch of the query, but its next one."""
    job.feed.add(events_of(0))
    with session_conf(job.spark, {NO_DATA_INTERVAL: "1000"}):
        query = job.start()
    query.processAllAvailable()
    race = query._coordinator._race
    until(lambda: race.has_won, "the epoch was not seen")
    for epoch in range(1, 3):
        until(lambda: "addBatch" not in query.lastProgress["durationMs"], "Spark reported nothing")
        assert race.standing() is Standing.OURS
        assert int(query.lastProgress["batchId"]) == epoch
        job.feed.add(events_of(epoch))
        query.processAllAvailable()
    query.stop()
    with session_conf(job.spark, {NO_DATA_INTERVAL: "1000"}):
        again = job.start()
    until(lambda: again.lastProgress is not None, "Spark reported nothing")
    assert again._coordinator._race.standing() is Standing.OPEN
    again.stop()
