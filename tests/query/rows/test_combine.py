"""combine: the same results before and after the shuffle, and after restarts and forks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import PlanError
from tests.query.harness import BACKEND, OFTEN, SAVEPOINT_DIR, Feed, Job, await_rows
from tests.query.model import in_order

INPUT = "k string, v long, f double, s string"
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
OUTPUT = "k string, n long, total long, least double, greatest string"
ORDERLESS: dict[str, ckpt.agg.Aggregate] = {
    "n": ckpt.agg.Count(),
    "total": ckpt.agg.Sum("v"),
    "least": ckpt.agg.Min("f"),
    "greatest": ckpt.agg.Max("s"),
}


def rows_of(epoch: int, rows: int) -> list[tuple[Any, ...]]:
    """Half of the rows have one key; nulls in every column."""
    return [
        (
            None if n % 41 == 0 else "hot" if n % 2 else f"k{n % 9}",
            None if n % 5 == 0 else epoch * rows + n,
            None if n % 3 else ((n * 7) % 100) / 4,
            None if n % 4 else f"s{(n * 13 + epoch) % 50:02}",
        )
        for n in range(rows)
    ]


def expected(feed: Feed) -> list[tuple[Any, ...]]:
    """Each file is an epoch: a row per key of the epoch, with all that came until then."""
    by_key: dict[Any, list[tuple[Any, ...]]] = {}
    found = []
    for rows in feed.epochs:  # type: ignore[attr-defined]
        for row in rows:
            by_key.setdefault(row[0], []).append(row)
        for key in {row[0] for row in rows}:
            _, v, f, s = zip(*by_key[key], strict=True)
            found.append(
                (
                    key,
                    len(v),
                    sum(one for one in v if one is not None)
                    if any(one is not None for one in v)
                    else None,
                    min((one for one in f if one is not None), default=None),
                    max((one for one in s if one is not None), default=None),
                )
            )
    return in_order(found)


class Epochs(Feed):
    """A feed that knows its epochs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SCHEMA, INPUT)
        self.epochs: list[Any] = []

    def add(self, *files: Any) -> Feed:
        self.epochs += files
        return super().add(*files)


def combined(**arguments: Any) -> Callable[[Job], DataFrame]:
    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.stream(), "k")
        return keyed.combine(ORDERLESS, "Append", uid="totals", **arguments)

    return plan


def summed(table: pa.Table, keys: list[str]) -> pa.Table:
    wanted = [("n", "sum"), ("total", "sum"), ("least", "min"), ("greatest", "max")]
    found = table.group_by(keys, use_threads=False).aggregate(wanted)
    return found.rename_columns([*keys, *(name for name, _ in wanted)])


def by_function(job: Job) -> DataFrame:
    rows = job.stream().select(
        "k",
        F.lit(1).cast("long").alias("n"),
        F.col("v").alias("total"),
        F.col("f").alias("least"),
        F.col("s").alias("greatest"),
    )
    return ckpt.key_by(rows, "k").combineInArrow(
        summed, "n long, total long, least double, greatest string", "Append", uid="totals"
    )


