"""The codec: a value that is taken can be read again, any other is refused at once."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, StateValueError
from pyspark_ckpt.operator.codec import TupleCodec, key_encoder

_first, _last = (datetime.datetime(year, 1, 1) for year in (1950, 2100))  # noqa: DTZ001
_times = st.datetimes(_first, _last)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_leaves: list[tuple[T.DataType, st.SearchStrategy[Any]]] = [
    (T.ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (T.ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (T.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (T.LongType(), st.integers(-(2**63), 2**63 - 1)),
    (T.DoubleType(), st.floats(allow_nan=False)),
    (T.FloatType(), st.floats(allow_nan=False, width=32)),
    (T.BooleanType(), st.booleans()),
    (T.StringType(), _texts),
    (T.BinaryType(), st.binary(max_size=5)),
    (T.DecimalType(38, 6), st.decimals(-(10**9), 10**9, places=6)),
    (T.DateType(), st.dates()),
    (T.TimestampType(), _times),
    (T.TimestampNTZType(), _times),
]


def struct(*types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(f"f{n}", kind) for n, kind in enumerate(types)])


def codec(*types: T.DataType) -> TupleCodec:
    return TupleCodec(struct(*types), "state 'count'")


def _nested(
    inner: st.SearchStrategy[tuple[T.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[T.DataType, st.SearchStrategy[Any]]]:
    arrays = inner.map(lambda i: (T.ArrayType(i[0]), st.lists(st.none() | i[1], max_size=3)))
    maps = inner.map(
        lambda i: (
            T.MapType(T.StringType(), i[0]),
            st.dictionaries(_texts, st.none() | i[1], max_size=3),
        )
    )
    structs = st.lists(inner, min_size=1, max_size=2).map(
        lambda fields: (
            struct(*(kind for kind, _ in fields)),
            st.tuples(*(st.none() | values for _, values in fields)).map(lambda v: T.Row(*v)),
        )
    )
    return arrays | maps | structs


TYPES = st.recursive(st.sampled_from(_leaves), _nested, max_leaves=3)


@given(st.lists(TYPES, min_size=1, max_size=3), st.data())
def test_what_is_encoded_is_decoded(
    fields: list[tuple[T.DataType, st.SearchStrategy[Any]]], data: st.DataObject
) -> None:
    some = codec(*(kind for kind, _ in fields))
    values = data.draw(st.tuples(*(st.none() | strategy for _, strategy in fields)))
    decoded = some.decode(some.encode(values))
    assert decoded == values
    assert type(decoded) is tuple
    for before, after in zip(values, decoded, strict=True):
        assert type(before) is type(after)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_unusual_floats_survive(value: float) -> None:
    some = codec(T.DoubleType())
    (decoded,) = some.decode(some.encode((value,)))
    assert repr(decoded) == repr(value)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [(T.ByteType(), 8), (T.ShortType(), 16), (T.IntegerType(), 32), (T.LongType(), 64)],
)
def test_integers_are_taken_up_to_their_bounds_and_no_further(kind: T.DataType, bits: int) -> None:
    some, bound = codec(kind), 1 << (bits - 1)
    for value in (-bound, bound - 1):
        assert some.decode(some.encode((value,))) == (value,)
    for value in (-bound - 1, bound):
        with pytest.raises(StateValueError, match=kind.simpleString()):
            some.encode((value,))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.LongType(), "1"), (T.LongType(), 1.5), (T.LongType(), True), (T.LongType(), b"1"),
        (T.LongType(), 2**70), (T.LongType(), (1,)), (T.LongType(), object()),
        (T.DoubleType(), "1.0"), (T.DoubleType(), True), (T.BooleanType(), 1),
        (T.StringType(), 1), (T.StringType(), b"a"), (T.StringType(), "\ud800"),
        (T.StringType(), ["a"]), (T.BinaryType(), "a"), (T.BinaryType(), [1]),
        (T.DecimalType(5, 2), "text"), (T.DateType(), "2020-01-01"), (T.DateType(), 5),
        (T.TimestampType(), "2020"), (T.TimestampType(), 5), (T.TimestampNTZType(), "2020"),
        (T.ArrayType(T.LongType()), ["a"]), (T.ArrayType(T.LongType()), 1),
        (T.MapType(T.StringType(), T.LongType()), {"a": "b"}),
        (T.MapType(T.StringType(), T.LongType()), {1: 1}), (struct(T.LongType()), (1, 2)),
        (struct(T.LongType()), ("a",)), (T.LongType(), np.array([1, 2])),
        (T.DecimalType(5, 2), Decimal("1234.5")), (T.DecimalType(5, 2), Decimal("NaN")),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_and_shown(kind: T.DataType, value: object) -> None:
    with pytest.raises(StateValueError, match=r"state 'count'.*f0:"):
        codec(kind).encode((value,))


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3), 1, None, [1], object()])
def test_anything_but_one_value_per_field_is_refused(values: object) -> None:
    with pytest.raises(StateValueError, match="one value per field"):
        codec(T.LongType(), T.LongType()).encode(values)
    with pytest.raises(StateValueError, match="one value per field"):
        codec(T.DateType(), T.DateType()).encode(values)


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        (T.LongType(), np.int64(7), 7),
        (T.ByteType(), np.int8(-7), -7),
        (T.DoubleType(), np.float64(1.5), 1.5),
        (T.FloatType(), np.float32(1.5), 1.5),
        (T.BooleanType(), np.bool_(True), True),
        (T.StringType(), np.str_("a"), "a"),
        (T.BinaryType(), bytearray(b"a"), b"a"),
        (T.BinaryType(), memoryview(b"a"), b"a"),
    ],
)
def test_scalars_of_numpy_and_bytes_of_any_kind_become_plain(
    kind: T.DataType, given: object, stored: object
) -> None:
    some = codec(kind)
    (decoded,) = some.decode(some.encode((given,)))
    assert decoded == stored
    assert type(decoded) is type(stored)


def test_a_list_and_a_row_are_taken_for_a_tuple() -> None:
    some = codec(T.LongType(), T.StringType())
    assert some.encode([1, "a"]) == some.encode(T.Row(f0=1, f1="a")) == some.encode((1, "a"))


def test_a_decimal_keeps_its_digits() -> None:
    some = codec(T.DecimalType(38, 18))
    value = Decimal("12345678901234567890.123456789012345678")
    assert some.decode(some.encode((value,))) == (value,)


@pytest.mark.parametrize(
    "data", [b"", b"\x91", b"\x92\x01", b"\x91\xa1a", b"\x92\x01\x02", b"\x91\x01\x00", b"\x80."]
)
def test_other_bytes_are_refused_by_the_reader(data: bytes) -> None:
    with pytest.raises(StateValueError, match="state 'count'"):
        codec(T.LongType()).decode(data)


def test_bytes_of_another_schema_are_refused_by_the_reader() -> None:
    data = codec(T.StringType()).encode(("a",))
    with pytest.raises(StateValueError, match="stored bytes"):
        codec(T.LongType()).decode(data)


@pytest.mark.parametrize("kind", [T.DayTimeIntervalType(), T.VariantType(), T.NullType()])
def test_a_type_that_is_not_built_is_named(kind: T.DataType) -> None:
    for wrapped in (kind, T.ArrayType(kind), T.MapType(T.StringType(), kind), struct(kind)):
        with pytest.raises(NotBuiltYetError, match=rf"state 'count'.*{kind.simpleString()}"):
            codec(wrapped)


_KEYS = st.lists(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | _texts
    | st.binary(),
    min_size=1,
    max_size=3,
).map(tuple)


@given(_KEYS, _KEYS)
def test_no_encoded_key_is_the_beginning_of_another(
    one: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    encode = key_encoder()
    first, second = encode(one), encode(other)
    assert first == second or not second.startswith(first)
    assert repr(msgspec.msgpack.decode(first)) == repr(list(one))
