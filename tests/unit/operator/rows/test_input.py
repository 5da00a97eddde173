"""Input columns on the executor: rows and keys from the batches that cross the shuffle."""

from __future__ import annotations

import datetime
import itertools
import math
import random
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.lib import string_to_tzinfo
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.operator.modes.calls import KeyedPart
from pyspark_ckpt.operator.modes.views import RowView
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.sent_rows import bytes_as_objects
from pyspark_ckpt.values.shown import ValueNotHeldError
from tests.unit.operator.rows.sent import Change, as_sent, in_new_york, large, sent_batch
from tests.unit.operator.spark_values import NOT_BUILT

EPOCH = datetime.date(1970, 1, 1)


def schema_of(*types: T.DataType, nullable: bool = True) -> T.StructType:
    return T.StructType([T.StructField(f"f{n}", kind, nullable) for n, kind in enumerate(types)])


def grouped(columns: InputColumns, *batches: pa.RecordBatch) -> dict[Any, tuple[int, list[Row]]]:
    """Return key group and rows of each key, in the order in which the keys first came."""
    part = KeyedPart(RowView(), columns, list(batches))
    found = {
        key: (int.from_bytes(group, "big"), list(part.rows(place)))
        for place, (key, (group, _)) in enumerate(zip(part.keys, part.stored, strict=True))
    }
    assert len(found) == len(part.keys)
    return found


def received(schema: T.StructType, *rows: tuple[Any, ...]) -> list[Row]:
    """Return all rows as the processor gets them, keyed by the first column."""
    part = KeyedPart(RowView(), InputColumns(schema, [schema.names[0]]), [sent_batch(schema, rows)])
    return [row for place in range(len(part.keys)) for row in part.rows(place)]


naive = datetime.datetime.fromisoformat


def aware(text: str) -> datetime.datetime:
    return naive(text).replace(tzinfo=string_to_tzinfo("UTC"))


