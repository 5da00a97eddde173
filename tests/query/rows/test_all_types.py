"""Nested and rare types go through rows, keys, state and output unchanged, nulls at every level."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from pyspark_ckpt.values.spark import plain_type, restored, sent
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.query.harness import (
    BACKEND,
    BACKENDS,
    Feed,
    Job,
    drop_local_copies,
    refused,
    run_in_pyspark,
)
from tests.query.model import Count
from tests.query.session_conf import session_conf

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
    """Return columns that hold a type alone and inside others, each with four values."""
    a, b = f"cast({one} as {ddl})", f"cast({other} as {ddl})"
    nested = f"array(named_struct('m', map(1, {b}, 2, null), 'x', {a}), null)"
    return {
        "leaf": (ddl, [a, b, "null", a]),
        "list": (f"array<{ddl}>", [f"array({a}, null, {b})", "array()", "null", "array(null)"]),
        "st": (
            f"struct<`a b`:{ddl},B:int>",
            [f"struct({a}, 1)", f"struct({b}, null)", "null", "struct(null, null)"],
        ),
        "dict": (
            f"map<string,{ddl}>",
            [f"map('k', {a}, 'n', null)", "map()", "null", "map('', null)"],
        ),
        "deep": (
            f"array<struct<m:map<int,{ddl}>,x:{ddl}>>",
            [nested, "array()", "null", "array(named_struct('m', null, 'x', null))"],
        ),
    }


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
    """Return rows as Python shows them, which distinguishes -0.0, NaN, null and all types."""
    months = [n for n, kind in df.dtypes if "year" in kind or "month" in kind]
    shown = [F.col(n).cast("string").alias(n) if n in months else F.col(n) for n in df.columns]
    return sorted(repr(row) for row in df.select(shown).collect())


EACH_WAY = ("string", "decimal(38,18)", "interval day to second", "variant")
"""The others pass as one of these does; ``make soak`` and the proof ``hand-over`` run them."""


@pytest.mark.parametrize(
    "ddl",
    [
        pytest.param(ddl, marks=pytest.mark.slow if ddl in EACH_WAY else pytest.mark.soak)
        for ddl in LEAVES
    ],
)
def test_rows_and_state(spark: SparkSession, tmp_path: Path, ddl: str) -> None:
    """Each value and null, at each level, is unchanged by rows, all kinds of state, a restart."""
    backend = BACKENDS[list(LEAVES).index(ddl) % len(BACKENDS)]
    columns = shapes(ddl, *LEAVES[ddl])
    if ddl == "variant":
        del columns["dict"]
    schema = "id int, " + ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    feed: Any = SqlFeed(tmp_path / "in", schema)
    feed.write(spark, columns)
    expected = exact(feed.table(spark))
    job = Job(
        spark, tmp_path, feed, lambda: Echo(schema), "via string, " + schema, keys=("id",)
    ).using({BACKEND: backend})
    job.run()
    drop_local_copies(spark)
    feed.write(spark, columns)
    job.run()
    result = spark.read.schema(job.output).parquet(str(tmp_path / "out"))
    assert len(expected) == 4
    assert exact(result.where("via = 'row'").drop("via")) == sorted(2 * expected)
    for via in ("value", "list 0", "map"):
        assert exact(result.where(F.col("via") == via).drop("via")) == expected


DAY_TIME = {"day": "'-3'", "hour": "'5'", "minute": "'-7'", "second": "'0.000001'"}
CHANGED = [
    "cast('ab' as char(3))",
    "cast('ab' as varchar(3))",
    "'Ab' collate UTF8_LCASE",
    "named_struct('a', 1, 'a', named_struct('b', interval '-1-2' year to month, 'b', 'x'))",
    "interval '-1-2' year to month", "interval '-1' year", "interval '2' month",
    "interval '-1 02:03:04.5' day to second", "interval '1 02' day to hour",
    "interval '1 02:03' day to minute", "interval '-1:02' hour to minute",
    "interval '1:02:03.000004' hour to second", "interval '02:03' minute to second",
    *(f"interval {value} {unit}" for unit, value in DAY_TIME.items()),
    *(f"cast(time'01:02:03.456789' as time({n}))" for n in range(7) if TIME_OF_DAY),
]  # fmt: skip
"""A value of each type that Spark sends in the form of another one."""


def test_types_that_pass_in_the_form_of_others(spark: SparkSession) -> None:
    values = []
    for value in CHANGED:
        values += [value, f"array({value}, null)", f"map('k', {value}, 'n', null)"]
        values += [f"map({value}, 1)", f"array(named_struct('x', {value}, 'y', 1), null)"]
    conf = {"spark.sql.timeType.enabled": "true", "spark.sql.preserveCharVarcharTypeInfo": "true"}
    with session_conf(spark, conf):
        one = ", ".join(f"{value} as c{n}" for n, value in enumerate(values))
        none = ", ".join(f"if(rand() < 2, null, {v}) as c{n}" for n, v in enumerate(values))
        rows = spark.sql(f"select {one} union all select {none}")
        kinds = [field.dataType for field in rows.schema]
        passed = rows.select(*[sent(k, F.col(f"c{n}")).alias(f"c{n}") for n, k in enumerate(kinds)])
        back = passed.mapInArrow(lambda batches: batches, passed.schema).select(
            *[restored(k, F.col(f"c{n}")).alias(f"c{n}") for n, k in enumerate(kinds)]
        )
        found = [field.dataType.simpleString() for field in back.schema]
        assert found == [plain_type(kind).simpleString() for kind in kinds]
        as_texts = [F.col(name).cast("string") for name in rows.columns]
        assert sorted(back.select(as_texts).collect(), key=str) == sorted(
            rows.select(as_texts).collect(), key=str
        )


KEYS = {
    "st": (
        "struct<`a b`:float,t:timestamp,n:struct<x:double>,raw:binary>",
        [
            "struct('NaN', timestamp'1600-01-01 00:00:00', struct(-0.0D), X'00')",
            "struct('NaN', timestamp'1600-01-01 00:00:00', struct(0.0D), X'00')",
            "struct(0, null, null, null)",
            "struct(-0.0D, null, null, null)",
            "struct(null, null, struct(null), null)",
            "null",
        ],
    ),
    "list": (
        "array<double>",
        [
            "array(0.0D, null)", "array(-0.0D, null)", "array('NaN')", "array('NaN')", "array()",
            "null",
        ],
    ),
    "span": ("interval day to second", [f"interval '{n // 2}' second" for n in range(6)]),
}  # fmt: skip


class CountByKey(Count):
    """Emit all key columns and the number of rows so far."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(*key, n)


