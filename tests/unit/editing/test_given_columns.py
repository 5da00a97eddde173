"""Columns of an edit are taken by their names, also below the first level."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.editing.given_columns import selected
from pyspark_ckpt.editing.table_columns import TableColumns
from pyspark_ckpt.errors import PlanError

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
