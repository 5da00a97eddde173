"""Output rows on the executor, as Spark's Arrow conversion passes them on."""

from __future__ import annotations

import datetime
import math
import re
from collections import namedtuple
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, StateValueError
from pyspark_ckpt.operator.modes.output import ArrowOutput, PandasOutput
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.values.arrow import arrow_type
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.unit.operator.spark_values import NOT_BUILT

EPOCH = datetime.date(1970, 1, 1)
TWO_COLUMNS = OutputRows(
    T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.StringType())]), "count"
)


def output(kind: T.DataType) -> OutputRows:
    return OutputRows(T.StructType([T.StructField("x", kind)]), "count")


def sent(rows: OutputRows, values: list[Any], name: str = "c0") -> list[Any]:
    """Return the column as it arrives in the JVM."""
    batch = rows.batch(values)
    assert batch.schema == rows.arrow_schema
    assert batch.schema.names == rows.sent_schema.names
    found: list[Any] = batch.column(name).to_pylist()
    return found


SAME: list[tuple[T.DataType, list[Any]]] = [
    (T.ByteType(), [-128, 127]),
    (T.ShortType(), [-32768, 32767]),
    (T.IntegerType(), [-(2**31), 2**31 - 1]),
    (T.LongType(), [2**53 + 1, -(2**63), 2**63 - 1]),
    (T.FloatType(), [0.5, math.inf]),
    (T.DoubleType(), [0.1, -math.inf, 1]),
    (T.BooleanType(), [True, False]),
    (T.StringType(), ["", "ä", "a\0b"]),
    (T.BinaryType(), [b"", b"\xff\x00"]),
    (T.DecimalType(38, 2), [Decimal("1.10"), Decimal("-99999999999999999999.99")]),
    (T.CharType(3), ["abcd"]),
]


@pytest.mark.parametrize(("kind", "values"), SAME, ids=lambda p: str(p))
@pytest.mark.parametrize("with_null", [False, True])
def test_values_and_nulls_leave_as_they_were_returned(
    kind: T.DataType, values: list[Any], with_null: bool
) -> None:
    values = [*values, None] if with_null else values
    assert sent(output(kind), [(value,) for value in values]) == values


@pytest.mark.parametrize("kind", [T.DoubleType(), T.FloatType()])
def test_nan_and_null_are_not_the_same(kind: T.DataType) -> None:
    found = sent(output(kind), [(math.nan,), (None,), (1.5,)])
    assert [repr(value) for value in found] == ["nan", "None", "1.5"]


@pytest.mark.parametrize("date", [EPOCH, datetime.date.min, datetime.date.max, None])
def test_dates_leave_as_they_are(date: datetime.date | None) -> None:
    assert sent(output(T.DateType()), [(date,)]) == [date]


def test_timestamps_leave_as_instants() -> None:
    late = datetime.datetime(9999, 12, 30, 1, 2, 3, 456_789, datetime.timezone.utc)
    early = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.timezone.utc)
    assert sent(output(T.TimestampType()), [(late,), (None,), (early,)]) == [late, None, early]


