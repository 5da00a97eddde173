"""transformWithStateInArrow gives what the same processor gives row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import PlanError, ProcessorError
from tests.query.harness import BACKEND, OFTEN, Feed, Job
from tests.query.model import in_order
from tests.query.rows.test_batches import INPUT, OUTPUT_NAMES, SCHEMA, STATE, Rows, rows_of
from tests.query.timed import ORIGIN_MS, at, timed_feed

OUTPUT = f"g int, k string, {STATE}"


class Arrow(Rows, ckpt.ArrowProcessor):
    """The same as the class of the other module, for all keys at once."""

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        stored = self.totals.getMany(keys)
        grouped = rows.group_by("key_position", use_threads=False).aggregate(
            [([], "count_all"), ("v", "sum"), ("u", "sum"), ("v", "count")]
        )
        grouped = grouped.sort_by("key_position")
        assert grouped.column("key_position").equals(keys.column("key_position"))
        greatest: dict[int, str | None] = dict(enumerate(stored.column("last").to_pylist()))
        for place, w in zip(
            rows.column("key_position").to_pylist(), rows.column("w").to_pylist(), strict=True
        ):
            known = [one for one in (greatest[place], w) if one is not None]
            greatest[place] = max(known, default=None)
        total = pc.if_else(
            pc.and_(pc.is_null(stored.column("total")), pc.equal(grouped.column("v_count"), 0)),
            pa.scalar(None, pa.int64()),
            pc.add(
                pc.fill_null(stored.column("total"), 0), pc.fill_null(grouped.column("v_sum"), 0)
            ),
        )
        n = pc.add(pc.fill_null(stored.column("n"), 0), grouped.column("count_all"))
        new = pa.table(
            {
                "n": n,
                "total": total,
                "mean": pc.divide(total.cast(pa.float64(), safe=False), n.cast(pa.float64())),
                "last": pa.array(greatest.values(), pa.string()),
                "units": pc.add(pc.fill_null(stored.column("units"), 0), grouped.column("u_sum")),
            }
        )
        full = pa.array([count % 7 == 0 for count in n.to_pylist()])
        self.totals.clearMany(keys.filter(full))
        self.totals.updateMany(keys.filter(pc.invert(full)), new.filter(pc.invert(full)))
        yield from keys.append_column("n", n).to_batches()[:0]  # an empty one
        for name in new.column_names:
            keys = keys.append_column(name, new.column(name))
        yield keys.slice(0, 3)
        yield keys.slice(3)


@pytest.mark.slow
def test_as_row_by_row(job: Job, tmp_path: Path) -> None:
    """The same output with composite keys and nulls, across a restart on another backend."""
    feed = Feed(tmp_path / "rows", SCHEMA, INPUT)
    job = job.but(feed=feed, keys=("g", "k"), processor=Arrow, output=OUTPUT).using(OFTEN)
    arrow = job.but(method="transformWithStateInArrow", location="loc2", out="out2")
    # The rows of the last epoch are more than a half of this limit: they come in several parts.
    arrow = arrow.using({"spark.ckpt.execution.memory-limit": "1mb"})
    feed.add(rows_of(0, 100), rows_of(1, 300))
    single = job.but(processor=lambda: Rows())
    for each in (single, arrow):
        each.run()
    feed.add(rows_of(2, 10), rows_of(3, 8000))
    single.run()
    arrow.using({BACKEND: "heap"}).run()
    assert single.result()
    assert arrow.result() == single.result()
    assert [column.split()[0] for column in OUTPUT.split(", ")] == OUTPUT_NAMES


class ArrowAlarm(ckpt.ArrowProcessor):
    """Set a timer at each row's value, in seconds, and delete the one before; keep the last."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "v long")

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        assert rows.schema.field("ts").type == pa.timestamp("us", "UTC")
        before = self.last.getMany(keys).column("v")
        known = pc.is_valid(before)
        self.handle.deleteTimers(keys.filter(known), before.filter(known))
        newest = rows.group_by("key_position", use_threads=False).aggregate([("v", "max")])
        new = pc.multiply(newest.sort_by("key_position").column("v_max"), 1000)
        self.handle.registerTimers(keys, pc.add(new, ORIGIN_MS))
        self.last.updateMany(keys, pa.table({"v": pc.add(new, ORIGIN_MS)}))
        what = pa.array(["set"] * len(keys))
        yield keys.append_column("what", what).append_column("v", new)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pa.Table]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        assert self.last.get() == (fired,)
        self.last.clear()
        yield pa.table({"k": [key[0]], "what": ["fired"], "v": [fired - ORIGIN_MS]})


