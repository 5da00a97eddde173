"""Spark's stateful operators give the same output after this library's and after Spark's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import Feed
from tests.query.session_conf import session_conf
from tests.query.timed import ORIGIN_MS, at, timed_feed

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
OUTPUT = "k string, ts timestamp"

Operator = Callable[[DataFrame, str], DataFrame]
Plan = Callable[[DataFrame, Operator], DataFrame]


class Echo(StatefulProcessor):
    """Pass each row on, and once more when a timer 3 s later fires."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(round(row.ts.timestamp() * 1000) + 3_000)
            yield Row(k=key[0], ts=row.ts)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        due_s = (expiredTimerInfo.getExpiryTimeInMs() - ORIGIN_MS) / 1000
        yield Row(k=key[0], ts=at(due_s))

    def close(self) -> None:
        pass


def ours(rows: DataFrame, uid: str) -> DataFrame:
    return ckpt.key_by(rows, "k").transformWithState(
        Echo(), OUTPUT, "Append", "EventTime", eventTimeColumnName="ts", uid=uid
    )


def sparks(rows: DataFrame, uid: str) -> DataFrame:
    return rows.groupBy("k").transformWithState(
        Echo(), OUTPUT, "Append", "EventTime", eventTimeColumnName="ts"
    )


def windows(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("ts", "4 seconds"), "k").count()
    return counts.select("k", F.window_time("window").alias("ts"), "count")


def windows_after(rows: DataFrame, operator: Operator) -> DataFrame:
    return windows(operator(rows.dropDuplicates(["k", "v", "ts"]), "op"))


def windows_of_windows(rows: DataFrame, operator: Operator) -> DataFrame:
    return windows(windows(operator(rows, "op")))


def sessions_after(rows: DataFrame, operator: Operator) -> DataFrame:
    sessions = operator(rows, "op").groupBy(F.session_window("ts", "1 second"), "k").count()
    return sessions.select("k", "session_window.end", "count")


def once_after(rows: DataFrame, operator: Operator) -> DataFrame:
    return operator(rows, "op").dropDuplicatesWithinWatermark(["k"])


def between_windows(rows: DataFrame, operator: Operator) -> DataFrame:
    return windows(operator(windows(rows).select("k", "ts"), "op"))


def twice(rows: DataFrame, operator: Operator) -> DataFrame:
    return windows(operator(operator(rows, "first"), "second"))


def joined_after(rows: DataFrame, operator: Operator) -> DataFrame:
    left = operator(rows, "left").alias("a")
    right = rows.select("k", "ts", "v").alias("b")
    return left.join(right, F.expr("a.k = b.k AND a.ts = b.ts")).select("a.k", "a.ts", "b.v")


def files() -> list[list[tuple[str, int, Any]]]:
    """Return rows up to 8 s late, an epoch without progress, and one far ahead."""
    seeded = random.Random(7)
    rows, now = [], 10
    for epoch in range(8):
        now += 0 if epoch == 3 else seeded.randint(2, 9)
        times = [now - seeded.randint(0, 8) for _ in range(6)]
        rows.append([(seeded.choice("ab"), epoch, at(time)) for time in (*times, now)])
    return [*rows, [("c", 9, at(60))]]


def epochs_of(
    spark: SparkSession, base: Path, operator: Operator, plan: Plan, *, is_ours: bool = False
) -> dict[int, Any]:
    """Run over all files, with a restart in between; return the output by epoch."""
    emitted: dict[int, Any] = {}
    feed, rows = timed_feed(base / operator.__name__), files()
    for some in (rows[:4], rows[4:]):
        feed.add(*some)
        output = plan(feed.stream(spark).withWatermark("ts", "5 seconds"), operator)
        writer = ckpt.write_stream(output) if operator is ours or is_ours else output.writeStream
        query = (
            writer.foreachBatch(
                lambda df, epoch: emitted.update({epoch: sorted(map(tuple, df.collect()))})
            )
            .option("checkpointLocation", str(base / f"location-{operator.__name__}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return emitted


@pytest.mark.soak
@pytest.mark.parametrize(
    "plan",
    [
        windows_after,
        once_after,
        *(
            pytest.param(plan, marks=pytest.mark.soak)
            for plan in (
                windows_of_windows, sessions_after, twice, joined_after, between_windows,
            )
        ),
    ],
)  # fmt: skip
def test_as_behind_sparks_own(spark: SparkSession, tmp_path: Path, plan: Plan) -> None:
    with session_conf(spark, {PROVIDER: ROCKSDB}):
        wanted = epochs_of(spark, tmp_path, sparks, plan)
        found = epochs_of(spark, tmp_path, ours, plan)
    assert found == wanted
    assert sum(map(len, wanted.values())) > 5


def test_the_output_has_the_delay_of_the_input(spark: SparkSession, feed: Feed) -> None:
    rows = timed_feed(feed.path / "timed").stream(spark).withWatermark("ts", "5 seconds")
    delay = "spark.watermarkDelayMs"
    for plan in (ours, lambda df, uid: ours(ours(df, "first"), uid)):
        assert plan(rows, "op").schema["ts"].metadata[delay] == 5000
    with session_conf(spark, {PROVIDER: ROCKSDB}):
        assert sparks(rows, "op").schema["ts"].metadata[delay] == 5000


def joined_before(rows: DataFrame, operator: Operator) -> DataFrame:
    left, right = rows.alias("a"), rows.alias("b")
    both = left.join(right, F.expr("a.k = b.k AND a.ts = b.ts")).select("a.k", "a.ts")
    return windows(operator(both, "op"))


def test_what_delays_the_watermark_before_is_refused(spark: SparkSession, feed: Feed) -> None:
    rows = timed_feed(feed.path / "timed").stream(spark).withWatermark("ts", "5 seconds")
    writer = ckpt.write_stream(joined_before(rows, ours)).foreachBatch(lambda df, epoch: None)
    with pytest.raises(
        ckpt.errors.NotBuiltYetError, match="symmetricHashJoin delays the watermark"
    ):
        writer.option("checkpointLocation", str(feed.path / "loc")).start()


@pytest.mark.slow
def test_another_policy_of_watermarks_is_refused(spark: SparkSession, feed: Feed) -> None:
    """With it, the time of the row that carries the watermark would be the query's watermark."""
    rows = timed_feed(feed.path / "timed").stream(spark).withWatermark("ts", "5 seconds")

    def start(df: DataFrame) -> Any:
        writer = ckpt.write_stream(df).foreachBatch(lambda df, epoch: None)
        return writer.option("checkpointLocation", str(feed.path / "loc")).start()

    built = windows_after(rows, ours)
    with session_conf(spark, {POLICY: "max"}):
        with pytest.raises(
            ckpt.errors.PlanError, match=f"{POLICY}=min, the query would run with max"
        ):
            start(built)
        with pytest.raises(ckpt.errors.NotBuiltYetError, match="not supported yet in this order"):
            start(windows_after(rows, ours))
