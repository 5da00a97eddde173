"""Two operators in event time: timers in both, and which rows are late there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.time import DRAIN_TIME_MS
from tests.query.harness import BACKEND, OFTEN, Feed, Job, newest_checkpoint
from tests.query.model import in_order
from tests.query.timed import ORIGIN_MS, at, timed_feed

OUTPUT = "k string, ts timestamp, what string"


class Relay(StatefulProcessor):
    """Pass rows on, each with a timer 5 s later; a timer emits when it was due and the time now."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(round(row.ts.timestamp() * 1000) + 5_000)
            yield Row(k=key[0], ts=row.ts, what="row")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        due_ms = expiredTimerInfo.getExpiryTimeInMs()
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        yield Row(k=key[0], ts=moment(due_ms), what="due")
        yield Row(k=key[0], ts=moment(watermark_ms + 1000), what="now")

    def close(self) -> None:
        pass


def moment(milliseconds: int) -> dt.datetime:
    return at((milliseconds - ORIGIN_MS) / 1000)


def relayed(df: DataFrame, uid: str) -> DataFrame:
    keyed = ckpt.key_by(df, "k")
    return keyed.transformWithState(
        Relay(), OUTPUT, "Append", "EventTime", eventTimeColumnName="ts", uid=uid
    )


def twice(job: Job) -> DataFrame:
    first = relayed(job.stream(), "first")
    return relayed(first.select(F.col("what").alias("k"), "ts"), "second")


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return timed_feed(tmp_path / "in")


def emitted(job: Job) -> list[Any]:
    seconds = [(k, (ts - at(0).replace(tzinfo=None)).total_seconds()) for k, ts, _ in job.result()]
    return in_order((*s, row[2]) for s, row in zip(seconds, job.result(), strict=True))


@pytest.mark.soak
def test_timers_and_late_rows(job: Job) -> None:
    """Both operators have the query's watermark of this epoch, which decides what is late."""
    job = job.but(output=OUTPUT, watermark="ts").using(OFTEN)
    chain, single = job.but(plan=twice), job.but(plan=lambda job: relayed(job.stream(), "first"))
    single = single.but(location="loc1", out="out1")
    for rows in ([("a", 0)], [("b", 10)], [("late", 9), ("d", 11)]):
        job.feed.add([(k, None, at(second)) for k, second in rows])
    single.run()
    assert ("late", 9, "row") in emitted(single)  # not late by the watermark of the epoch before
    checkpoint = newest_checkpoint(chain.run())
    # The late row is dropped. What an operator emits is not: at watermark 10, the timer of the
    # first one emits second 5, and so the second one has a timer for second 10 at once.
    first = [("row", 0, "row"), ("row", 10, "row"), ("row", 11, "row")]
    first += [("due", 5, "row"), ("now", 11, "row")]
    for k, due in (("row", 5), ("due", 10)):
        first += [(k, due, "due"), (k, 11, "now")]
    assert emitted(chain) == in_order(first)
    job.feed.add([("z", None, at(16))])
    fork = chain.but(location="loc2", out="out2").using({BACKEND: "heap"})
    fork.run(restore=checkpoint)
    chain.run()
    then = [("row", 16, "row"), *[("now", 17, "row")] * 2, ("due", 15, "row"), ("due", 16, "row")]
    for k, due in (("row", 15), ("row", 16), ("now", 16)):
        then += [(k, due, "due"), (k, 17, "now")]
    assert emitted(fork) == in_order(then)
    assert emitted(chain) == in_order(first + then)


@pytest.mark.slow
def test_drain(job: Job) -> None:
    """The second operator gets what the first one's timers emit, and all its timers fire too."""
    chain = job.but(output=OUTPUT, watermark="ts", plan=twice).using(OFTEN)
    chain.feed.add([("a", None, at(0))])
    query = chain.start()
    query.processAllAvailable()
    assert emitted(chain) == [("row", 0, "row")]
    query.stopWithSavepoint(str(job.base / "savepoints"), drain=True)
    now = (DRAIN_TIME_MS - ORIGIN_MS) / 1000 + 1
    drained = [("row", 0, "row"), ("due", 5, "row"), ("now", now, "row")]
    for k, due in (("row", 5), ("due", 10), ("now", now + 5)):
        drained += [(k, due, "due"), (k, now, "now")]
    assert emitted(chain) == in_order(drained)
