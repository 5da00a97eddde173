"""combineRows: a processor gets partial rows, and its state is as over all rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import PlanError
from tests.query.harness import OFTEN, Feed, Job
from tests.query.model import in_order

KEYS = 5
OUTPUT = "k string, n long, total long, most long, rows long"
PARTIAL: dict[str, ckpt.agg.Aggregate] = {
    "n": ckpt.agg.Count(),
    "total": ckpt.agg.Sum("v"),
    "most": ckpt.agg.Max("v"),
}


class Totals(StatefulProcessor):
    """Adds partial rows to what it has, and says how many there were."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("totals", "n long, total long, most long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        partial = list(rows)
        n, total, most = self._state.get() or (0, 0, 0)
        n += sum(row.n for row in partial)
        total += sum(row.total for row in partial)
        most = max(most, *(row.most for row in partial))
        self._state.update((n, total, most))
        yield Row(k=key[0], n=n, total=total, most=most, rows=len(partial))

    def close(self) -> None:
        pass


def totals(job: Job) -> DataFrame:
    combined = ckpt.key_by(job.stream(), "k").combineRows(PARTIAL)
    return combined.transformWithState(Totals(), OUTPUT, "Append", "None", uid="totals")


def rows_of(epoch: int, rows: int) -> list[tuple[Any, ...]]:
    """Half of the rows have one key."""
    return [("hot" if n % 2 else f"k{n % (2 * KEYS)}", epoch * rows + n) for n in range(rows)]


@pytest.mark.slow
def test_a_processor_over_partial_rows(job: Job, tmp_path: Path) -> None:
    """Also over a restart; each epoch has one file, so one map task and one row per key."""
    feed = Feed(
        tmp_path / "rows", pa.schema([("k", pa.string()), ("v", pa.int64())]), "k string, v long"
    )
    job = job.but(feed=feed, output=OUTPUT, plan=totals).using(OFTEN)
    expected: list[tuple[Any, ...]] = []
    values: dict[str, list[int]] = {}
    for epoch, rows in enumerate((400, 1000, 200)):
        taken = rows_of(epoch, rows)
        feed.add(taken)
        for key, value in taken:
            values.setdefault(key, []).append(value)
        expected += [(key, len(v), sum(v), max(v), 1) for key, v in values.items()]
        if epoch != 1:  # the second epoch comes after the restart, with the third
            job.run()
    assert job.result() == in_order(expected)


def test_rows_of_several_map_tasks(spark: SparkSession) -> None:
    df = spark.range(0, 1000, 1, 4).selectExpr("cast(id % 3 AS string) AS k", "id AS v")
    combined = ckpt.key_by(df, "k").combineRows(PARTIAL)
    found = combined.transformWithState(Totals(), OUTPUT, "Append", "None").collect()
    wanted = df.groupBy("k").agg(F.count("*"), F.sum("v"), F.max("v"), F.lit(4)).collect()
    assert sorted(map(tuple, found)) == sorted(map(tuple, wanted))


def test_keys_by_expression_and_a_broadcast_stream(spark: SparkSession) -> None:
    """The processor's rows have the key, which is a column now."""

    class Named(Totals):
        def handleBroadcastRows(self, rows: Any, timerValues: Any) -> None:
            self._names = {row.k: row.name for row in rows}

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for row in rows:
                yield Row(third=row.third, name=self._names[key[0]], n=row.n)

    df = spark.range(0, 90, 1, 2)
    names = spark.createDataFrame([(k, f"name {k}") for k in range(3)], "k long, name string")
    keyed = ckpt.key_by(df, (F.col("id") % 3).alias("third"))
    for combined in (
        keyed.combineRows({"n": ckpt.agg.Count()}).connectBroadcast(names),
        keyed.connectBroadcast(names).combineRows({"n": ckpt.agg.Count()}),
    ):
        out = combined.transformWithState(
            Named(), "third long, name string, n long", "Append", "None"
        )
        assert sorted(map(tuple, out.collect())) == [
            (k, f"name {k}", 15) for k in range(3) for _ in range(2)
        ]


def test_what_is_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1, 1.5)], "k string, v int, f double")
    keyed = ckpt.key_by(df, "k")
    for aggregate in (
        ckpt.agg.Sum("f"),
        ckpt.agg.First("v"),
        ckpt.agg.Last("v"),
        ckpt.agg.CollectList("v"),
    ):
        with pytest.raises(PlanError, match="combineRows: sums of fractions"):
            keyed.combineRows({"x": aggregate})
        keyed.combineRows({"x": aggregate}, anyOrder=True)
    with pytest.raises(PlanError, match=r"combineRows: the columns \['at'\] have types"):
        ckpt.key_by(df.withColumn("at", F.struct("k")), "at").combineRows({"n": ckpt.agg.Count()})
    with pytest.raises(PlanError, match=r"combineRows: \['k'\] are keys and results"):
        keyed.combineRows({"k": ckpt.agg.Count()})
    with pytest.raises(PlanError, match="combineRows: the aggregates are list"):
        keyed.combineRows([ckpt.agg.Count()])  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="combineRows: there is no aggregate"):
        keyed.combineRows({})


def test_combined_rows_have_no_event_time(spark: SparkSession) -> None:
    events = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    combined = ckpt.key_by(events, "value").combineRows({"n": ckpt.agg.Count()})
    with pytest.raises(
        PlanError, match="needs a watermark: rows of combineRows have no event time"
    ):
        combined.transformWithState(Totals(), OUTPUT, "Append", "EventTime", uid="x")
