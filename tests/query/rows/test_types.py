"""Values of every atomic type go through rows, keys, state and output unchanged."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, Feed, Job, drop_local_copies, run_in_pyspark
from tests.query.model import Count
from tests.query.session_conf import session_conf

TIMES = [
    dt.datetime(1600, 1, 1, 0, 0, 0, 1, tzinfo=dt.timezone.utc),
    dt.datetime(9000, 12, 31, 23, 59, 59, 999999, tzinfo=dt.timezone.utc),
    dt.datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=dt.timezone.utc),
]
TYPES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "b": ("byte", pa.int8(), [-128, 127, 0]),
    "s": ("short", pa.int16(), [-(2**15), 2**15 - 1, 1]),
    "i": ("int", pa.int32(), [-(2**31), 2**31 - 1, -1]),
    "l": ("long", pa.int64(), [2**53 + 1, -(2**63), 2**63 - 1]),
    "f": ("float", pa.float32(), [math.nan, -0.0, 3.4028234663852886e38]),
    "d": ("double", pa.float64(), [math.nan, -0.0, 5e-324]),
    "dec": (
        "decimal(38,18)",
        pa.decimal128(38, 18),
        [Decimal("-0.1"), Decimal(10**19), Decimal(0)],
    ),
    "text": ("string", pa.string(), ["", "häß\u0000\n", "\U0001f600" * 3]),
    "raw": ("binary", pa.binary(), [b"", b"\x00\xff", b"text"]),
    "flag": ("boolean", pa.bool_(), [True, False, True]),
    "day": ("date", pa.date32(), [dt.date(1600, 2, 29), dt.date(9000, 1, 1), dt.date(1970, 1, 1)]),
    "ts": (
        "timestamp",
        pa.timestamp("us", tz="UTC"),
        TIMES,
    ),
    "ntz": (
        "timestamp_ntz",
        pa.timestamp("us"),
        [time.replace(tzinfo=None) for time in TIMES],
    ),
}
DDL = ", ".join(f"{name} {ddl}" for name, (ddl, _, _) in TYPES.items())
SCHEMA = pa.schema([(name, arrow) for name, (_, arrow, _) in TYPES.items()])
ROWS = list(zip(*[values for _, _, values in TYPES.values()], strict=True))
NULLS = (None,) * len(TYPES)
ID = ", id long"
ID_SCHEMA = SCHEMA.append(pa.field("id", pa.int64()))


class Echo(Count):
    """Emit each row as it came, then what value, list and map state kept of the row before."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", DDL)
        self.all = handle.getListState("all", DDL)
        self.by_id = handle.getMapState("by_id", "l long, text string", DDL)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            fields = row.asDict()
            yield Row(via="row", **fields)
            kept = {"value": self.last.get(), "map": self.by_id.getValue((key[0], "k"))}
            kept |= {f"list {i}": item for i, item in enumerate(self.all.get())}
            for via, values in kept.items():
                if values is not None:
                    yield Row(via=via, **dict(zip(TYPES, values, strict=True)), id=row.id)
            values = tuple(fields[name] for name in TYPES)
            self.last.update(values)
            self.all.appendValue(values)
            self.by_id.updateValue((key[0], "k"), values)