def test_timestamps_without_zone_leave_as_they_are() -> None:
    naive = datetime.datetime.fromisoformat
    values = [naive("9999-12-31 23:59:59.999999"), None, naive("2024-02-29")]
    assert sent(output(T.TimestampNTZType()), [(value,) for value in values]) == values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.LongType(), "1"), (T.LongType(), 1.5), (T.LongType(), 2**63), (T.LongType(), True),
        (T.LongType(), math.nan), (T.ByteType(), 128), (T.IntegerType(), 2**31),
        (T.DoubleType(), "1"), (T.BooleanType(), 1), (T.BooleanType(), "true"),
        (T.StringType(), 1), (T.BinaryType(), 1), (T.DecimalType(5, 2), 1.5),
        (T.DecimalType(5, 2), Decimal("12345")), (T.DecimalType(5, 2), Decimal("1.005")),
        (T.DateType(), "2020-01-01"), (T.DateType(), 5), (T.TimestampType(), "2020-01-01"),
        (T.ArrayType(T.LongType()), ["1"]), (T.ArrayType(T.LongType()), [1.5]),
        (T.ArrayType(T.ByteType()), [128]), (T.ArrayType(T.DoubleType()), ["1"]),
        (T.StructType([T.StructField("a", T.LongType())]), (1, 2)),
        (T.MapType(T.StringType(), T.LongType()), {1: 1}), (T.VariantType(), {"a": 1}),
        (T.MapType(T.StringType(), T.LongType()), {None: 1}), (T.VariantType(), 1),
        (T.ArrayType(T.DecimalType(5, 2)), [Decimal("12345")]),
        *[(time(), 1) for time in TIME_OF_DAY],
        (T.ArrayType(T.TimestampType()), ["2020-01-01"]), (T.DayTimeIntervalType(), 1),
        (T.ArrayType(T.DateType()), ["2020-01-01"]), (T.YearMonthIntervalType(), 2**31),
        (T.TimestampType(), EPOCH), (T.TimestampNTZType(), "2020-01-01"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_operator_and_column(
    kind: T.DataType, value: object
) -> None:
    good: Any = dict(SAME).get(kind, [None])[0]
    with pytest.raises(
        StateValueError, match=rf"'count'.*'x'.*{re.escape(kind.simpleString()[:7])}"
    ):
        output(kind).batch([(good,), (value,)])


@pytest.mark.parametrize(
    "row",
    [
        (1, "x"),
        Row(1, "x"),
        Row(a=1, b="x"),
        Row(b="x", a=1),
        Row("b", "a")("x", 1),
        Row("a", "b")(1, "x"),
        namedtuple("Pair", ["p", "q"])(1, "x"),
    ],
)
def test_named_rows_go_by_name_and_others_by_position(row: Any) -> None:
    batch = TWO_COLUMNS.batch([row, (2, "y")])
    assert batch["c0"].to_pylist() == [1, 2]
    assert batch["c1"].to_pylist() == ["x", "y"]


@pytest.mark.parametrize("misspelt", [Row(a=1, c="x"), Row(A=1, b="x"), Row(c=2)])
def test_a_row_with_an_unknown_name_and_without_a_column_is_refused(misspelt: Row) -> None:
    """One of the two is allowed; both together are a misspelt name."""
    output = OutputRows(T.StructType().add("a", "long").add("b", "string"), "counts")
    for rows in ([Row(a=1), misspelt], [Row(a=1, b="x", c=0), misspelt], [(1, "x"), misspelt]):
        with pytest.raises(StateValueError, match=r"'counts'.*Row.*there is no field '[cA]', and"):
            output.batch(rows)
        with pytest.raises(StateValueError) as refused:  # the kind of row is known by now
            output.batch(rows)
        assert refused.value.row == 1


@pytest.mark.parametrize("row", [(), (1,), (1, "x", 2), Row(1), Row(1, "x", 2)])
def test_a_row_of_another_width_is_refused(row: Any) -> None:
    with pytest.raises(StateValueError, match=r"'count'.*2 columns"):
        TWO_COLUMNS.batch([(1, "x"), row])


@pytest.mark.parametrize(
    ("row", "values"),
    [
        (Row(a=1), [1, None]),
        (Row(c=2, b="x", a=1), [1, "x"]),
    ],
)
def test_missing_names_are_null_and_others_are_left_out(row: Row, values: list[Any]) -> None:
    rows = [(7, "y"), row]
    assert sent(TWO_COLUMNS, rows) == [7, values[0]]
    assert sent(TWO_COLUMNS, rows, "c1") == ["y", values[1]]


@pytest.mark.parametrize("row", [[1, "x"], {"a": 1, "b": "x"}, None, 1, "ab"])
def test_what_is_no_row_is_refused(row: object) -> None:
    with pytest.raises(StateValueError, match=rf"'count' returned {type(row).__name__}"):
        TWO_COLUMNS.batch([(1, "x"), row])


def test_nested_values_leave_by_name_and_position() -> None:
    fields = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.FloatType())])
    rows = output(T.ArrayType(fields))
    values = [[T.Row(a=1, b=0.5), {"b": math.nan}, None, (2**63 - 1, -0.0)], [], None]
    assert repr(sent(rows, [(value,) for value in values])) == (
        "[[{'a': 1, 'b': 0.5}, {'a': None, 'b': nan}, None, "
        "{'a': 9223372036854775807, 'b': -0.0}], [], None]"
    )