def savepoint_bytes(path: str) -> dict[str, str]:
    """Return the digest of each file of state."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(Path(path).rglob("*.parquet"))
    }


@pytest.mark.soak
def test_the_same_before_and_behind_the_shuffle(job: Job, tmp_path: Path) -> None:
    """Also byte for byte in a savepoint; a restart on another backend goes over to the other."""
    feed = Epochs(tmp_path / "rows")
    job = job.but(feed=feed, output=OUTPUT).using({**OFTEN, SAVEPOINT_DIR: str(tmp_path / "saved")})
    both = [
        job.but(plan=combined(beforeShuffle=each), location=f"loc{each}", out=f"out{each}")
        for each in (True, False)
    ]
    feed.add(rows_of(0, 300), rows_of(1, 700))
    for each in both:
        each.run()
        assert each.result() == expected(feed)
    feed.add(rows_of(2, 500))
    saved = []
    for each, other in zip(both, reversed(both), strict=True):
        # The same location goes on with the other plan.
        each.but(plan=other.plan).using({BACKEND: "heap"}).run()
        assert each.result() == expected(feed)
        with each.running() as query:
            query.processAllAvailable()
            saved.append(query.triggerSavepoint().path)
    one, other = map(savepoint_bytes, saved)
    assert one
    assert list(one.values()) == list(other.values())
    fork = job.but(plan=combined(), location="fork", out="fork-out")
    fork.run(restore=saved[0])
    feed.add(rows_of(3, 100))
    fork.run()
    assert fork.result() == [row for row in expected(feed) if row in fork.result()]
    assert len(fork.result()) == len({row[0] for row in rows_of(3, 100)})


class Own(StatefulProcessor):
    """Its own program over the state of `combine`."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("combined", "n long, total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = [row.v for row in rows]
        n, total = self._state.get() or (0, 0)
        self._state.update((n + len(values), total + sum(values)))
        yield Row(k=key[0], n=n + len(values), total=total + sum(values))

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_a_state_of_another_program_is_combined_further(job: Job, tmp_path: Path) -> None:
    """There and back: nothing is taken for a key without a value. Values that are put count too."""

    def combining(job: Job) -> DataFrame:
        aggregates = {"n": ckpt.agg.Count(), "total": ckpt.agg.Sum("v")}
        return ckpt.key_by(job.stream(), "k").combine(aggregates, uid="op")

    def own(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.stream(), "k")
        return keyed.transformWithState(Own(), output, "Append", "None", uid="op")

    output = "k string, n long, total long"
    job = job.but(output=output).using({SAVEPOINT_DIR: str(tmp_path / "saved")})
    job.feed.add([("a", 1), ("b", 2)])
    path, found = None, []
    for number, plan in enumerate([combining, own, combining]):
        job.feed.add([("a", 10)])
        each = job.but(plan=plan, location=f"loc{number}", out=f"out{number}")
        with each.running(path) as query:
            query.processAllAvailable()
            path = query.stopWithSavepoint().path
        found.append(each.result())
    assert found[1:] == [[("a", 3, 21)], [("a", 4, 31)]]
    rows = job.spark.createDataFrame([("a", 5, 50), ("c", 6, 60)], "k string, n long, total long")
    edited = ckpt.edit_state(path, query=job.but(plan=combining).df()).put("op", "combined", rows)
    path = edited.save(str(tmp_path / "edited")).path
    job.feed.add([("a", 1), ("b", 1), ("c", 1)])
    last = job.but(plan=combining, location="loc3", out="out3")
    last.run(restore=path)
    assert last.result() == [("a", 6, 51), ("b", 1, 1), ("c", 7, 61)]


def test_a_function_of_the_user(job: Job, tmp_path: Path) -> None:
    feed = Epochs(tmp_path / "rows")
    job = job.but(feed=feed, output=OUTPUT, plan=by_function).using(OFTEN)
    feed.add(rows_of(0, 300), rows_of(1, 700))
    job.run()
    feed.add(rows_of(2, 500))
    job.run()
    assert job.result() == expected(feed)


def counting(ttl_ms: int | None = None) -> Callable[[Job], DataFrame]:
    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.stream(), "k")
        return keyed.combine({"n": ckpt.agg.Count()}, "Append", uid="totals", ttlDurationMs=ttl_ms)

    return plan


@pytest.mark.slow
def test_a_time_to_live_is_switched_on_and_off_at_a_restart(job: Job) -> None:
    """An entry that is older than the switch counts from there; each run is one epoch."""
    job = job.but(output="k string, n long").using(OFTEN)
    sums = []
    for ttl_ms in (None, 1, 1, None):
        job.feed.add([("a", 1)])
        job.but(plan=counting(ttl_ms)).run()
        sums.append(sum(n for _, n in job.result()))
    assert sums == [1, 1 + 2, 1 + 2 + 1, 1 + 2 + 1 + 2]


def test_a_time_to_live_runs_no_epochs_without_rows(job: Job) -> None:
    job = job.but(output="k string, n long", plan=counting(3_600_000))
    with job.running() as query:
        for rows in (1, 2, 3):
            job.feed.add([("a", 1)])
            found = await_rows(query, job, rows)
    assert [n for _, n in found] == [1, 2, 3]
    commits = {path.name for path in (job.location_path / "commits").glob("[0-9]*")}
    assert commits <= {"0", "1", "2"}


def plan_of(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().analyzed().toString())  # type: ignore[operator,union-attr]