def exact(df: DataFrame) -> DataFrame:
    """Return columns as text, so that -0.0 is not 0.0, NaN is NaN, and null is null."""
    shown = [F.hex("raw") if c == "raw" else F.col(c).cast("string").alias(c) for c in df.columns]
    return df.select(shown)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_and_state(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    """Each value, and null, is unchanged by rows, all kinds of state and a restart."""
    feed = Feed(tmp_path / "in", ID_SCHEMA, DDL + ID)
    job = Job(spark, tmp_path, feed, Echo, "via string, " + DDL + ID, keys=("id",))
    job = job.using({BACKEND: backend})
    rows = [(*row, i) for i, row in enumerate([*ROWS, NULLS])]
    feed.add(rows)
    job.run()
    drop_local_copies(spark)
    feed.add(rows)
    job.run()
    result = spark.read.parquet(str(tmp_path / "out"))
    source = spark.read.schema(DDL + ID).parquet(str(tmp_path / "in" / "f00000.parquet"))
    assert source.schema == result.drop("via").schema
    assert_df_equality(
        exact(result.where("via = 'row'").drop("via")),
        exact(source.union(source)),
        ignore_row_order=True,
    )
    for via in ("value", "list 0", "map"):
        assert_df_equality(
            exact(result.where(F.col("via") == via).drop("via")),
            exact(source),
            ignore_row_order=True,
        )
    assert result.count() == 8 + 3 * 4


class CountByKey(Count):
    """Emit all key columns and the number of rows so far."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(*key, n)


@pytest.mark.soak_variants
@pytest.mark.parametrize("keys", [tuple(TYPES), ("text", "f")], ids=len)
def test_keys(spark: SparkSession, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Keys of any type, alone or together, are distinguished as Spark's groupBy does."""
    output = ", ".join(f"{k} {TYPES[k][0]}" for k in keys) + ", n long"
    feed = Feed(tmp_path / "in", ID_SCHEMA, DDL + ID)
    job = Job(spark, tmp_path, feed, CountByKey, output, keys=keys)
    zero = tuple(0.0 if isinstance(v, float) and v == 0 else v for v in ROWS[1])
    rows = [(*row, i) for i, row in enumerate([*ROWS, NULLS, zero, ROWS[2]])]
    feed.add(rows)
    job.run()
    feed.add(rows[::-1])
    job.run()
    newest = spark.read.parquet(str(tmp_path / "out")).groupBy(*keys).agg(F.max("n").alias("n"))
    source = spark.read.schema(DDL + ID).parquet(str(tmp_path / "in"))
    counts = source.groupBy(*keys).agg(F.count("*").alias("n"))
    assert_df_equality(
        newest, counts, ignore_row_order=True, allow_nan_equality=True, ignore_nullable=True
    )


def test_timestamps_of_a_session_in_another_zone(spark: SparkSession, tmp_path: Path) -> None:
    """A timestamp is the same instant whatever spark.sql.session.timeZone is."""
    feed = Feed(tmp_path / "in", ID_SCHEMA, DDL + ID)
    job = Job(spark, tmp_path, feed, Echo, "via string, " + DDL + ID, keys=("id",))
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        feed.add([(*row, 0) for row in [*ROWS, NULLS]])
        job.run()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    result = spark.read.parquet(str(tmp_path / "out")).where("via = 'row'")
    source = spark.read.schema(DDL + ID).parquet(str(tmp_path / "in"))
    assert_df_equality(instants(result), instants(source), ignore_row_order=True)


class EchoFrames(StatefulProcessor):
    """Yield the frames that come in; has no state."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return rows

    def close(self) -> None:
        pass


class EchoKeys(ckpt.BatchProcessor):
    """Yield the keys that come in."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Any:
        yield keys.assign(id=0)[["ts", "id"]]

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("processor", [EchoFrames, EchoKeys])
def test_frames_of_a_session_in_another_zone(
    spark: SparkSession, tmp_path: Path, processor: type
) -> None:
    """What a processor yields as it came is the same instant; PySpark's frames are so, too."""
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("id", pa.int32())])
    feed = Feed(tmp_path / "in", schema, "ts timestamp, id int")
    in_frames = processor is EchoFrames
    method = "transformWithStateInPandas" if in_frames else "transformWithStateInBatches"
    rows = feed.stream(spark)
    feed.add([(dt.datetime(2024, 7, 1, 12, 0, 0, 1, tzinfo=dt.timezone.utc), 0), (None, 1)])
    with session_conf(spark, {"spark.sql.session.timeZone": "America/Los_Angeles"}):
        keyed = ckpt.key_by(rows, "ts")
        df = getattr(keyed, method)(processor(), "ts timestamp, id int", "Append", "None", uid="op")
        writer = ckpt.write_stream(df).option("checkpointLocation", str(tmp_path / "loc"))
        query = writer.trigger(availableNow=True).format("parquet").start(str(tmp_path / "out"))
        query.awaitTermination()
    result = spark.read.parquet(str(tmp_path / "out")).select(F.unix_micros("ts"))
    source = spark.read.schema("ts timestamp, id int").parquet(str(tmp_path / "in"))
    assert_df_equality(result, source.select(F.unix_micros("ts")), ignore_row_order=True)


def instants(df: DataFrame) -> DataFrame:
    return df.select(F.unix_micros("ts").alias("ts"), F.col("ntz").cast("string"), "day")


class PythonTypes(Count):
    """Emit how Python shows the key and each field of a row."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            fields = [f"{name}={value!r}" for name, value in row.asDict().items() if name != "ts"]
            yield Row(key=repr(tuple(key)), fields="; ".join(fields), ts=repr(row.ts))


@pytest.fixture(scope="module")
def python_types(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DataFrame, DataFrame]:
    """Return what processors see of the same rows here and in PySpark."""
    base = tmp_path_factory.mktemp("types")
    feed = Feed(base / "in", ID_SCHEMA, DDL + ID)
    output = "key string, fields string, ts string"
    job = Job(spark, base, feed, PythonTypes, output, keys=("id", "day", "raw", "dec"))
    feed.add([(*row, i) for i, row in enumerate([*ROWS, NULLS])])
    job.run()
    return spark.read.parquet(str(base / "out")), run_in_pyspark(job)


@pytest.mark.soak
def test_python_types(python_types: tuple[DataFrame, DataFrame]) -> None:
    """Processors get the same Python objects as in PySpark."""
    ours, theirs = python_types
    assert_df_equality(ours.drop("ts"), theirs.drop("ts"), ignore_row_order=True)


@pytest.mark.slow
def test_python_timestamps(python_types: tuple[DataFrame, DataFrame]) -> None:
    """Processors get a timestamp with the session's time zone, as in PySpark."""
    ours, theirs = python_types
    assert_df_equality(ours.select("ts"), theirs.select("ts"), ignore_row_order=True)


class AwareTimes(Count):
    """Keep and emit timestamps that carry a time zone."""

    def init(self, handle: Any) -> None:
        self.time = handle.getValueState("time", "ts timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            zone = dt.timezone(dt.timedelta(hours=-7))
            aware = dt.datetime.fromtimestamp(row.l / 1000, tz=zone)
            self.time.update((aware,))
            (kept,) = self.time.get()
            assert kept.timestamp() == aware.timestamp()
            yield Row(l=row.l, ts=aware, kept=kept)


def test_timestamps_with_a_zone(spark: SparkSession, tmp_path: Path) -> None:
    """A datetime with a time zone keeps its instant in state and output."""
    feed = Feed(tmp_path / "in", pa.schema([("l", pa.int64())]), "l long")
    job = Job(
        spark, tmp_path, feed, AwareTimes, "l long, ts timestamp, kept timestamp", keys=("l",)
    )
    feed.add([(0,), (1_711_846_800_123,)])
    job.run()
    df = spark.read.parquet(str(tmp_path / "out"))
    found = df.select("l", F.unix_millis("ts"), F.unix_millis("kept"))
    assert {tuple(r) for r in found.collect()} == {(v, v, v) for v in (0, 1_711_846_800_123)}
