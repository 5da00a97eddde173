"""What an Arrow column may be given for: the values that Rows may, and no number for a time."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.output import ArrowOutput, RowsOutput
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.values.arrow import arrow_array
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.state_columns import ValueColumns
from pyspark_ckpt.values.types import TIME_OF_DAY

UTC = timezone.utc
NOON = datetime.fromisoformat("2023-11-14T12:30")
STRUCT = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.StringType())])
KINDS: list[T.DataType] = [
    T.BooleanType(), T.ByteType(), T.LongType(), T.FloatType(), T.DoubleType(),
    T.DecimalType(20, 2), T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(),
    T.TimestampNTZType(), T.DayTimeIntervalType(), T.ArrayType(T.LongType()),
    T.ArrayType(T.TimestampType()), T.MapType(T.StringType(), T.DateType()), STRUCT,
    *(kind() for kind in TIME_OF_DAY), T.NullType(), T.ArrayType(T.NullType()),
    T.MapType(T.StringType(), T.NullType()),
]  # fmt: skip
GIVEN: list[pa.Array] = [
    pa.array([True, None]),
    *(pa.array([1, None], kind) for kind in (pa.int8(), pa.uint8(), pa.int32(), pa.int64())),
    pa.array([1_700_000_000_000]),
    *(pa.array([0.5, None], kind) for kind in (pa.float32(), pa.float64())),
    pa.array([Decimal("1.50"), None]),
    *(pa.array(["ä", None], kind) for kind in (pa.string(), pa.large_string())),
    pa.array(["ä", None]).dictionary_encode(),
    *(pa.array([b"ab", None], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(2))),
    *(pa.array([date(2023, 11, 14), None], kind) for kind in (pa.date32(), pa.date64())),
    *(pa.array([NOON, None], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
    *(pa.array([NOON, None], pa.timestamp(unit, "UTC")) for unit in ("s", "us")),
    pa.array([timedelta(minutes=3), None], pa.duration("s")),
    pa.array([time(12, 30), None], pa.time64("us")),
    pa.array([[1, 2], None]),
    pa.array([[0.5], None]),
    pa.array([[NOON], None], pa.list_(pa.timestamp("ms", "UTC"))),
    pa.array([[("x", date(2023, 11, 14))]], pa.map_(pa.string(), pa.date32())),
    pa.array([[("x", 5)]], pa.map_(pa.string(), pa.int32())),
    pa.array([{"b": "x", "a": 1}, None]),
    pa.array([{"a": 1}]),
    pa.array([{"a": True, "b": "x"}]),
    pa.array([None, None]),
    pa.array([[None, None], None, [None, None]]),
    pa.array([[("x", None), ("y", None)], [("x", None)]], pa.map_(pa.string(), pa.null())),
]

NULLS: list[T.DataType] = [
    T.NullType(),
    T.ArrayType(T.NullType()),
    T.ArrayType(T.ArrayType(T.NullType())),
    T.MapType(T.StringType(), T.NullType()),
    T.StructType().add("a", T.ArrayType(T.NullType())).add("b", "long"),
]


def described(value: Any) -> str:
    return value.simpleString() if isinstance(value, T.DataType) else str(value.type)


def sent(output: Any, rows: Any) -> list[Any] | None:
    """What travels, ``None`` if it is refused."""
    try:
        output.extend(rows)
        found: list[Any] = output.take().column(0).to_pylist()
    except StateValueError:
        return None
    return found


def in_rows(kind: T.DataType, value: Any) -> Any:
    if isinstance(kind, T.StructType) and isinstance(value, dict):
        return Row(**{name: value.get(name) for name in kind.names})
    if isinstance(kind, T.MapType) and isinstance(value, list):
        return dict(value) if value and isinstance(value[0], tuple) else value
    return value


@pytest.mark.parametrize(("kind", "given"), [*product(KINDS, GIVEN)], ids=described)
def test_columns_are_taken_as_rows_are(kind: T.DataType, given: pa.Array) -> None:
    schema = T.StructType([T.StructField("c", kind)])
    values = [(in_rows(kind, value),) for value in given.to_pylist()]
    found = sent(ArrowOutput(OutputRows(schema, "u")), [pa.table({"c": given})])
    of_rows = sent(RowsOutput(OutputRows(schema, "u")), values)
    if found is None and is_stricter(kind, given.type):
        return
    assert found == of_rows


def is_stricter(kind: T.DataType, given: pa.DataType) -> bool:
    """Whether a column may be refused although each of its values could be in a Row."""
    if pa.types.is_timestamp(given):  # a zone that is missing or too many
        return isinstance(kind, T.TimestampType | T.TimestampNTZType)
    if isinstance(kind, T.StructType):  # a list in a Row has the fields by position
        return pa.types.is_list(given)
    if isinstance(kind, T.FloatType | T.DoubleType):
        return pa.types.is_boolean(given) or pa.types.is_int64(given)
    return isinstance(kind, T.DecimalType) and pa.types.is_int64(given)  # no room for the largest


@pytest.mark.parametrize("kind", [T.TimestampType(), T.TimestampNTZType(), T.DateType()], ids=str)
def test_milliseconds_are_no_time_in_a_state(kind: T.DataType) -> None:
    columns = ValueColumns(T.StructType([T.StructField("at", kind)]), "state 'x'")
    table = pa.table({"at": [1_700_000_000_000]})
    with pytest.raises(StateValueError, match=r"column 'at' is int64.*int64 is not "):
        columns.encoded(table, 1, b"")


@pytest.mark.parametrize("kind", NULLS, ids=described)
@pytest.mark.parametrize("number", [pa.int64(), pa.int32()], ids=str)
def test_lists_of_nulls_keep_their_lengths_in_a_state(kind: T.DataType, number: Any) -> None:
    def value(of: T.DataType, size: int) -> Any:
        if isinstance(of, T.ArrayType):
            return [value(of.elementType, size)] * size
        if isinstance(of, T.MapType):
            return {f"k{n}": None for n in range(size)}
        if isinstance(of, T.StructType):
            return {"a": value(of["a"].dataType, size), "b": size}
        return None

    def given(of: T.DataType) -> pa.DataType:
        if isinstance(of, T.ArrayType):
            return pa.list_(given(of.elementType))
        if isinstance(of, T.MapType):
            return pa.map_(pa.large_string(), pa.null())
        if isinstance(of, T.StructType):
            return pa.struct([("a", given(of["a"].dataType)), ("b", number)])
        return pa.null()

    schema = T.StructType([T.StructField("c", kind)])
    columns = ValueColumns(schema, "state 'x'")
    values = [value(kind, size) for size in (2, 3, 2)]
    table = pa.table({"c": pa.array(values, given(kind))})
    of_columns = columns.encoded(table, 3, b"")
    codec = TupleCodec(schema, "state 'x'")
    assert of_columns == [codec.encode((in_rows(kind, each),)) for each in values]


def test_two_fields_of_one_name_keep_their_values() -> None:
    twice = T.StructType().add("a", "integer").add("a", "integer")
    for kind, plain in ((twice, (1, 2)), (T.ArrayType(twice), [(1, 2), None])):
        found = arrow_array(kind, [plain, None])
        values = found if kind is twice else found.flatten()
        assert [field.to_pylist()[0] for field in values.flatten()] == [1, 2]
        assert found.null_count == 1


def test_a_map_with_a_key_twice_is_refused_in_a_state() -> None:
    """Arrow has such maps; a state would lose one of the entries."""
    kind = T.ArrayType(T.MapType(T.StringType(), T.LongType()))
    columns = ValueColumns(T.StructType([T.StructField("m", kind)]), "state 'x'")
    maps = [[("a", 1), ("b", 2), ("a", 3)]]
    table = pa.table({"m": pa.array([maps], pa.list_(pa.map_(pa.string(), pa.int64())))})
    with pytest.raises(StateValueError, match=r"state 'x': column 'm'.*the key 'a' twice"):
        columns.encoded(table, 1, b"")
    once = pa.table({"m": pa.array([[maps[0][:2]]], table.column("m").type)})
    codec = TupleCodec(columns._schema, "state 'x'")
    assert columns.encoded(once, 1, b"") == [codec.encode(([{"a": 1, "b": 2}],))]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (T.StringType(), pa.array([b"ab"])),
        (T.BinaryType(), pa.array(["ab"])),
        (T.DateType(), pa.array([NOON])),
        (T.DoubleType(), pa.array([2**53 + 1])),
        (T.ArrayType(T.DateType()), pa.array([[NOON]])),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_refused_in_a_state(kind: T.DataType, given: pa.Array) -> None:
    columns = ValueColumns(T.StructType([T.StructField("c", kind)]), "state 'x'")
    with pytest.raises(StateValueError, match=r"state 'x'.*column 'c'.*cast it"):
        columns.encoded(pa.table({"c": given}), 1, b"")
