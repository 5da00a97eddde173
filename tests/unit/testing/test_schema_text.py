"""DDL text is parsed without the JVM as Spark's parser does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.testing.schema_text import ParsedSchemas, parse_schema
from tests.unit.values.cases import CASES

DAYS, MONTHS = T.DayTimeIntervalType, T.YearMonthIntervalType
ATOMIC = [
    *(data_type for typed in CASES.values() for data_type, _ in typed),
    *(DAYS(first, last) for first in range(4) for last in range(first, 4)),
    *(MONTHS(first, last) for first in range(2) for last in range(first, 2)),
]
"""Each type of the table, and intervals of all units."""

NAMES = st.text("abcXYZ_019", min_size=1).filter(lambda name: not name[0].isdigit())


def structs(types: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.StructType]:
    fields = st.lists(st.builds(T.StructField, NAMES, types), max_size=3)
    return fields.map(T.StructType)


TYPES = st.recursive(
    st.sampled_from(ATOMIC),
    lambda inner: st.one_of(
        st.builds(T.ArrayType, inner), st.builds(T.MapType, inner, inner), structs(inner)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("data_type", ATOMIC, ids=str)
def test_a_type_alone_is_a_state_s_only_field(data_type: T.DataType) -> None:
    (field,) = ParsedSchemas()[data_type.simpleString()].fields
    assert field.dataType == data_type


@given(structs(TYPES))
def test_spark_s_own_text_of_a_schema_is_read_back(schema: T.StructType) -> None:
    assert parse_schema(schema.simpleString()) == schema


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("n long", [("n", T.LongType(), True)]),
        ("N BIGINT, s String", [("N", T.LongType(), True), ("s", T.StringType(), True)]),
        ("a: byte, b: decimal(  16 , 8   ) ", [
            ("a", T.ByteType(), True), ("b", T.DecimalType(16, 8), True),
        ]),
        ("n int not null", [("n", T.IntegerType(), False)]),
        ("n dec", [("n", T.DecimalType(10, 0), True)]),
        ("n numeric(5)", [("n", T.DecimalType(5, 0), True)]),
        ("`a b``c` date", [("a b`c", T.DateType(), True)]),
        ("date date, map map<string,int>", [
            ("date", T.DateType(), True),
            ("map", T.MapType(T.StringType(), T.IntegerType()), True),
        ]),
        ("a array<struct<x: int NOT NULL>>", [
            ("a", T.ArrayType(T.StructType([T.StructField("x", T.IntegerType(), False)])), True),
        ]),
        ("t timestamp_ltz, u timestamp_ntz", [
            ("t", T.TimestampType(), True), ("u", T.TimestampNTZType(), True),
        ]),
    ],
)  # fmt: skip
def test_the_forms_that_a_text_may_have(
    text: str, fields: list[tuple[str, T.DataType, bool]]
) -> None:
    assert parse_schema(text) == T.StructType([T.StructField(*field) for field in fields])


def test_a_comment_is_kept() -> None:
    (field,) = parse_schema(r"n long COMMENT 'Ada\'s'").fields
    assert field.metadata == {"comment": "Ada's"}


@pytest.mark.parametrize(
    "text",
    ["", "n", "n lnog", "n long,", "n long s string", "a array<int", "a array<int>>", "n long not",
     "d decimal(x)", "d decimal(1", "1-2", "n long ?", "m map<int>", ": int", "a comment",
     "c char", "c char(3,4)", "v varchar(x)", "t time(7)", "t time(1,2)", "i interval",
     "i interval second to day", "i interval day to month", "i interval week"],
)  # fmt: skip
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"cannot be parsed: .*; give a StructType"):
        parse_schema(text)


def test_each_text_is_parsed_once() -> None:
    schemas = ParsedSchemas()
    assert schemas["n long"] is schemas["n long"]