@pytest.mark.soak
@pytest.mark.parametrize(
    "keys",
    [("st",), tuple(KEYS), *(pytest.param((n,), marks=pytest.mark.soak) for n in ("list", "span"))],
    ids=len,
)
def test_keys(spark: SparkSession, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Keys of nested types, alone or together, are distinguished as Spark's groupBy does."""
    schema = "id int, " + ", ".join(f"{name} {kind}" for name, (kind, _) in KEYS.items())
    output = ", ".join(f"{name} {KEYS[name][0]}" for name in keys) + ", n long"
    feed: Any = SqlFeed(tmp_path / "in", schema)
    job = Job(spark, tmp_path, feed, CountByKey, output, keys=keys)
    for _ in range(2):
        feed.write(spark, KEYS)
        job.run()
    newest = spark.read.schema(output).parquet(str(tmp_path / "out")).groupBy(*keys)
    counts = feed.table(spark).groupBy(*keys).agg(F.count("*").alias("n"))
    assert counts.count() < 6
    assert exact(newest.agg(F.max("n").alias("n"))) == exact(counts)


@pytest.mark.parametrize("ddl", ["map<string,int>", "array<variant>", "struct<m:map<int,int>>"])
def test_keys_that_spark_cannot_hash(spark: SparkSession, tmp_path: Path, ddl: str) -> None:
    """A key column of such a type is refused when the query is built, with column and type."""
    df = Feed(tmp_path / "in").stream(spark).withColumn("bad", F.expr(f"cast(null as {ddl})"))
    with refused(ckpt.errors.PlanError, "'bad'", ddl.replace(" ", ""), unchanged=tmp_path):
        ckpt.key_by(df, "k", "bad")
    with refused(ckpt.errors.NotBuiltYetError, "'odd'", "interval", unchanged=tmp_path):
        ckpt.key_by(df.withColumn("odd", F.expr("make_interval(1)")), "k")


class PythonTypes(Count):
    """Emit how Python shows key, rows and state."""

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", SHOWN)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            state = [dict(row.dict or ()) if name == "dict" else row[name] for name in SHOWN_NAMES]
            self.kept.update(tuple(state))
            shown = "; ".join(map(repr, row))
            yield Row(key=repr(key), fields=shown, state=repr(self.kept.get()))


INNER = "struct<i:int,f:float,t:timestamp,n:timestamp_ntz,d:date,dec:decimal(10,2),raw:binary>"
SHOWN = f"st {INNER}, list array<{INNER}>, dict map<string,{INNER}>"
SHOWN_NAMES = ("st", "list", "dict")


@pytest.mark.soak
@pytest.mark.skipif(
    not hasattr(GroupedData, "transformWithState"),
    reason="PySpark 4.0 has it of frames only",
)
def test_python_types(spark: SparkSession, tmp_path: Path) -> None:
    """Processors get the same Python objects as in PySpark."""
    one = (
        "struct(1, 0.1, timestamp'2024-01-01 00:00:00', timestamp_ntz'2024-01-01 00:00:00', "
        "date'1600-01-01', 1.5, X'00')"
    )
    inner = f"cast({one} as {INNER})"
    feed: Any = SqlFeed(tmp_path / "in", "k struct<a:int,b:string>, " + SHOWN)
    columns = {
        "k": ("struct<a:int,b:string>", ["struct(1, 'x')", "struct(null, null)"]),
        "st": (INNER, [inner, "null"]),
        "list": (f"array<{INNER}>", [f"array({inner}, null)", "null"]),
        "dict": (f"map<string,{INNER}>", [f"map('a', {inner}, 'b', null)", "map()"]),
    }
    feed.write(spark, columns)
    output = "key string, fields string, state string"
    job = Job(spark, tmp_path, feed, PythonTypes, output, keys=("k",))
    job.run()
    ours = spark.read.parquet(str(tmp_path / "out"))
    assert exact(ours) == exact(run_in_pyspark(job))
    assert ours.count() == 2


class Spellings(Count):
    """Emit one value in all Python objects that are accepted for it."""

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "s struct<a:long,b:double>, m map<string,long>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        structs = [Row(a=2**63 - 1, b=0.5), (2**63 - 1, 0.5), {"b": 0.5, "a": 2**63 - 1}]
        (row,) = rows
        maps = [{"x": np.int64(2**53 + 1), "y": None}, [("x", 2**53 + 1), ("y", None)]]
        for struct, entries in itertools.product(structs, maps):
            rest = *row[1:], "abc"
            yield Row(struct, entries, *rest)
            self.kept.update((struct, entries))
            yield Row(*self.kept.get(), *rest)


@pytest.mark.slow
def test_spellings_of_output(spark: SparkSession, tmp_path: Path) -> None:
    """Rows, tuples and dicts are structs, dicts and lists of entries are maps."""
    feed = Feed(tmp_path / "in").add([("a", 1)])
    void = "struct<x:void,y:array<void>,d:date>"
    times = "t array<time(6)>, " if TIME_OF_DAY else ""
    output = f"s struct<a:long,b:double>, m map<string,long>, v {void}, {times}c char(3)"
    time_columns = [F.expr("array(time'01:02:03.000004', null)").alias("t")] if TIME_OF_DAY else []
    found: list[Row] = []
    with session_conf(spark, {"spark.sql.timeType.enabled": "true"}):
        rows = feed.stream(spark).select(
            "k",
            F.expr("struct(null as x, array(null) as y, date'2024-02-29' as d)").alias("void"),
            *time_columns,
        )
        df = ckpt.key_by(rows, *rows.columns).transformWithState(
            Spellings(), output, "Append", "None", uid="op"
        )
        writer = ckpt.write_stream(df).foreachBatch(lambda df, _: found.extend(df.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "loc")).start()
        query.processAllAvailable()
        query.stop()
    expected = Row(
        s=Row(a=2**63 - 1, b=0.5),
        m={"x": 2**53 + 1, "y": None},
        v=Row(x=None, y=[None], d=dt.date(2024, 2, 29)),
        **({"t": [dt.time(1, 2, 3, 4), None]} if TIME_OF_DAY else {}),
        c="abc",
    )
    assert found == [expected] * 12


class Large(Count):
    """Emit the row after a way through state."""

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "s struct<text:string,raw:array<binary>>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.kept.update((row.s,))
            yield Row(*self.kept.get())


@pytest.mark.soak
def test_large_nested_values(spark: SparkSession, tmp_path: Path) -> None:
    """Nested values beyond the parser's default limit of 20 million characters pass."""
    ddl = "s struct<text:string,raw:array<binary>>"
    feed: Any = SqlFeed(tmp_path / "in", "id int, " + ddl)
    large = "repeat('xyz', 8000000)"
    feed.write(spark, {"s": (ddl[2:], [f"struct({large}, array(cast({large} as binary)))"])})
    job = Job(spark, tmp_path, feed, Large, ddl, keys=("id",))
    job.run()
    digest = F.md5("s.text"), F.length("s.text"), F.md5(F.col("s.raw")[0])
    result = spark.read.schema(ddl).parquet(str(tmp_path / "out"))
    assert result.select(*digest).collect() == feed.table(spark).select(*digest).collect()


LIMITS_SCHEMA = (
    "flag boolean, b tinyint, l bigint, f float, d double, dec decimal(38,2), text string, "
    "raw binary, day date, ts timestamp, ntz timestamp_ntz, span interval day to second, "
    "many array<timestamp>, dict map<string,int>, st struct<day:date,x:double>, nothing int"
)
FIRST, LAST = dt.datetime.min, dt.datetime.max  # noqa: DTZ901
LIMITS: dict[str, tuple[Any, ...]] = {
    "low": (
        False, -128, -(2**63), -3.4028234663852886e38, 5e-324, Decimal("-" + "9" * 36 + ".99"),
        "", b"", dt.date.min, FIRST, FIRST, dt.timedelta(microseconds=-(2**63)), [], {},
        Row(day=None, x=None), None,
    ),
    "high": (
        True, 127, 2**63 - 1, float("inf"), float("-inf"), Decimal("9" * 36 + ".99"),
        "a\0ä😀" * 100, bytes(range(256)), dt.date.max, LAST, LAST,
        dt.timedelta(microseconds=2**63 - 1), [FIRST, None, LAST], {"": None},
        Row(day=dt.date.max, x=-0.0), None,
    ),
}  # fmt: skip
"""The first and the last value of each type, and what is empty."""


class Limits(Count):
    """Write the limits at the first row of a key, and show what each state has before and after."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", LIMITS_SCHEMA)
        self.list = handle.getListState("list", LIMITS_SCHEMA)
        self.map = handle.getMapState("map", LIMITS_SCHEMA, LIMITS_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            limits = LIMITS[key[0]]
            if row.v == 0:
                self.value.update(limits)
                self.list.put([limits])
                self.map.updateValue(limits, limits)
            entry = next(self.map.iterator())
            for way, found in (
                ("value", self.value.get()),
                ("list", next(self.list.get())),
                ("map", self.map.getValue(limits)),
                ("map key", entry[0]),
                ("map value", entry[1]),
            ):
                yield Row(k=key[0], epoch=row.v, way=way, is_same=tuple(found) == limits)


@pytest.mark.slow
def test_the_limits_of_types_are_read_in_every_way(spark: SparkSession, tmp_path: Path) -> None:
    """In the epoch, after a restart, by live reads and in tables of a savepoint."""
    feed = Feed(tmp_path / "in").add([("low", 0), ("high", 0)])
    job = Job(spark, tmp_path, feed, Limits, "k string, epoch long, way string, is_same boolean")
    job.run()
    drop_local_copies(spark)
    feed.add([("low", 1), ("high", 1)])
    with job.running() as query:
        query.processAllAvailable()
        live = query.state("op", "value").to_arrow()
        keys = {key: query.state("op", "value").get(key) for key in LIMITS}
        savepoint = query.triggerSavepoint(str(tmp_path / "savepoints"))
    result = spark.read.schema(job.output).parquet(str(tmp_path / "out")).collect()
    assert len(result) == 2 * 2 * 5
    assert [row for row in result if not row.is_same] == []
    with ckpt.location(savepoint.path).state() as snapshot:
        stored = snapshot.state("op", "value")
        tables = [live, stored.to_arrow().read_all()]
        tables += [snapshot.state("op", name).to_arrow().read_all() for name in ("list", "map")]
        assert {key: stored.get(key) for key in LIMITS} == keys
        assert len(stored.to_pandas()) == 2
    names = [field.split()[0] for field in LIMITS_SCHEMA.split(", ")]
    for table in tables:
        for name in ("l", "dec", "text", "raw", "day", "ntz", "span"):
            column = table.column(name if name in table.column_names else f"value_{name}")
            found = dict(zip(table.column("k").to_pylist(), column.to_pylist(), strict=True))
            place = names.index(name)
            assert found == {key: limits[place] for key, limits in LIMITS.items()}, name
    instants = [
        table.column("ts" if "ts" in table.column_names else "value_ts").cast("int64").to_pylist()
        for table in tables
    ]
    assert len({tuple(sorted(each)) for each in instants}) == 1
