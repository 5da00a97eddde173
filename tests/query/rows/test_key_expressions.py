"""key_by takes what groupBy takes: names, expressions, aliases, fields of structs, windows."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import OFTEN, Job, newest_checkpoint
from tests.query.model import Count, in_order

ROWS = [("a", 1), ("b", 2), ("a", 3), (None, 4), ("b", 5), ("a", 6)]
SCHEMA = "k string, v long"
MakeKeys = Callable[[], tuple[str | Column, ...]]
OUTPUT = "key string, names string, row string, n long"


def shown(key: Any) -> str:
    """Return the values of a key as text: structs and times differ in their Python types."""
    values = key.values() if isinstance(key, dict) else key
    return repr([
        shown(value) if isinstance(value, dict | tuple)
        else value.replace(tzinfo=None).isoformat() if isinstance(value, datetime.datetime)
        else value
        for value in values
    ])  # fmt: skip


class Seen(StatefulProcessor):
    """Emit the key as it came, its names and the columns of the rows."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = (self.n.get() or (0,))[0] + 1
            self.n.update((n,))
            yield Row(key=shown(key), names="", row=",".join(row.__fields__), n=n)

    def close(self) -> None:
        pass


class SeenInBatches(Seen, ckpt.BatchProcessor):
    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        of_row = keys.iloc[rows.index]
        yield pd.DataFrame({
            "key": [shown(key) for key in of_row.itertuples(index=False, name=None)],
            "names": ",".join(keys.columns),
            "row": ",".join(rows.columns),
            "n": rows["v"].to_numpy(),
        })  # fmt: skip


def grouped(df: DataFrame, *keys: str | Column) -> list[Row]:
    """Return the keys that Spark's own groupBy makes."""
    return df.groupBy(*keys).count().collect()


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    "make_keys",
    [
        lambda: (F.col("v") % 3,),
        lambda: ((F.col("v") % 3).alias("v"), "k"),
        lambda: (F.upper("k").alias("K2"), F.lit("x")),
        lambda: ("s.a", F.col("s.b").cast("string")),
        lambda: (F.window("at", "10 seconds"), F.col("k")),
        lambda: (F.col("k"),),
    ],
    ids=["modulo", "alias", "literal", "field", "window", "column"],
)
def test_the_keys_are_those_of_group_by(job: Job, make_keys: MakeKeys) -> None:
    keys = make_keys()
    df = job.spark.createDataFrame(ROWS, SCHEMA)
    df = df.withColumn("s", F.struct(F.col("v").alias("a"), F.col("k").alias("b")))
    df = df.withColumn("at", F.timestamp_seconds("v"))
    expected = grouped(df, *keys)
    names = list(expected[0].__fields__)[:-1]
    output = ckpt.key_by(df, *keys).transformWithState(Seen(), OUTPUT, "Append", "None").collect()
    assert sorted({row.key for row in output}) == sorted(shown(row[:-1]) for row in expected)
    assert {row.row for row in output} == {",".join(df.columns)}
    for row in expected:
        mine = [each.n for each in output if each.key == shown(row[:-1])]
        assert sorted(mine) == list(range(1, row["count"] + 1))
    in_batches = ckpt.key_by(df, *keys).transformWithStateInBatches(
        SeenInBatches(), OUTPUT, "Append", "None"
    )
    first = in_batches.first()
    assert first is not None
    assert (first.names, first.row) == (",".join(names), ",".join(df.columns))


def test_a_name_in_other_letters_is_that_of_the_column(job: Job) -> None:
    df = job.spark.createDataFrame(ROWS, SCHEMA)
    output = ckpt.key_by(df, "K").transformWithStateInBatches(
        SeenInBatches(), OUTPUT, "Append", "None"
    )
    expected = grouped(df, "K")
    assert {row.key for row in output.collect()} == {shown(row[:-1]) for row in expected}
    assert ckpt.key_by(df, F.col("K")).combine({"n": ckpt.agg.Count()}, uid="x").columns == [
        "k",
        "n",
    ]


@pytest.mark.soak
def test_restored_at_another_parallelism(job: Job) -> None:
    """The state is found by the expression's value, and an alias of the same name is one key."""

    def plan(job: Job) -> DataFrame:
        return job.process(ckpt.key_by(job.stream(), (F.col("v") % 5).alias("g")))

    job = job.but(processor=Count, output="k long, n long", plan=plan).using(OFTEN)
    job.feed.add([("x", n) for n in range(20)])
    path = newest_checkpoint(job.run())
    job.feed.add([("x", n) for n in range(20)])
    fork = job.but(location="fork", out="fork-out")
    before = job.spark.conf.get("spark.sql.shuffle.partitions")
    job.spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        fork.run(path)
    finally:
        job.spark.conf.set("spark.sql.shuffle.partitions", before)
    assert fork.result() == in_order([(g, n) for g in range(5) for n in range(5, 9)])


@pytest.mark.parametrize(
    ("make_keys", "words"),
    [
        (lambda: (F.col("nothing") + 1,), ["nothing", "cannot be computed", "'k'"]),
        (lambda: (F.col("v") % 3, F.col("v") % 3), ["twice", "(v % 3)"]),
        (lambda: (F.create_map("k", "v"),), ["map<string,bigint>", "map(k, v)"]),
        (lambda: ("*",), ["'*'", "cannot be computed"]),
    ],
    ids=["unknown", "twice", "map", "star"],
)
def test_what_cannot_be_a_key(job: Job, make_keys: MakeKeys, words: list[str]) -> None:
    df = job.spark.createDataFrame(ROWS, SCHEMA)
    with pytest.raises(ckpt.errors.PlanError) as raised:
        ckpt.key_by(df, *make_keys())
    assert all(word in str(raised.value) for word in words), raised.value
    assert "__ckpt" not in str(raised.value)


def test_an_initial_state_by_an_expression_names_the_way(job: Job) -> None:
    df = job.spark.createDataFrame(ROWS, SCHEMA)
    with pytest.raises(ckpt.errors.PlanError, match="withColumn"):
        ckpt.key_by(df, "v").transformWithState(
            Seen(), OUTPUT, "Append", "None", df.groupBy(F.col("v") + 1)
        )