class ArrowAlarms(ArrowAlarm):
    """The same for all timers at once."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        raise AssertionError("it is called timer by timer")

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        fired = timers.column("time_ms")
        assert timers.column("key_position").equals(keys.column("key_position"))
        assert self.last.getMany(keys).column("v").equals(fired)
        self.last.clearMany(keys)
        what, v = pa.array(["fired"] * len(keys)), pc.subtract(fired, ORIGIN_MS)
        yield keys.append_column("what", what).append_column("v", v)


@pytest.mark.slow
@pytest.mark.parametrize("processor", [ArrowAlarm, ArrowAlarms])
def test_timers(job: Job, tmp_path: Path, processor: type[ckpt.ArrowProcessor]) -> None:
    """Timers of many keys are set and deleted from Arrow; they fire once, after a restart."""
    feed = timed_feed(tmp_path / "timed")
    job = job.but(feed=feed, processor=processor, output="k string, what string, v long")
    job = job.but(method="transformWithStateInArrow", time_mode="EventTime", watermark="ts")
    keys = [f"k{i}" for i in range(8)]
    feed.add([(k, 10 + i // 2 * 2, at(0)) for i, k in enumerate(keys)])
    job.run()
    feed.add([(k, 30, at(1)) for k in keys[:3]], [("tick", 99, at(15))])
    job.run()
    emitted = [(k, "set", 1000 * (10 + i // 2 * 2)) for i, k in enumerate(keys)]
    emitted += [(k, "set", 30_000) for k in keys[:3]] + [("tick", "set", 99_000)]
    emitted += [(keys[i], "fired", 1000 * (10 + i // 2 * 2)) for i in range(3, 6)]
    assert job.result() == in_order(emitted)


ALL_TYPES = """
SELECT * FROM VALUES
  (1, 1Y, 2S, 3L, CAST(1.5 AS FLOAT), 2.5D, true, 'a', X'0102', 1.25BD, DATE'2024-02-29',
   TIMESTAMP'2024-02-29 01:02:03.000004', TIMESTAMP_NTZ'1950-01-02 03:04:05.6',
   INTERVAL '1 02:03:04.5' DAY TO SECOND, INTERVAL '1-2' YEAR TO MONTH,
   ARRAY(1, NULL), MAP('a', 1L, 'b', NULL), NAMED_STRUCT('x', 1, 'y', ARRAY(DATE'1999-12-31')),
   PARSE_JSON('{"a": [1, null]}')),
  (2, NULL, NULL, NULL, NULL, CAST('NaN' AS DOUBLE), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   NULL, NULL, NULL, NULL, NULL, NULL),
  (3, -1Y, -2S, 9223372036854775807L, CAST('-Infinity' AS FLOAT), -0.0D, false, '', X'', -0.01BD,
   DATE'0001-01-01', TIMESTAMP'1900-01-01 00:00:00', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999',
   INTERVAL '0' SECOND, INTERVAL '-1' MONTH, ARRAY(), MAP(), NAMED_STRUCT('x', NULL, 'y', NULL),
   PARSE_JSON('null'))
AS t(id, byte, short, long, float, double, bool, text, bytes, dec, date, ts, ntz, dt, ym, items,
     entries, nested, variant)