def test_a_variant_leaves_as_its_two_binaries() -> None:
    (value,) = sent(output(T.ArrayType(T.VariantType())), [([T.VariantVal(b"v", b"m"), None],)])
    assert value == [{"value": b"v", "metadata": b"m"}, None]


def test_two_fields_of_one_name_leave_by_position() -> None:
    pair = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.StringType())])
    rows = output(T.MapType(T.StringType(), pair))
    assert sent(rows, [({"k": (1, "x"), "n": None},)]) == [
        [("k", {"c0": 1, "c1": "x"}), ("n", None)]
    ]


@pytest.mark.parametrize("kind", [*NOT_BUILT, T.ArrayType(NOT_BUILT[-1])])
def test_a_column_of_a_type_that_is_not_built_is_named(kind: T.DataType) -> None:
    with pytest.raises(NotBuiltYetError, match=r"'count'.*'x'.*not built"):
        output(kind)


def test_no_rows_make_an_empty_batch_of_the_same_columns() -> None:
    batch = TWO_COLUMNS.batch([])
    assert batch.num_rows == 0
    assert batch.schema.names == ["c0", "c1"]


def test_the_sent_schema_has_names_by_position_and_types_that_spark_sends() -> None:
    kinds = [
        T.DateType(), T.TimestampType(), T.TimestampNTZType(), T.DecimalType(5, 2), T.CharType(3),
        T.ArrayType(T.YearMonthIntervalType()), T.DayTimeIntervalType(1, 2),
    ]  # fmt: skip
    schema = T.StructType([T.StructField(f"a b {n}", kind) for n, kind in enumerate(kinds)])
    assert OutputRows(schema, "count").sent_schema.simpleString() == (
        "struct<c0:date,c1:timestamp,c2:timestamp_ntz,c3:decimal(5,2),c4:string,c5:array<int>,"
        "c6:interval day to second>"
    )


PAIRS = T.MapType(T.ArrayType(T.DoubleType()), T.LongType())


@pytest.mark.parametrize(
    ("kind", "twice"),
    [
        (T.MapType(T.StringType(), T.LongType()), [("a", 1), ("b", 2), ("a", 3)]),
        (T.MapType(T.DoubleType(), T.LongType()), [(0.0, 1), (-0.0, 2)]),
        (T.ArrayType(T.MapType(T.LongType(), PAIRS)), [{1: [([0.5], 1), ([0.5], 2)]}]),
    ],
)
def test_a_map_with_a_key_twice_is_refused(kind: T.DataType, twice: Any) -> None:
    """Whether it is in a row, a frame or a table."""
    rows = output(kind)
    with pytest.raises(StateValueError, match=r"'count'.*'x'.*twice: give each key once") as error:
        rows.batch([(None,), (twice,)])
    assert error.value.row == 1
    frames = PandasOutput(rows)
    frames.extend([pd.DataFrame({"x": [None, twice]})])
    with pytest.raises(StateValueError, match=r"'count'.*'x'.*twice: give each key once"):
        frames.take()
    tables = ArrowOutput(rows)
    with pytest.raises(StateValueError, match=r"'count'.*'x'.*twice: give each key once"):
        tables.extend([pa.table({"x": pa.array([None, twice], arrow_type(kind))})])


BAD = pa.array([b"ok", b"O\xe9"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (T.ArrayType(T.StringType()), pa.ListArray.from_arrays([0, 2], BAD)),
        (T.MapType(T.StringType(), T.LongType()), pa.MapArray.from_arrays([0, 2], BAD, [1, 2])),
        (
            T.ArrayType(T.StructType([T.StructField("x", T.StringType())])),
            pa.ListArray.from_arrays([0, 2], pa.StructArray.from_arrays([BAD], names=["x"])),
        ),
    ],
)
def test_a_nested_text_of_a_table_that_is_not_utf8_is_named(
    kind: T.DataType, column: pa.Array
) -> None:
    tables = ArrowOutput(output(kind))
    with pytest.raises(StateValueError, match=r"'x'.*b'O\\xe9'.*not UTF-8"):
        tables.extend([pa.table({"x": column})])
