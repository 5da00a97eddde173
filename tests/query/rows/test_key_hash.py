"""The place of a key, found without Spark, is where Spark's hash put the key."""

from __future__ import annotations

import datetime
from decimal import Context, localcontext
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.key_columns import canonical_column
from pyspark_ckpt.operator.rows.keys import KeyPlaces
from pyspark_ckpt.values.nesting import holds
from tests.query.rows.test_key_hashing import KEYS
from tests.unit.operator.spark_values import TYPES, struct

MAX_PARALLELISM = 128
_TIMES = "spark.sql.timeType.enabled"

_NO_KEYS = (T.MapType, T.VariantType)
_NOT_SENT = (T.YearMonthIntervalType, T.CharType, T.VarcharType)
"""PySpark makes no columns of them from Python values."""


def collected(spark: SparkSession, ddl: str, text: str) -> Any:
    if ddl == "interval year to month":  # PySpark shows it as its number of months
        months = "cast(extract(year from x) * 12 + extract(month from x) as int)"
        text = f"(select {months} from (select cast({text} as {ddl}) x))"
        ddl = "int"
    return spark.sql(f"select cast({text} as {ddl}) k").first().k  # type: ignore[union-attr]


@pytest.mark.parametrize("ddl", [ddl for ddl in KEYS if "interval year to month>" not in ddl])
def test_places_of_known_keys(spark: SparkSession, ddl: str) -> None:
    """The groups and bytes of the table are those that Spark makes and format 1 has."""
    schema = spark.sql(f"select cast(null as {ddl}) k").schema
    places = KeyPlaces(schema, MAX_PARALLELISM)
    for text, (key_group, stored) in KEYS[ddl].items():
        value = collected(spark, ddl, text)
        with localcontext(Context(prec=3)):  # a user's
            assert places.place((value,)) == (key_group, bytes.fromhex(stored)), text


@pytest.mark.slow
@given(st.data())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_key_groups_are_those_of_spark(spark: SparkSession, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    kinds = [each for each in kinds if not holds(each[0], (*_NO_KEYS, *_NOT_SENT))]
    if not kinds:
        return
    rows = st.tuples(*(st.none() | values for _, values in kinds))
    keys = data.draw(st.lists(rows, min_size=1, max_size=20))
    schema = struct(*(kind for kind, _ in kinds))
    columns = [canonical_column(F.col(field.name), field.dataType) for field in schema.fields]
    frame = spark.createDataFrame(keys, schema).coalesce(1)
    spark.conf.set(_TIMES, "true")  # Spark refuses some expressions of a time of day without it
    try:
        hashed = frame.select(F.pmod(F.hash(*columns), F.lit(MAX_PARALLELISM)).alias("g")).collect()
    finally:
        spark.conf.unset(_TIMES)
    places = KeyPlaces(schema, MAX_PARALLELISM)
    assert [places.place(key)[0] for key in keys] == [row.g for row in hashed]


def test_a_key_that_does_not_fit_is_refused_by_name() -> None:
    places = KeyPlaces(T.StructType().add("name", "string").add("day", "date"), MAX_PARALLELISM)
    with pytest.raises(StateValueError, match="one value for each key column "):
        places.place(("ada",))
    with pytest.raises(StateValueError, match="key column 'name'"):
        places.place((7, datetime.date(2024, 1, 1)))
    with pytest.raises(PlanError, match="key column 'm'"):
        KeyPlaces(T.StructType().add("m", T.MapType(T.StringType(), T.LongType())), 128)


COLLATED = "string collate UTF8_LCASE"


@pytest.mark.parametrize("kind", [COLLATED, f"array<{COLLATED}>", f"struct<a:{COLLATED}>"])
def test_texts_that_a_collation_takes_for_equal_are_no_keys(spark: SparkSession, kind: str) -> None:
    """As in Spark's own state: its groupBy has one group of them, and we would have two keys."""
    rows = spark.sql(f"select cast(null as {kind}) k")
    with pytest.raises(PlanError, match=r"key column 'k'.*collate UTF8_BINARY"):
        InputColumns(rows.schema, ["k"])
    with pytest.raises(PlanError, match=r"key column 'k'.*collate UTF8_BINARY"):
        KeyPlaces(rows.schema, MAX_PARALLELISM)
    if kind == COLLATED:
        InputColumns(rows.selectExpr("lower(k) collate UTF8_BINARY k").schema, ["k"])
