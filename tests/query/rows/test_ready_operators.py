"""Ready-made operators in queries: as Spark's own, and through restarts at other parallelism."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from pyspark_ckpt import agg, operators
from tests.query.harness import BACKEND, Job
from tests.query.session_conf import session_conf
from tests.query.timed import at, timed_feed

PARTITIONS = "spark.sql.shuffle.partitions"


def files(epochs: int = 6) -> list[list[tuple[str, int, Any]]]:
    """Return rows of some keys; `v` numbers them, and no row is late with a delay of 20 s."""
    chance, v, made = random.Random(5), 0, []
    for epoch in range(epochs):
        rows = []
        for _ in range(25):
            rows.append(
                (chance.choice("abcdefgh"), v, at(epoch * 8 + chance.uniform(-6, 6) + v / 1e4))
            )
            v += 1
        made.append(rows)
    return made


class Place:
    """A query over the files, restarted after half of them at another parallelism."""

    def __init__(self, job: Job, tmp_path: Path, plan: Callable[[DataFrame], DataFrame]) -> None:
        self.feed = timed_feed(tmp_path / "timed")
        self.rows = files()
        self.plan = plan
        self.job = job.but(plan=self._plan)

    def _plan(self, job: Job) -> DataFrame:
        return self.plan(self.feed.stream(job.spark).withWatermark("ts", "20 seconds"))

    def run(self, backend: str) -> DataFrame:
        """Run all; return what both queries wrote."""
        spark = self.job.spark
        before = self.job.using({BACKEND: backend})
        self.feed.add(*self.rows[:3])
        with session_conf(spark, {PARTITIONS: "2"}), before.running() as query:
            query.processAllAvailable()
            savepoint = query.stopWithSavepoint(str(self.job.base / "savepoints"))
        self.feed.add(*self.rows[3:])
        after = before.but(location="after", out="after")
        with session_conf(spark, {PARTITIONS: "3"}), after.running(savepoint.path) as query:
            query.processAllAvailable()
            query.stopWithSavepoint(str(self.job.base / "savepoints"), drain=True)
        paths = [str(self.job.base / job.out) for job in (before, after)]
        return spark.read.parquet(paths[0]).unionByName(spark.read.parquet(paths[1]))

    def batch(self) -> DataFrame:
        return self.job.spark.read.schema(self.feed.ddl).parquet(str(self.feed.path))


def same(found: DataFrame, wanted: DataFrame) -> None:
    assert found.columns == wanted.columns
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(
        map(tuple, wanted.collect()), key=repr
    )


BACKENDS = pytest.mark.parametrize(
    "backend", ["rocksdb", pytest.param("heap", marks=pytest.mark.soak)]
)


@pytest.mark.slow
@BACKENDS
def test_deduplicate(job: Job, tmp_path: Path, backend: str) -> None:
    def plan(df: DataFrame) -> DataFrame:
        return operators.deduplicate(ckpt.key_by(df, F.col("v") % 40), uid="op")

    place = Place(job, tmp_path, plan)
    found = place.run(backend)
    first = place.batch().withColumn("(v % 40)", F.col("v") % 40).where("v < 40")
    same(found, first.select("(v % 40)", "k", "v", "ts"))


@pytest.mark.slow
@BACKENDS
def test_top_n(job: Job, tmp_path: Path, backend: str) -> None:
    """The newest rows of each key in the output are those of a batch query."""
    place = Place(
        job,
        tmp_path,
        lambda df: operators.top_n(ckpt.key_by(df, "k"), by="ts", n=3, rank="place", uid="op"),
    )
    found = place.run(backend)
    window = Window.partitionBy("k").orderBy(F.desc("ts"))
    wanted = place.batch().withColumn("place", F.row_number().over(window)).where("place <= 3")
    newest = found.groupBy("k", "place").agg(F.max("ts").alias("ts"))
    assert set(map(tuple, newest.collect())) == set(
        map(tuple, wanted.select("k", "place", "ts").collect())
    )


@pytest.mark.slow
@BACKENDS
def test_rolling_windows_as_sparks_own_over_a_table(job: Job, tmp_path: Path, backend: str) -> None:
    """In a stream whose rows come in the order of time, so that a batch query sees the same."""

    def plan(df: DataFrame) -> DataFrame:
        aggregates = {"n": agg.Count(), "total": agg.Sum("v"), "most": agg.Max("v")}
        return operators.rolling(
            ckpt.key_by(df, "k"), aggregates, by="ts", within=10_000, distinct={"kinds": "kind"},
            uid="time",
        )  # fmt: skip

    place = Place(job, tmp_path, lambda df: plan(df.withColumn("kind", F.col("v") % 3)))
    ordered = sorted((row for rows in place.rows for row in rows), key=lambda row: row[2])
    place.rows = [ordered[n : n + 25] for n in range(0, len(ordered), 25)]
    found = place.run(backend)
    us = F.unix_micros("ts")
    window = Window.partitionBy("k").orderBy(us).rangeBetween(-9_999_999, 0)
    batch = place.batch().withColumn("kind", F.col("v") % 3)
    wanted = batch.select(
        "*",
        F.count("*").over(window).alias("n"),
        F.sum("v").over(window).alias("total"),
        F.max("v").over(window).alias("most"),
        F.size(F.collect_set("kind").over(window)).cast("long").alias("kinds"),
    )
    same(found, wanted)


@pytest.mark.slow
@BACKENDS
def test_sessions_as_sparks_own(job: Job, tmp_path: Path, backend: str) -> None:
    def plan(df: DataFrame) -> DataFrame:
        aggregates = {"n": agg.Count(), "total": agg.Sum("v"), "first": agg.Min("v")}
        return operators.sessions(ckpt.key_by(df, "k"), aggregates, gap=2_000, uid="op")

    place = Place(job, tmp_path, plan)
    found = place.run(backend)
    grouped = place.batch().groupBy("k", F.session_window("ts", "2 seconds").alias("s"))
    wanted = grouped.agg(
        F.count("*").alias("n"), F.sum("v").alias("total"), F.min("v").alias("first")
    ).select("k", "s.start", "s.end", "n", "total", "first")
    assert wanted.count() > 20
    same(found, wanted)


def test_a_row_at_the_end_of_a_session_belongs_to_it_as_in_spark(spark: SparkSession) -> None:
    """The rule of :class:`Sessions`, from Spark's own sessions."""
    rows = spark.createDataFrame([("a", at(0)), ("a", at(2))], "k string, ts timestamp")
    sessions = rows.groupBy("k", F.session_window("ts", "2 seconds")).count().collect()
    assert [row["count"] for row in sessions] == [2]


