"""What a mapper returns is stored as the state's own methods would store it, or refused."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.importing.state_rows import EntriesOf, Mapped
from pyspark_ckpt.testing.schema_text import parse_schema
from pyspark_ckpt.values.codec import TupleCodec

NOON = datetime(2023, 11, 14, 12, 30, 0, 250_000, tzinfo=timezone.utc)
GIVEN: list[tuple[str, Any, Any]] = [
    ("double", 3, 3.0),
    ("double", float("-inf"), float("-inf")),
    ("float", 3, 3.0),
    ("decimal(10,2)", 3, Decimal("3.00")),
    ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
    ("int", -5, -5),
    ("bigint", 2**62, 2**62),
    ("string", "ä", "ä"),
    ("boolean", True, True),
    ("binary", b"ab", b"ab"),
    ("date", date(2023, 11, 14), date(2023, 11, 14)),
    ("interval", timedelta(hours=-3), timedelta(hours=-3)),
    ("array<double>", [1, None, 2.5], [1.0, None, 2.5]),
    ("map<string,double>", {"a": 1}, {"a": 1.0}),
    ("struct<a:double,b:string>", (1, "x"), Row(a=1.0, b="x")),
    ("double", None, None),
]
REFUSED: list[tuple[str, Any]] = [
    ("int", 2**40),
    ("tinyint", 300),
    ("bigint", 2.0),
    ("bigint", "5"),
    ("string", 5),
    ("array<int>", [2**40]),
]


def schema_of(ddl: str) -> T.StructType:
    if ddl == "interval":
        return T.StructType().add("n", T.DayTimeIntervalType())
    return parse_schema(f"n {ddl}")


def entries_of(ddl: str, value: Any) -> tuple[EntriesOf, T.StructType]:
    schema = schema_of(ddl)
    state = StateDescriptor("s", "value", schema.json())
    mapped = Mapped(lambda *_: ckpt.KeyState({"s": (value,)}), ("s",), "op", has_timers=False)
    return EntriesOf(mapped, state), schema


def test_timers_that_would_be_lost() -> None:
    """Without a time mode, which is the default, no timers are stored."""

    def mapper(key: Any, state: Any, timeout_ms: int | None) -> ckpt.KeyState:
        return ckpt.KeyState({"s": state}, timers=[] if timeout_ms is None else [timeout_ms])

    refusing = Mapped(mapper, ("s",), "operator 'c'", has_timers=False)
    assert refusing(("a",), (1,), None).timers == refusing(("a",), (1,), -1).timers == []
    with pytest.raises(
        ckpt.errors.PlanError, match=r"operator 'c': .* key \('a',\) returned timers"
    ):
        refusing(("a",), (1,), 60_000)
    assert Mapped(mapper, ("s",), "op", has_timers=True)(("a",), (1,), 60_000).timers == [60_000]


def imported(spark: SparkSession, ddl: str, value: Any) -> Any:
    entries, schema = entries_of(ddl, value)
    made = F.udf(entries, T.ArrayType(schema), useArrow=False)
    nothing = F.lit(None).cast("long")
    rows = spark.range(1).select(
        F.explode(made(F.struct("id"), F.struct("id"), nothing)).alias("e")
    )
    return rows.select("e.n").first().n  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(("ddl", "value", "stored"), GIVEN)
def test_values(spark: SparkSession, ddl: str, value: Any, stored: Any) -> None:
    found = imported(spark, ddl, value)
    found = bytes(found) if isinstance(found, bytearray) else found  # of older versions of PySpark
    assert repr(found) == repr(stored)  # 3 would be equal to 3.0
    codec = TupleCodec(schema_of(ddl), "s")
    assert codec.decode(codec.encode((value,))) == (found,)


@pytest.mark.slow
@pytest.mark.parametrize("value", [NOON, NOON.replace(tzinfo=None, fold=1), NOON.replace(fold=1)])
def test_times(spark: SparkSession, value: datetime) -> None:
    entries, schema = entries_of("timestamp", value)
    made = F.udf(entries, T.ArrayType(schema), useArrow=False)
    nothing = F.lit(None).cast("long")
    rows = spark.range(1).select(
        F.explode(made(F.struct("id"), F.struct("id"), nothing)).alias("e")
    )
    micros = rows.select(F.unix_micros("e.n").alias("us")).first()
    assert micros is not None
    assert micros.us == round(value.timestamp() * 1_000_000)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_times_at_the_end_of_pythons_years(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Such a time stands for ever in many programs."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for text in ("9999-12-31 23:59:59", "0001-01-02 00:00:01"):
            value = datetime.fromisoformat(text)
            entries, schema = entries_of("timestamp", value)
            ((found,),) = entries(("a",), None, None)
            timestamp = schema["n"].dataType
            assert timestamp.toInternal(found) == timestamp.toInternal(value)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("ddl", "value"), REFUSED)
def test_values_that_do_not_fit(ddl: str, value: Any) -> None:
    entries, _ = entries_of(ddl, value)
    with pytest.raises(CkptError, match="does not fit the schema"):
        entries(("a",), None, None)