def is_combined_before(df: DataFrame) -> bool:
    return "CombinedBeforeShuffle" in plan_of(df)


def test_where_rows_are_combined(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1, 1.5)], "k string, v int, f double")
    by_text = ckpt.key_by(df, "k")
    assert is_combined_before(by_text.combine({"n": ckpt.agg.Sum("v")}, uid="x"))
    assert not is_combined_before(by_text.combine({"n": ckpt.agg.Sum("f")}, uid="x"))
    assert not is_combined_before(by_text.combine({"n": ckpt.agg.Last("v")}, uid="x"))
    assert is_combined_before(
        by_text.combine({"n": ckpt.agg.Sum("f")}, uid="x", beforeShuffle=True)
    )
    nested = df.withColumn("at", F.struct("k"))
    by_struct = ckpt.key_by(nested, "at")
    assert not is_combined_before(by_struct.combine({"n": ckpt.agg.Count()}, uid="x"))
    with pytest.raises(PlanError, match=r"beforeShuffle=True, but the columns \['at'\]"):
        by_struct.combine({"n": ckpt.agg.Count()}, uid="x", beforeShuffle=True)
    assert by_struct.combine({"n": ckpt.agg.Count()}, uid="x").collect() == [(("a",), 1)]


def test_a_function_over_nested_columns_is_called_behind_the_shuffle(spark: SparkSession) -> None:
    """By default, whatever the stream says of nulls inside of them."""
    df = spark.createDataFrame([("a", 1), ("a", 2)], "k string, v int")
    nested = ckpt.key_by(df.select("k", F.array(F.lit(1)).alias("tags")), "k")

    def first(table: pa.Table, keys: list[str]) -> pa.Table:
        return table.slice(0, 1)

    combined = nested.combineInArrow(first, "tags array<int>", uid="x")
    assert not is_combined_before(combined)
    assert combined.collect() == [("a", [1])]


def test_what_is_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, v int")
    keyed = ckpt.key_by(df, "k")
    connected = keyed.connectBroadcast(df)
    with pytest.raises(PlanError, match="no processor that gets the rows of connectBroadcast"):
        connected.combine({"n": ckpt.agg.Count()}, uid="x")
    with pytest.raises(PlanError, match="no processor that gets the rows of connectBroadcast"):
        connected.combineInArrow(summed, "v int", uid="x")
    with pytest.raises(PlanError, match=r"\['k'\] are keys and results"):
        keyed.combine({"k": ckpt.agg.Count()}, uid="x")
    with pytest.raises(PlanError, match=r"names \['key_position'\] are taken"):
        keyed.combine({"key_position": ckpt.agg.Count()}, uid="x")
    with pytest.raises(PlanError, match="the aggregates are list"):
        keyed.combine([ckpt.agg.Count()], uid="x")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="give it the same columns with select first"):
        keyed.combineInArrow(summed, "v long", uid="x")


def test_keys_by_expression_and_every_aggregate(spark: SparkSession) -> None:
    """Against Spark's own aggregates, in a batch."""
    df = spark.range(500).selectExpr(
        "id", "cast(id % 7 as byte) AS b", "cast(id AS decimal(9,2)) / 3 AS d",
        "if(id % 5 = 0, null, date_add(DATE'2024-01-01', cast(id % 50 AS int))) AS day",
        "timestamp_micros(id * 1000003) AS at", "cast(concat('x', id % 11) AS binary) AS raw",
    )  # fmt: skip
    columns = ("b", "d", "day", "at", "raw")
    own = {f"min_{c}": ckpt.agg.Min(c) for c in columns} | {
        f"max_{c}": ckpt.agg.Max(c) for c in columns
    }
    sparks = [F.min(c).alias(f"min_{c}") for c in columns]
    sparks += [F.max(c).alias(f"max_{c}") for c in columns]
    own |= {"n": ckpt.agg.Count("day"), "total": ckpt.agg.Sum("b")}
    sparks += [F.count("day").alias("n"), F.sum("b").alias("total")]
    key = (F.col("id") % 3).alias("third")
    found = ckpt.key_by(df, key).combine(own, uid="x")
    assert sorted(found.collect()) == sorted(df.groupBy(key).agg(*sparks).collect())
