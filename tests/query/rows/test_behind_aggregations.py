"""An operator after an aggregation of Spark gives what Spark's own transformWithState gives there.

Spark allows that order in append mode. Its check of a plan refuses it before the operator that this
library runs on, so the library checks the parts of the plan itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.spark.plan import operators_of
from tests.query.harness import Job, newest_checkpoint
from tests.query.model import in_order
from tests.query.rows.test_passed_watermark import PROVIDER, ROCKSDB, at, epochs_of
from tests.query.session_conf import session_conf
from tests.query.timed import ORIGIN_MS, timed_feed

OUTPUT = "k string, ts timestamp, count long, late long"
Operator = Callable[[DataFrame, str], DataFrame]


class Numbered(StatefulProcessor):
    """Pass on each result with a number and the watermark; a timer yields one more row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long, count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        watermark = timerValues.getCurrentWatermarkInMs() - ORIGIN_MS
        for row in sorted(rows, key=lambda row: row.end):
            n, count = self.seen.get() or (0, 0)
            self.seen.update((n + 1, count + row.count_))
            self.handle.registerTimer(round(row.end.timestamp() * 1000) + 3_000)
            yield Row(k=key[0], ts=row.end, count=count + row.count_, late=max(watermark, -1))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        due_s = (expiredTimerInfo.getExpiryTimeInMs() - ORIGIN_MS) / 1000
        yield Row(k=key[0], ts=at(due_s), count=self.seen.get()[0], late=-2)

    def close(self) -> None:
        pass


def ours(rows: DataFrame, uid: str) -> DataFrame:
    return ckpt.key_by(rows, "k").transformWithState(
        Numbered(), OUTPUT, "Append", "EventTime", eventTimeColumnName="ts", uid=uid
    )


def sparks(rows: DataFrame, uid: str) -> DataFrame:
    return rows.groupBy("k").transformWithState(
        Numbered(), OUTPUT, "Append", "EventTime", eventTimeColumnName="ts"
    )


def shown(aggregated: DataFrame, end: Any) -> DataFrame:
    """Return the results of an aggregation; the end of a window is event time, whole or alone."""
    return aggregated.select("k", F.col("count").alias("count_"), end.alias("end"))


def windows(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("ts", "4 seconds"), "k").count()
    return shown(counts, F.window_time("window"))


def whole_windows(rows: DataFrame) -> DataFrame:
    """Keep the column of windows, which has the event time."""
    counts = rows.groupBy(F.window("ts", "6 seconds", "3 seconds"), "k").count()
    return counts.select("window", "k", F.col("count").alias("count_"), F.col("window.end"))


def aggregated_twice(rows: DataFrame) -> DataFrame:
    first = rows.dropDuplicates(["k", "v", "ts"]).groupBy(F.window("ts", "2 seconds"), "k").count()
    again = first.select("k", F.window_time("window").alias("ts"))
    return windows(again)


def counted_again(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("ts", "4 seconds"), "k").agg(F.sum("count").alias("n"))


PLANS: dict[str, Callable[[DataFrame, Operator], DataFrame]] = {
    "whole windows": lambda rows, operator: operator(whole_windows(rows), "op"),
    "windows": lambda rows, operator: operator(windows(rows), "op"),
    "twice": lambda rows, operator: operator(aggregated_twice(rows), "op"),
    "between": lambda rows, operator: counted_again(operator(windows(rows), "op")),
    "two": lambda rows, operator: operator(
        operator(windows(rows), "one").selectExpr("k", "ts as end", "count as count_"), "two"
    ),
}


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("whole windows", marks=pytest.mark.slow),
        *(pytest.param(plan, marks=pytest.mark.soak) for plan in list(PLANS)[1:]),
    ],
)
def test_as_with_sparks_own(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    """Late rows, an epoch without progress, timers and a restart are among them.

    Not sessions: Spark 4.3 fails in its own transformWithState after them ("Can only upgrade
    readStore to writeStore"). `test_native_operators.py` has them before this library's operator.
    """
    with session_conf(spark, {PROVIDER: ROCKSDB}):
        wanted = epochs_of(spark, tmp_path, sparks, PLANS[plan])
        found = epochs_of(spark, tmp_path, ours, PLANS[plan], is_ours=True)
    assert found == wanted
    assert sum(map(len, wanted.values())) > 5


TIMES = [[0, 1, 5, 6], [8, 3, 11], [20, 9, 14], [30, 2, 21], [40, 33], [60]]
"""Event times in seconds, by file; some are late."""


def job_of(job: Job, plan: str = "whole windows") -> tuple[Job, list[list[Any]]]:
    feed = timed_feed(job.base / "timed")
    rows = [[("ab"[s % 2], 1, at(s)) for s in times] for times in TIMES]
    feed.add(*rows[:3])

    def built(own: Job) -> DataFrame:
        return PLANS[plan](feed.stream(own.spark).withWatermark("ts", "2 seconds"), ours)

    return job.but(plan=built, output=OUTPUT, feed=feed), rows[3:]


@pytest.mark.slow
def test_it_restores_rolls_back_and_restarts(job: Job) -> None:
    """The windows that are open and the operator's state continue together."""
    job, more = job_of(job)
    query = job.run()
    checkpoint = newest_checkpoint(query)
    before = job.result()
    assert before
    job.feed.add(*more)
    fork = job.but(location="fork", out="out-fork")
    fork.run(checkpoint)
    job.run()
    whole = job.result()
    assert in_order(before + fork.result()) == whole
    ckpt.location(str(job.location_path)).rollback(Path(checkpoint).name)
    job.but(out="out-again").run()
    assert job.but(out="out-again").result() == fork.result()
    late = [watermark for *_, watermark in whole]
    assert max(late) > 0
    assert late.count(-2) > 3  # rows of timers


@pytest.mark.slow
def test_the_parts_are_checked_as_spark_checks_them(job: Job) -> None:
    job, _ = job_of(job)
    rows = job.feed.stream(job.spark)
    timed = rows.withWatermark("ts", "2 seconds")

    def refused(df: DataFrame, message: str, mode: str = "append") -> None:
        writer = job.but(plan=lambda own: df).writer().outputMode(mode)
        with pytest.raises(ckpt.errors.PlanError, match=message):
            writer.start()
        assert not job.location_path.exists()

    def quiet(df: DataFrame) -> DataFrame:
        keyed = ckpt.key_by(df, "k")
        return keyed.transformWithState(Numbered(), OUTPUT, "Append", "ProcessingTime", uid="op")

    by_key = rows.groupBy("k").agg(F.max("v").alias("count_"), F.max("ts").alias("end"))
    refused(quiet(by_key), r"Spark refuses a part .*output mode: append.*streaming aggregations")
    refused(ours(whole_windows(timed), "op"), "Use outputMode append", "update")
    refused(ours(whole_windows(timed), "op").orderBy("k"), "Sorting is not supported")
    refused(quiet(whole_windows(timed.orderBy("k"))), "Sorting is not supported")
    assert not operators_of(quiet(rows.select("k", "ts"))).follows_aggregation