VALUES: list[tuple[T.DataType, list[Any]]] = [
    (T.ByteType(), [-128, 127, None]),
    (T.ShortType(), [-32768, None, 32767]),
    (T.IntegerType(), [None, -(2**31), 2**31 - 1]),
    (T.LongType(), [2**53 + 1, None, -(2**63), 2**63 - 1]),
    (T.FloatType(), [0.5, None, -math.inf]),
    (T.DoubleType(), [0.1, None, math.inf, -0.0]),
    (T.BooleanType(), [True, None, False]),
    (T.StringType(), ["", None, "ä", "a\0b"]),
    (T.BinaryType(), [b"", None, b"\xff\x00"]),
    (T.DecimalType(38, 2), [Decimal("1.10"), None, Decimal("-99999999999999999999.99")]),
    (T.DateType(), [EPOCH, None, datetime.date.min, datetime.date.max]),
    (T.TimestampType(), [aware("1969-12-31 23:59:59.999999"), None, aware("2024-02-29 01:02:03")]),
    (T.TimestampNTZType(), [naive("2024-02-29"), None, naive("9999-12-31 23:59:59.999999")]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda p: str(p) if p is not list else "")
def test_values_and_nulls_arrive_as_they_were_sent(kind: T.DataType, values: list[Any]) -> None:
    schema = schema_of(T.LongType(), kind)
    rows = received(schema, *((number, value) for number, value in enumerate(values)))
    assert [row.f1 for row in rows] == values
    assert [repr(row.f1) for row in rows] == [repr(value) for value in values]


def test_rows_of_random_types_and_nulls_arrive_as_they_were_sent() -> None:
    schema = schema_of(*(kind for kind, _ in VALUES))
    rows = list(itertools.islice(itertools.product(*(v[:2] for _, v in VALUES)), 2000))
    assert sorted(map(repr, received(schema, *rows))) == sorted(
        repr(Row(**dict(zip(schema.names, row, strict=True)))) for row in rows
    )


@pytest.mark.parametrize("change", [as_sent, in_new_york, large])
@pytest.mark.parametrize("nullable", [True, False])
def test_rows_are_the_same_in_all_arrow_types_that_spark_has_for_them(
    change: Change, nullable: bool
) -> None:
    kinds = [kind for kind, _ in VALUES]
    values = [[value for value in of_kind if value is not None] for _, of_kind in VALUES]
    schema = schema_of(
        T.LongType(),
        *kinds,
        *[T.ArrayType(kind, nullable) for kind in kinds],
        *[T.MapType(T.StringType(), kind, nullable) for kind in kinds],
        *[T.StructType([T.StructField("x", kind, nullable)]) for kind in kinds],
        nullable=nullable,
    )
    row = (
        1,
        *(value for value, *_ in values),
        *values,
        *({str(n): value for n, value in enumerate(each)} for each in values),
        *({"x": value} for value, *_ in values),
    )
    rows = [row, (2, *(None,) * (len(row) - 1))] if nullable else [row]
    columns = InputColumns(schema, ["f0"])
    arrived = columns.arriving(sent_batch(schema, rows, change=change))
    if change is large:  # it stays so, because a column may be beyond a usual one
        assert {field.type for field in arrived.schema} >= {pa.large_string(), pa.large_binary()}
    else:
        assert arrived.schema == columns.arrow_schema
    expected = [repr(each) for each in columns.rows(sent_batch(schema, rows))]
    assert list(map(repr, columns.rows(arrived))) == expected


def test_null_variants_as_the_jvm_has_them_beside_times_of_another_zone() -> None:
    """Their binaries are null too, although Spark says that these are not."""
    kind = T.StructType(
        [T.StructField("t", T.TimestampType()), T.StructField("v", T.VariantType())]
    )
    schema = schema_of(kind, T.MapType(T.StringType(), T.VariantType()))
    columns = InputColumns(schema, [])
    given = T.VariantVal(b"v", b"m")
    rows = [(Row(t=1, v=given), {"k": given}), (Row(t=2, v=None), {"n": None})]
    batch = sent_batch(schema, rows, change=in_new_york)
    structs, maps = batch.columns[:2]
    variants = pa.Array.from_buffers(
        structs.type.field("v").type,
        2,
        structs.field(1).buffers()[:1],
        children=[pa.array([data, None], pa.binary()) for data in (b"v", b"m")],
    )
    structs = pa.Array.from_buffers(structs.type, 2, [None], children=[structs.field(0), variants])
    entries = pa.Array.from_buffers(
        pa.struct([maps.type.key_field, maps.type.item_field]),
        2,
        [None],
        children=[maps.keys, variants],
    )
    maps = pa.Array.from_buffers(maps.type, 2, maps.buffers()[:2], children=[entries])
    batch = batch.set_column(0, "c0", structs).set_column(1, "c1", maps)
    arrived = columns.arriving(batch)
    assert bytes_as_objects(arrived) > 0
    assert repr(list(columns.rows(arrived))) == repr(list(columns.rows(sent_batch(schema, rows))))


def test_rows_are_pysparks_rows_with_the_users_names() -> None:
    schema = T.StructType([T.StructField("a b", T.LongType()), T.StructField("c", T.StringType())])
    (row,) = received(schema, (1, "x"))
    assert isinstance(row, Row)
    assert row == Row(**{"a b": 1, "c": "x"})
    assert (row["a b"], row.c, row[1]) == (1, "x", "x")
    assert row.asDict() == {"a b": 1, "c": "x"}
    assert "c" in row


def test_rows_of_a_key_keep_their_order_over_all_batches() -> None:
    schema = schema_of(T.StringType(), T.LongType())
    batches = [
        sent_batch(schema, [("a", 1), ("b", 2), ("a", 3)], 5, 6, 5),
        sent_batch(schema, []),
        sent_batch(schema, [("b", 4), ("a", 5), ("c", 6)], 6, 5, 7),
    ]
    groups = grouped(InputColumns(schema, ["f0"]), *batches)
    assert {key: (group, [row.f1 for row in rows]) for key, (group, rows) in groups.items()} == {
        ("a",): (5, [1, 3, 5]),
        ("b",): (6, [2, 4]),
        ("c",): (7, [6]),
    }


def test_each_key_gets_its_own_rows_however_many_and_in_any_order() -> None:
    """Rows are made for several keys at once, a key of many rows by itself."""
    schema = schema_of(T.LongType(), T.StringType())
    chance = random.Random(7)
    counts = [chance.choice((1, 2, 10, 400, 511, 512, 513, 2000)) for _ in range(40)]
    keys = [key for key, count in enumerate(counts) for _ in range(count)]
    chance.shuffle(keys)
    rows = [(key, None if place % 7 == 0 else str(place)) for place, key in enumerate(keys)]
    wanted = {(key,): [row for row in rows if row[0] == key] for key in range(len(counts))}
    part = KeyedPart(RowView(), InputColumns(schema, ["f0"]), [sent_batch(schema, rows)])
    in_order = list(range(len(part.keys)))
    backwards = in_order[::-1]
    at_random = chance.choices(in_order, k=100)  # some are asked for again
    for position in [*in_order, *backwards, *at_random]:
        assert list(part.rows(position)) == wanted[part.keys[position]]
    both = [part.rows(position) for position in in_order]  # asked for before another is used
    assert [list(each) for each in both] == [wanted[key] for key in part.keys]


def test_a_key_of_several_columns_is_a_tuple_in_the_order_of_key_by() -> None:
    schema = schema_of(T.StringType(), T.LongType(), T.BooleanType())
    columns = InputColumns(schema, ["f2", "f0"])
    rows = [("a", 1, True), ("a", 2, True), ("a", 3, None), (None, 4, True)]
    groups = grouped(columns, sent_batch(schema, rows))
    assert {key: [row.f1 for row in rows] for key, (_, rows) in groups.items()} == {
        (True, "a"): [1, 2],
        (None, "a"): [3],
        (True, None): [4],
    }
    assert columns.key_schema.names == ["f2", "f0"]


@pytest.mark.parametrize("other_columns", [0, 1])
@pytest.mark.parametrize("kind", [T.DoubleType(), T.FloatType()])
def test_all_nans_are_one_key_and_so_are_both_zeros(kind: T.DataType, other_columns: int) -> None:
    schema = schema_of(kind, T.LongType())
    values = [math.nan, 0.0, None, -0.0, float("nan"), None, -math.nan, 1.5]
    batches = [sent_batch(schema, [(value, 7)]) for value in values]
    names = ["f0", "f1"][: 1 + other_columns]
    columns = InputColumns(schema, names)
    groups = grouped(columns, *batches)
    found = {repr(key[0]): len(rows) for key, (_, rows) in groups.items()}
    assert found == {"nan": 3, "0.0": 2, "None": 2, "1.5": 1}


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda p: str(p) if p is not list else "")
def test_the_users_key_has_the_type_of_the_users_column(
    kind: T.DataType, values: list[Any]
) -> None:
    schema = schema_of(kind, T.LongType())
    columns = InputColumns(schema, ["f0"])
    groups = list(range(len(values)))  # keys come in their order
    keys = list(grouped(columns, sent_batch(schema, [(value, 1) for value in values], *groups)))
    assert keys == [(value,) for value in values]
    assert [type(key) for (key,) in keys] == [type(value) for value in values]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda p: str(p) if p is not list else "")
