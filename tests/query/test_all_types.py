"""Nested and rare types go through rows, keys, state and output unchanged, nulls at every level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, Feed, Job, drop_local_copies, refused
from tests.query.model import OUTPUT, Count

LEAVES: dict[str, tuple[str, str]] = {
    "byte": ("-128", "127"),
    "long": ("-9223372036854775808", "9007199254740993"),
    "float": ("'NaN'", "3.4028234663852886e38"),
    "double": ("-0.0D", "'-Infinity'"),
    "decimal(38,18)": ("'12345678901234567890.123456789012345678'", "-0.1"),
    "string": ("'null'", r"'h\u0000\n\"äß😀'"),
    "binary": ("X''", "X'00FF'"),
    "boolean": ("true", "false"),
    "date": ("'0001-01-01'", "'9999-12-31'"),
    "timestamp": ("'1600-01-01 00:00:00.000001Z'", "'2024-11-03 09:30:00Z'"),
    "timestamp_ntz": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"),
    "interval day to second": (
        "interval '-106751990 04:00:54.775807' day to second",
        "interval '0 00:00:00.000001' day to second",
    ),
    "interval hour to minute": ("interval '-5:30' hour to minute", "interval '0:0' hour to minute"),
    "interval year to month": ("interval '-3-7' year to month", "interval '0-0' year to month"),
    "variant": ("parse_json('null')", """parse_json('{"a": [1.50, "x", null]}')"""),
}
"""Two values of each type, as SQL."""


def shapes(ddl: str, one: str, other: str) -> dict[str, tuple[str, list[str]]]:
    """Columns that hold a type alone and inside others, each with four values."""
    a, b = f"cast({one} as {ddl})", f"cast({other} as {ddl})"
    nested = f"array(named_struct('m', map(1, {b}, 2, null), 'x', {a}), null)"
    return {
        "leaf": (ddl, [a, b, "null", a]),
        "list": (f"array<{ddl}>", [f"array({a}, null, {b})", "array()", "null", "array(null)"]),
        "st": (
            f"struct<`a b`:{ddl},B:int>",
            [f"struct({a}, 1)", f"struct({b}, null)", "null", "struct(null, null)"],
        ),
        "dict": (f"map<string,{ddl}>", [f"map('k', {a}, 'n', null)", "map()", "null", "map('', null)"]),
        "deep": (
            f"array<struct<m:map<int,{ddl}>,x:{ddl}>>",
            [nested, "array()", "null", "array(named_struct('m', null, 'x', null))"],
        ),
    }  # fmt: skip


@dataclass(frozen=True)
class SqlFeed:
    """A directory of Parquet files that Spark itself wrote, read as a stream and as a table."""

    path: Path
    ddl: str

    def write(self, spark: SparkSession, columns: Mapping[str, tuple[str, list[str]]]) -> None:
        """Add one file: row i holds each column's value i."""
        for row in range(len(next(iter(columns.values()))[1])):
            values = [f"cast({v[row]} as {ddl}) as {n}" for n, (ddl, v) in columns.items()]
            df = spark.sql(f"select {row} as id, " + ", ".join(values))
            df.coalesce(1).write.mode("append").parquet(str(self.path))

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(self.ddl).parquet(str(self.path))

    def table(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(self.ddl).parquet(str(self.path))


class Echo(Count):
    """Emit each row as it came, then what value, list and map state kept of it."""

    def __init__(self, ddl: str) -> None:
        self.ddl = ddl

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", self.ddl)
        self.all = handle.getListState("all", self.ddl)
        self.by_id = handle.getMapState("by_id", "id int", self.ddl)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            kept = {"value": self.last.get(), "map": self.by_id.getValue((row.id,))}
            kept |= {f"list {i}": item for i, item in enumerate(self.all.get())}
            yield Row("row", *row)
            yield from (Row(via, *v) for via, v in kept.items() if v is not None)
            self.last.update(tuple(row))
            self.all.appendValue(tuple(row))
            self.by_id.updateValue((row.id,), tuple(row))


def exact(df: DataFrame) -> list[str]:
    """Rows as Python shows them, which tells -0.0, NaN, null and all types apart."""
    months = [n for n, kind in df.dtypes if "year" in kind or "month" in kind]
    shown = [F.col(n).cast("string").alias(n) if n in months else F.col(n) for n in df.columns]
    return sorted(repr(row) for row in df.select(shown).collect())


@pytest.mark.parametrize("ddl", LEAVES)
def test_rows_and_state(spark: SparkSession, tmp_path: Path, ddl: str) -> None:
    """Each value and null, at each level, is unchanged by rows, all kinds of state, a restart."""
    backend = BACKENDS[list(LEAVES).index(ddl) % len(BACKENDS)]
    columns = shapes(ddl, *LEAVES[ddl])
    if ddl == "variant":
        del columns["dict"]
    schema = "id int, " + ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    feed: Any = SqlFeed(tmp_path / "in", schema)
    feed.write(spark, columns)
    source = feed.table(spark).cache()
    job = Job(
        spark, tmp_path, feed, lambda: Echo(schema), "via string, " + schema, keys=("id",)
    ).using({BACKEND: backend})
    job.run()
    drop_local_copies(spark)
    feed.write(spark, columns)
    job.run()
    result = spark.read.schema(job.output).parquet(str(tmp_path / "out"))
    expected = exact(source)
    assert len(expected) == 4
    assert exact(result.where("via = 'row'").drop("via")) == sorted(2 * expected)
    for via in ("value", "list 0", "map"):
        assert exact(result.where(F.col("via") == via).drop("via")) == expected
