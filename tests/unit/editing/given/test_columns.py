"""Columns of an edit are taken by their names, also below the first level."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.editing.given_columns import selected
from pyspark_ckpt.editing.typed_frames import TableColumns
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.query.session_conf import session_conf

HAS_TIMES = "spark.sql.timeType.enabled"

GIVEN: list[tuple[str, str, str, Any]] = [
    (
        "struct<zip:string,city:string>",
        "named_struct('city', 'Ulm', 'zip', '89073')",
        "struct<city:string,zip:string>",
        Row(zip="89073", city="Ulm"),
    ),
    (
        "array<struct<a:bigint,b:struct<c:int,d:string>>>",
        "array(named_struct('b', named_struct('d', 'x', 'c', 1), 'a', 2), null)",
        "array<struct<b:struct<d:string,c:int>,a:int>>",
        [Row(a=2, b=Row(c=1, d="x")), None],
    ),
    (
        "map<struct<a:int,b:int>,struct<c:int,d:int>>",
        "map(named_struct('b', 1, 'a', 2), named_struct('d', 3, 'c', 4))",
        "map<struct<b:int,a:int>,struct<d:int,c:int>>",
        {Row(a=2, b=1): Row(c=4, d=3)},
    ),
    ("struct<a:int,b:int>", "null", "struct<b:int,a:int>", None),
    ("struct<a:bigint,`b.c`:int>", "struct(1 as `b.c`, 2 as a)", "", Row(**{"a": 2, "b.c": 1})),
    ("struct<a:double,b:int>", "struct(1 as a, 2 as b)", "", Row(a=1.0, b=2)),
    ("array<struct<a:bigint,a:int>>", "array(struct(1 as a, 2 as a))", "", None),
]


def columns(spark: SparkSession, wanted: str) -> TableColumns:
    kind = spark.sql(f"select cast(null as {wanted}) v").schema["v"].dataType
    return TableColumns(
        keys=(T.StructField("k", T.StringType()),), values=(T.StructField("v", kind),)
    )


@pytest.mark.parametrize(("wanted", "value", "given", "expected"), GIVEN)
def test_structs_are_taken_by_name(
    spark: SparkSession, wanted: str, value: str, given: str, expected: Any
) -> None:
    of_type = f"cast({value} as {given})" if given else value
    rows = spark.sql(f"select 'a' k, {of_type} v")
    row = selected(rows, columns(spark, wanted), "state 's'").first()
    assert row is not None
    if "a:int>>" in wanted:  # two fields of one name stay at their places
        assert list(map(tuple, row.v)) == [(1, 2)]
    else:
        assert row.v == expected


@pytest.mark.parametrize(
    "given",
    [
        "named_struct('city', 'Ulm', 'code', '89073')",
        "named_struct('city', 'Ulm')",
        "named_struct('ZIP', '89073', 'city', 'Ulm')",
        "named_struct('zip', '1', 'city', '2', 'land', '3')",
    ],
)
def test_structs_with_other_fields_are_refused(spark: SparkSession, given: str) -> None:
    wanted = columns(spark, "struct<zip:string,city:string>")
    with pytest.raises(PlanError, match=r"state 's': column 'v' has struct.*its table has struct"):
        selected(spark.sql(f"select 'a' k, {given} v"), wanted, "state 's'")


KEPT = [
    ("bigint", "cast(5 as double)"),
    ("bigint", "'5'"),
    ("bigint", "cast(9007199254740992 as double)"),
    ("int", "cast(7 as bigint)"),
    ("float", "cast(0.1 as double)"),
    ("double", "cast(9007199254740992 as bigint)"),
    ("double", "cast(1.5 as decimal(10,2))"),
    ("decimal(10,2)", "cast(1.50 as decimal(20,4))"),
    ("decimal(10,2)", "cast(0.25 as double)"),
    ("string", "5"),
    ("string", "true"),
    ("date", "timestamp'2024-05-01 00:00:00'"),
    ("timestamp", "date'2024-05-01'"),
    ("timestamp", "'2024-05-01 10:00:00'"),
    ("timestamp", "'2024-05-01T10:00:00.123456000Z'"),
    ("timestamp", "'2024-05-01 10:00:00 Europe/Berlin'"),
    ("timestamp", "'2024-05-01'"),
    ("timestamp_ntz", "' 2024-5-1 10:00:00.5'"),
    ("date", "'2024-05-01'"),
    ("date", "'2024-05-01 00:00:00.0'"),
    *[("time(3)", "'10:00:00.123000'") for _ in TIME_OF_DAY],
    ("decimal(10,2)", "'1.500'"),
    ("decimal(38,0)", "'12345678901234567890123456789012345678'"),
    ("decimal(38,18)", "'1.123456789012345678000'"),
    ("decimal(10,2)", "'1.5e3'"),
    ("boolean", "1"),
    ("int", "interval '7' month"),
    ("array<bigint>", "array(cast(1 as double), null)"),
    ("map<string,int>", "map('a', cast(2 as bigint))"),
    ("struct<a:int,b:string>", "named_struct('b', 'x', 'a', cast(3 as double))"),
    ("bigint", "null"),
    ("bigint", "cast(null as double)"),
]
CHANGED = [
    ("bigint", "cast(2.7 as double)"),
    ("bigint", "cast(9007199254740994 as double)"),
    ("int", "cast(16777218 as float)"),
    ("bigint", "'5.7'"),
    ("int", "cast(4294967297 as bigint)"),
    ("tinyint", "300"),
    ("double", "cast(9007199254740993 as bigint)"),
    ("decimal(10,2)", "cast(1.509 as decimal(20,4))"),
    ("string", "cast(5 as double)"),
    ("date", "timestamp'2024-05-01 10:00:00'"),
    ("boolean", "2"),
    ("bigint", "'abc'"),
    ("timestamp", "'soon'"),
    ("timestamp", "'2024-05-01 10:00:00.1234567'"),
    ("timestamp", "'2024-05'"),
    ("timestamp", "'10:00:00'"),
    ("timestamp_ntz", "'2024-05-01 10:00:00+02:00'"),
    ("date", "'2024-05-01 13:45:00'"),
    ("date", "'2024'"),
    *[("time(3)", "'10:00:00.1234'") for _ in TIME_OF_DAY],
    ("decimal(10,2)", "'1.509'"),
    ("decimal(10,2)", "'1.2345e1'"),
    ("decimal(38,18)", "'1.1234567890123456789'"),
    ("decimal(38,0)", "'1.5'"),
    ("array<date>", "array('2024-05-01', '2024-05')"),
    ("array<bigint>", "array(cast(1 as double), cast(1.5 as double))"),
    ("map<string,int>", "map('a', cast(4294967297 as bigint))"),
    ("map<bigint,int>", "map(cast(1.5 as double), 1)"),
    ("struct<a:int,b:string>", "named_struct('b', 'x', 'a', cast(3.5 as double))"),
    ("array<struct<a:int>>", "array(named_struct('a', cast(3.5 as double)))"),
]


@pytest.mark.slow
@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(("wanted", "value"), KEPT)
def test_values_that_stay_the_same_may_have_another_type(
    spark: SparkSession, wanted: str, value: str, ansi: str
) -> None:
    with session_conf(spark, {"spark.sql.ansi.enabled": ansi, HAS_TIMES: "true"}):
        rows = spark.sql(f"select 'a' k, {value} v")
        row = selected(rows, columns(spark, wanted), "state 's'").first()
        by_name = "named_struct('a', 3, 'b', 'x')" if wanted.startswith("struct") else value
        number = "7" if "interval" in value else by_name
        assert row is not None
        assert [row.v] == [
            each.v for each in spark.sql(f"select cast({number} as {wanted}) v").collect()
        ]


@pytest.mark.slow
@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(("wanted", "value"), CHANGED)
def test_values_that_would_be_others_are_refused(
    spark: SparkSession, wanted: str, value: str, ansi: str
) -> None:
    """A key that changed silently would be another key, which an erasure then erases."""
    with session_conf(spark, {"spark.sql.ansi.enabled": ansi, HAS_TIMES: "true"}):
        rows = spark.sql(f"select 'a' k, {value} v")
        with pytest.raises((PySparkException, PlanError)) as caught:
            selected(rows, columns(spark, wanted), "state 's'").collect()
    if ansi == "false" and "map<bigint" not in wanted:  # Spark casts no keys to what may be null
        assert "state 's': column 'v' has a value that is not the same as" in str(caught.value)


OF_ANOTHER_KIND = [
    ("timestamp", "1714557600000L", "bigint is given and timestamp is wanted.*timestamp_millis"),
    ("timestamp", "cast(1.5 as double)", "double is given and timestamp is wanted"),
    ("timestamp", "cast(1.5 as decimal(10,2))", r"decimal\(10,2\) is given"),
    ("timestamp", "true", "boolean is given and timestamp is wanted"),
    ("timestamp", "cast(null as bigint)", "bigint is given and timestamp is wanted"),
    ("timestamp_ntz", "5L", "bigint is given and timestamp_ntz is wanted"),
    ("date", "5", "int is given and date is wanted"),
    ("interval day to second", "5L", "bigint is given and interval day to second is wanted"),
    ("bigint", "timestamp'2024-05-01 10:00:00'", "timestamp is given.*unix_millis"),
    ("double", "timestamp'2024-05-01 10:00:00.5'", "timestamp is given and double is wanted"),
    ("bigint", "interval '5' second", "interval second is given and bigint is wanted"),
    ("array<timestamp>", "array(5L)", "bigint is given and timestamp is wanted"),
    ("map<timestamp,int>", "map(5L, 1)", "bigint is given and timestamp is wanted"),
    (
        "struct<a:timestamp,b:string>",
        "named_struct('b', 'x', 'a', 5L)",
        "bigint is given and timestamp is wanted",
    ),
]


@pytest.mark.parametrize(("wanted", "value", "says"), OF_ANOTHER_KIND)
def test_numbers_are_no_times_and_times_are_no_numbers(
    spark: SparkSession, wanted: str, value: str, says: str
) -> None:
    """Spark would take milliseconds as seconds: an entry of the year 56302, for ever."""
    rows = spark.sql(f"select 'a' k, {value} v")
    with pytest.raises(PlanError, match=f"state 's': column 'v': {says}"):
        selected(rows, columns(spark, wanted), "state 's'")


@pytest.mark.parametrize("own", ["expires_at", "fires_at"])
def test_times_of_the_library_are_given_as_timestamps(spark: SparkSession, own: str) -> None:
    rows = spark.sql(f"select 'a' k, 1714557600000L {own}")
    wanted = TableColumns(keys=(T.StructField("k", T.StringType()),), **{own: own})  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=f"column '{own}': bigint is given.*timestamp_millis"):
        selected(rows, wanted, "state 's'")
