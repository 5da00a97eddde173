"""Values of each type of the table, at its limits, alone and nested: the cases of conformance."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.values.types import LEAVES, Kind, is_key_in_python, kind_of

FIRST, LAST = datetime.datetime.min, datetime.datetime.max  # noqa: DTZ901
EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001
MICROSECOND = datetime.timedelta(microseconds=1)
FRACTIONS = [0.0, -0.0, 0.5, math.inf, -math.inf, math.nan]
TEXTS = ["", "abc", 'h\0\n"äß😀', "ä" * 70_000]
TIMES = [FIRST, EPOCH - MICROSECOND, EPOCH, EPOCH + 70 * MICROSECOND, LAST]
VARIANT = T.VariantVal(b"\x0c\x07", b"\x01\x00\x00")


def integers(bits: int) -> list[int]:
    return [-(1 << (bits - 1)), -1, 0, 1, (1 << (bits - 1)) - 1]


CASES: dict[type[T.DataType], list[tuple[T.DataType, list[Any]]]] = {
    T.ByteType: [(T.ByteType(), integers(8))],
    T.ShortType: [(T.ShortType(), integers(16))],
    T.IntegerType: [(T.IntegerType(), integers(32))],
    T.LongType: [(T.LongType(), integers(64))],
    T.FloatType: [(T.FloatType(), [*FRACTIONS, 2.0**-149, (2 - 2.0**-23) * 2.0**127])],
    T.DoubleType: [(T.DoubleType(), [*FRACTIONS, 5e-324, 1.7976931348623157e308])],
    T.DecimalType: [
        (T.DecimalType(1, 1), [Decimal("-0.9"), Decimal("0.0")]),
        (T.DecimalType(18, 0), [Decimal("9" * 18), Decimal("-" + "9" * 18)]),
        (T.DecimalType(38, 18), [Decimal("9" * 20 + "." + "9" * 18), Decimal("1E-18")]),
    ],
    T.BooleanType: [(T.BooleanType(), [True, False])],
    T.StringType: [(T.StringType(), TEXTS)],
    T.CharType: [(T.CharType(3), TEXTS)],
    T.VarcharType: [(T.VarcharType(3), TEXTS)],
    T.BinaryType: [(T.BinaryType(), [b"", b"\x00\xff", b"x" * 70_000])],
    T.DateType: [(T.DateType(), [datetime.date.min, EPOCH.date(), datetime.date.max])],
    T.TimestampType: [(T.TimestampType(), TIMES)],
    T.TimestampNTZType: [(T.TimestampNTZType(), TIMES)],
    T.DayTimeIntervalType: [(T.DayTimeIntervalType(), [n * MICROSECOND for n in integers(64)])],
    T.YearMonthIntervalType: [(T.YearMonthIntervalType(), integers(32))],
    T.VariantType: [(T.VariantType(), [VARIANT, T.VariantVal(b"", b"")])],
    T.NullType: [(T.NullType(), [None])],
}
if hasattr(T, "TimeType"):
    day = [datetime.time(0), datetime.time(12, 30, 0, 1), datetime.time.max]
    CASES[T.TimeType] = [(T.TimeType(), day), (T.TimeType(0), day[:1])]

TYPED = [typed for row in LEAVES for typed in CASES.get(row.spark, [])]
BACKENDS = ["heap", "rocksdb"]


def named(part: Any) -> str | None:
    return part.simpleString() if isinstance(part, T.DataType) else None


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All limits of timestamps have a local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


every_type = pytest.mark.parametrize(("data_type", "values"), TYPED, ids=named)


Nesting = tuple[Callable[[T.DataType], T.DataType], Callable[[Any], Any]]
NESTINGS: dict[str, Nesting] = {
    "bare": (lambda kind: kind, lambda value: value),
    "array": (T.ArrayType, lambda value: [value, None]),
    "struct": (lambda kind: T.StructType([T.StructField("x", kind)]), lambda value: (value,)),
    "map": (lambda kind: T.MapType(T.StringType(), kind), lambda value: {"": value, "n": None}),
    "map key": (
        lambda kind: T.MapType(kind, T.IntegerType()),
        lambda value: {} if value is None else {value: 1},
    ),
    "deep": (
        lambda kind: T.ArrayType(T.StructType([T.StructField("x", T.ArrayType(kind))])),
        lambda value: [([value],), (None,), None],
    ),
}


def schema_of(data_type: T.DataType, *names: str) -> T.StructType:
    return T.StructType([T.StructField(name, NESTINGS[name][0](data_type)) for name in names])


def row_of(value: Any, *names: str) -> tuple[Any, ...]:
    return tuple(NESTINGS[name][1](value) for name in names)


def nestings_of(data_type: T.DataType) -> list[str]:
    # Null, the only value of its type, is no key of a map.
    is_map_key = is_key_in_python(data_type) and kind_of(data_type) is not Kind.NULL
    return [name for name in NESTINGS if name != "map key" or is_map_key]


def plain(value: Any, *, is_key: bool = False) -> Any:
    """Return a value of any depth as one that is equal if all in it is the same."""
    if isinstance(value, float):
        return repr(value + 0.0 if is_key else value)
    if isinstance(value, T.VariantVal):
        return bytes(value.value), bytes(value.metadata)
    if isinstance(value, dict):
        pairs = ((plain(k, is_key=is_key), plain(v, is_key=is_key)) for k, v in value.items())
        return sorted(pairs, key=repr)
    if isinstance(value, list | tuple):
        return [plain(each, is_key=is_key) for each in value]
    return value
