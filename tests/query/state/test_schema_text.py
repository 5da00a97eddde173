"""The harness reads DDL text without the JVM, with Spark's result."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.testing.schema_text import parse_schema


@pytest.mark.parametrize(
    "text",
    [
        "n long",
        "N BIGINT, s String, t tinyint, u smallint, r real, b binary, c boolean, d double, f float",
        "a: byte, b: decimal(  16 , 8   ), c dec, d numeric(5), e short, f integer ",
        "n int not null comment 'Ada\\'s', `a b``c` date, date date, map map<string,int>",
        "a array<struct<x: int NOT NULL, `y z` : map<long, array<timestamp_ntz>>>>",
        "t timestamp, u timestamp_ltz",
        "struct<a:int,b:struct<c:string>>",
    ],
)
def test_a_schema_is_what_spark_makes_of_its_text(spark: SparkSession, text: str) -> None:
    assert parse_schema(text) == T.DataType.fromDDL(text)


@pytest.mark.parametrize("text", ["n", "n lnog", "n long,", "a array<int", "n long not"])
def test_what_spark_refuses_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises(Exception, match=r"PARSE|UNSUPPORTED_DATATYPE|parse"):
        T.DataType.fromDDL(text)
    with pytest.raises(ValueError, match="cannot be parsed"):
        parse_schema(text)
