"""Hypothesis strategies: Spark types of any depth with values, null at every level."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.values.types import TIME_OF_DAY

Values = st.SearchStrategy[Any]
Typed = tuple[T.DataType, Values]

_first, _last = (datetime.datetime(year, 1, 1) for year in (1950, 2100))  # noqa: DTZ001
_times = st.datetimes(_first, _last).map(lambda t: t.replace(fold=0))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def variants(data: bytes) -> T.VariantVal:
    return T.VariantVal(data, data[::-1])


def integers(bits: int) -> Values:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


NOT_BUILT: list[T.DataType] = [T.CalendarIntervalType()]
if hasattr(T, "GeometryType"):  # since PySpark 4.1
    NOT_BUILT.append(T.GeometryType(4326))
LEAVES: list[Typed] = [
    (T.ByteType(), integers(8)),
    (T.ShortType(), integers(16)),
    (T.IntegerType(), integers(32)),
    (T.LongType(), integers(64)),
    (T.DoubleType(), st.floats()),
    (T.FloatType(), st.floats(width=32)),
    (T.BooleanType(), st.booleans()),
    (T.StringType(), TEXTS),
    (T.CharType(3), TEXTS),
    (T.VarcharType(3), TEXTS),
    (T.BinaryType(), st.binary(max_size=5)),
    (T.DecimalType(38, 6), st.decimals(-(10**9), 10**9, places=6).map(lambda d: d or abs(d))),
    (T.DateType(), st.dates()),
    (T.TimestampType(), _times),
    (T.TimestampNTZType(), st.datetimes().map(lambda t: t.replace(fold=0))),
    *[(kind(), st.times().map(lambda t: t.replace(fold=0))) for kind in TIME_OF_DAY],
    (T.DayTimeIntervalType(), integers(64).map(lambda n: datetime.timedelta(microseconds=n))),
    (T.YearMonthIntervalType(), integers(32)),
    (T.VariantType(), st.binary(max_size=3).map(variants)),
    (T.NullType(), st.none()),
]


def struct(*types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(f"f{n}", kind) for n, kind in enumerate(types)])


def row(values: tuple[Any, ...]) -> Row:
    return Row(**{f"f{n}": value for n, value in enumerate(values)})


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    arrays = inner.map(lambda i: (T.ArrayType(i[0]), st.lists(st.none() | i[1], max_size=3)))
    maps = inner.map(
        lambda i: (
            T.MapType(T.StringType(), i[0]),
            st.dictionaries(TEXTS, st.none() | i[1], max_size=3),
        )
    )
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda fields: (
            struct(*(kind for kind, _ in fields)),
            st.tuples(*(st.none() | values for _, values in fields)).map(row),
        )
    )
    return arrays | maps | structs


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)
"""A type and a strategy for its values."""