def refused(spark: SparkSession, tmp_path: Path) -> Any:
    return ckpt.key_by(timed_feed(tmp_path / "timed").stream(spark), "k")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda k: operators.top_n(k, by="k", n=1, uid="op"), "cannot be ordered by 'k'"),
        (lambda k: operators.top_n(k, by="v", n=0, uid="op"), "n is 0"),
        (lambda k: operators.top_n(k, by="v", n=1, rank="v", uid="op"), "twice"),
        (lambda k: operators.rolling(k, {"n": agg.Count()}, by="v", uid="op"), "give one of them"),
        (
            lambda k: operators.rolling(k, {"n": agg.Count()}, by="v", within=1, uid="op"),
            "needs a timestamp",
        ),
        (lambda k: operators.rolling(k, by="v", rows=2, uid="op"), "at least one"),
        (
            lambda k: operators.rolling(k, by="v", rows=2, distinct={"n": "z"}, uid="op"),
            r"distinct names \['z'\]",
        ),
        (
            lambda k: operators.sessions(k, {"n": agg.Count()}, gap=1_000, uid="op"),
            "call withWatermark",
        ),
        (lambda _: operators.deduplicate("k", uid="op"), "is no keyed stream"),  # type: ignore[arg-type]
    ],
)
def test_refused(spark: SparkSession, tmp_path: Path, call: Any, says: str) -> None:
    with pytest.raises(ckpt.errors.PlanError, match=says):
        call(refused(spark, tmp_path))