def test_the_key_of_a_timer_is_a_row_of_the_same_values(
    kind: T.DataType, values: list[Any]
) -> None:
    columns = InputColumns(schema_of(T.StringType(), kind), ["f1", "f0"])
    rows = [("x", value) for value in values]
    part = KeyedPart(RowView(), columns, [sent_batch(columns.schema, rows)])
    assert len(part.keys) == len(values)
    for shown, (_, encoded) in zip(part.keys, part.stored, strict=True):
        key = columns.decode_key(encoded)
        assert isinstance(key, Row)
        assert key.asDict() == {"f1": key[0], "f0": "x"}
        assert repr(tuple(key)) == repr(shown)


@pytest.mark.parametrize("kind", [*NOT_BUILT, T.ArrayType(NOT_BUILT[-1])])
def test_a_column_of_a_type_that_is_not_built_is_named(kind: T.DataType) -> None:
    with pytest.raises(NotBuiltYetError, match=r"'f1'.*not built"):
        InputColumns(schema_of(T.LongType(), kind), ["f0"])


@pytest.mark.parametrize(
    "kind",
    [
        T.MapType(T.StringType(), T.LongType()),
        T.ArrayType(T.MapType(T.StringType(), T.LongType())),
        T.StructType([T.StructField("v", T.VariantType())]),
    ],
)
def test_a_key_that_spark_cannot_hash_is_named(kind: T.DataType) -> None:
    with pytest.raises(PlanError, match="'f1' is " + re.escape(kind.simpleString())):
        InputColumns(schema_of(T.LongType(), kind), ["f0", "f1"])
    assert InputColumns(schema_of(T.LongType(), kind), ["f0"]).key_names == ("f0",)


FAR_DAYS, FAR_MICROS = 5_000_000, 10**18
FAR = [
    (T.DateType(), FAR_DAYS, "15659-07-15"),
    (T.TimestampType(), FAR_MICROS, "33658-09-27T01:46:40.000000Z"),
    (T.TimestampType(), -FAR_MICROS, "-29719-04-05T22:13:20.000000Z"),
    (T.TimestampNTZType(), FAR_MICROS, "33658-09-27 01:46:40.000000"),
    (T.ArrayType(T.DateType()), [1, FAR_DAYS], "5000000"),
]


@pytest.mark.parametrize(("kind", "value", "says"), FAR)
def test_a_value_that_python_does_not_have_is_named(
    kind: T.DataType, value: Any, says: str
) -> None:
    """The advice to look at the versions of packages sent users the wrong way."""
    schema = T.StructType([T.StructField("k", T.StringType()), T.StructField("far", kind)])
    columns = InputColumns(schema, ["k"])
    batch = sent_batch(schema, [("a", None), ("b", value)])
    table = columns.arrow_rows(batch)
    assert table["far"].combine_chunks().equals(batch["c1"])
    calls = [lambda: list(columns.rows(batch))]
    if not isinstance(kind, T.TimestampType):  # pandas says itself which times it has
        calls.append(lambda: [columns.pandas_frame(batch)])
    for call in calls:
        with pytest.raises(
            ValueNotHeldError, match=f"column 'far' is .*{re.escape(says)}"
        ) as error:
            call()
        assert "use an ArrowProcessor" in str(error.value)
        assert "leave out such rows" in str(error.value)


@pytest.mark.parametrize(("kind", "value", "says"), FAR)
def test_a_key_that_python_does_not_have_is_named(kind: T.DataType, value: Any, says: str) -> None:
    columns = InputColumns(T.StructType([T.StructField("far", kind)]), ["far"])
    with pytest.raises(ValueNotHeldError, match=f"column 'far' is .*{re.escape(says)}"):
        columns.keys_of(sent_batch(columns.schema, [(value,)]))