"""


class Stored(ckpt.ArrowProcessor):
    """Put all columns into a state; yield what the state has."""

    def init(self, handle: Any) -> None:
        self.row = handle.getValueState("row", self.schema)

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        self.row.updateMany(keys, rows)
        yield self.row.getMany(keys)

    def close(self) -> None:
        pass


def test_every_type_comes_back(spark: SparkSession) -> None:
    df = spark.sql(ALL_TYPES)
    schema = df.schema
    output = ckpt.key_by(df, "id").transformWithStateInArrow(
        Stored(schema), schema, "Update", "None", uid="stored"
    )
    found, expected = (
        sorted(map(_comparable, each.withColumn("ym", F.col("ym").cast("string")).collect()))
        for each in (output, df)
    )
    assert found == expected
    assert len(found) == 3


def _comparable(row: Row) -> list[str]:
    return [
        repr(value) if name != "variant" else str(value) for name, value in row.asDict().items()
    ]


class Yields(ckpt.ArrowProcessor):
    """Yield what the test says."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("n", "n long")

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> Any:
        return self.make(self, keys)

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda _, keys: keys, "returned a table: yield it"),
        (lambda _, keys: [1], "yielded int: yield Arrow tables"),
        (lambda _, keys: [keys], r"lacks \['n'\] of its outputStructType"),
        (
            lambda _, keys: [keys.append_column("n", pa.array(["x"] * len(keys)))],
            "output column 'n' is bigint, the yielded column is string",
        ),
        (
            lambda _, keys: [keys.append_column("n", pa.array([1.5] * len(keys)))],
            "output column 'n' is bigint, the yielded column is double",
        ),
        (lambda self, keys: self.state.getMany(keys.drop("key_position")), "'key_position'"),
        (
            lambda self, keys: self.state.updateMany(keys, pa.table({"m": [1]})),
            r"updateMany got 1 rows with the columns \['m'\]",
        ),
        (
            lambda self, keys: self.state.updateMany(keys, pa.table({"n": ["x"] * len(keys)})),
            "column 'n' is string, its type in the schema is bigint",
        ),
    ],
)
def test_what_does_not_fit_is_named(spark: SparkSession, make: Any, error: str) -> None:
    df = spark.createDataFrame([("a",)], "k string")
    output = ckpt.key_by(df, "k").transformWithStateInArrow(
        Yields(make), "k string, n long", "Update", "None", uid="yields"
    )
    with pytest.raises(Exception, match=error) as raised:
        output.collect()
    assert "yields" in str(raised.value)


def test_plans_that_are_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a",)], "key_position string")
    with pytest.raises(PlanError, match="rename it"):
        ckpt.key_by(df, "key_position").transformWithStateInArrow(
            Yields(None), "k string", "Update", "None"
        )
    with pytest.raises(PlanError, match="ArrowProcessor"):
        ckpt.key_by(df, "key_position").transformWithStateInArrow(
            Rows(),  # type: ignore[arg-type]
            "k string",
            "Update",
            "None",
        )
    assert issubclass(ProcessorError, Exception)


class Same(ckpt.ArrowProcessor):
    """The rows as they came."""

    def init(self, handle: Any) -> None: ...

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        assert rows.schema.field("m").type == pa.map_(pa.list_(pa.int32()), pa.string())
        yield rows

    def close(self) -> None: ...


@pytest.mark.slow
def test_maps_by_lists(job: Job, tmp_path: Path) -> None:
    """Python's dictionaries have no such keys, Spark's maps and Arrow's do."""
    path, ddl = str(tmp_path / "maps"), "k string, m map<array<int>,string>"
    maps = {"a": "map(array(1, null), 'x', array(), null)", "b": "null", "c": "map()"}
    for key, value in maps.items():
        row = f"select '{key}' as k, cast({value} as map<array<int>,string>) as m"
        job.spark.sql(row).coalesce(1).write.mode("append").parquet(path)

    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.spark.readStream.schema(ddl).parquet(path), "k")
        return keyed.transformWithStateInArrow(Same(), ddl, "Append", "None", uid="op")

    job = job.but(plan=plan, output=ddl)
    job.run()
    expected = job.spark.read.schema(ddl).parquet(path)
    found = job.spark.read.schema(ddl).parquet(str(job.base / job.out))
    columns = ["k", "to_json(map_entries(m)) as m"]
    assert sorted(map(repr, found.selectExpr(*columns).collect())) == sorted(
        map(repr, expected.selectExpr(*columns).collect())
    )
