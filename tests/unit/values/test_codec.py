"""The codec: an accepted value can be read again; any other is refused at once."""

from __future__ import annotations

import datetime
import math
import re
import time
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, PlanError, StateValueError
from pyspark_ckpt.values.codec import TupleCodec, key_encoder
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.unit.operator.spark_values import LEAVES, NOT_BUILT, TEXTS, TYPES, Typed, struct


def codec(*types: T.DataType) -> TupleCodec:
    return TupleCodec(struct(*types), "state 'count'")


@given(st.lists(TYPES, min_size=1, max_size=3), st.data())
def test_what_is_encoded_is_decoded(fields: list[Typed], data: st.DataObject) -> None:
    some = codec(*(kind for kind, _ in fields))
    values = data.draw(st.tuples(*(st.none() | strategy for _, strategy in fields)))
    decoded = some.decode(some.encode(values))
    assert repr(decoded) == repr(values)
    assert type(decoded) is tuple


@given(st.sampled_from(LEAVES), st.data())
def test_an_array_of_numpy_is_a_list_of_any_type(leaf: Typed, data: st.DataObject) -> None:
    """Frames of pandas have arrays in this form."""
    some, values = codec(T.ArrayType(leaf[0])), data.draw(st.lists(st.none() | leaf[1], max_size=3))
    array = np.empty(len(values), dtype=object)
    array[:] = values
    assert some.encode((array,)) == some.encode((values,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [T.FloatType(), T.DoubleType()], ids=str)
def test_an_array_of_fractions(kind: T.DataType, dtype: type[Any]) -> None:
    some, values = codec(T.ArrayType(kind)), [0.5, -0.0, math.inf]
    assert some.encode((np.array(values, dtype),)) == some.encode((values,))


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (T.DoubleType(), 0.0, -0.0),
        (T.DoubleType(), math.nan, -math.nan),
        (T.DoubleType(), 1, np.float64(1.0)),
        (T.FloatType(), 0.1, 0.1 + 1e-12),
        (T.LongType(), 1, np.int8(1)),
        (T.DecimalType(5, 2), Decimal("1.5"), Decimal("1.500")),
        (T.DecimalType(5, 2), Decimal("0.00"), Decimal("-0.00")),
        (T.DecimalType(5, 2), 1, Decimal(1)),
        (T.ArrayType(T.FloatType()), [0.0, math.nan, None], (-0.0, -math.nan, None)),
        (struct(T.DoubleType(), T.LongType()), (0.0, 1), {"f1": 1, "f0": -0.0}),
        (struct(struct(T.DoubleType())), T.Row(T.Row(math.nan)), [(-math.nan,)]),
        (T.MapType(T.StringType(), T.DoubleType()), {"a": 0.0, "b": 1.0}, {"b": 1, "a": -0.0}),
        (T.MapType(T.StringType(), T.LongType()), {"a": 1, "b": 2}, [("b", 2), ("a", 1)]),
    ],
)
def test_equal_keys_have_equal_bytes(kind: T.DataType, one: Any, other: Any) -> None:
    keys = TupleCodec(struct(kind), "keys", is_key=True)
    assert keys.encode((one,)) == keys.encode((other,))
    assert keys.encode((one,)) != keys.encode((None,))


@given(TYPES, st.data())
def test_a_key_that_is_read_and_written_again_keeps_its_bytes(
    typed: Typed, data: st.DataObject
) -> None:
    kind, values = typed
    if holds(kind, T.VariantType):
        with pytest.raises(PlanError, match=r"keys.*variant"):
            TupleCodec(struct(kind), "keys", is_key=True)
        return
    keys = TupleCodec(struct(kind), "keys", is_key=True)
    encoded = keys.encode((data.draw(values),))
    assert keys.encode(keys.decode(encoded)) == encoded


@pytest.mark.parametrize(
    ("kind", "given", "shown"),
    [
        (T.FloatType(), 0.1, "0.10000000149011612"),
        (T.FloatType(), 1e300, "inf"),
        (T.ArrayType(T.FloatType()), [0.1, None, -1e300], "[0.10000000149011612, None, -inf]"),
        (struct(T.DecimalType(10, 2)), (Decimal("1.005"),), "Row(f0=Decimal('1.01'))"),
        (struct(T.LongType(), T.StringType()), {"f1": "a"}, "Row(f0=None, f1='a')"),
        (struct(T.LongType()), {"f0": 1, "x": 2}, "Row(f0=1)"),
        (T.ArrayType(struct(T.LongType())), [T.Row(x=1), (2,)], "[Row(f0=1), Row(f0=2)]"),
        (T.MapType(struct(T.LongType()), T.LongType()), {(1,): None}, "{Row(f0=1): None}"),
        (T.CharType(1), "abc", "'abc'"),
    ],
)
def test_values_are_kept_as_pysparks_state_keeps_them(
    kind: T.DataType, given: Any, shown: str
) -> None:
    some = codec(kind)
    assert repr(some.decode(some.encode((given,)))) == f"({shown},)"


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
        (T.MapType(T.StringType(), T.LongType()), {None: 1}), (T.DecimalType(5, 2), 1.5),
        (T.DecimalType(5, 2), "1.5"), (T.FloatType(), True), (T.FloatType(), "1"),
        (T.ArrayType(T.DecimalType(5, 2)), [Decimal("1234.5")]), (T.VariantType(), {"a": 1}),
        (T.ArrayType(T.DateType()), "2020"), (T.ArrayType(T.DateType()), np.array(1)),
        (T.NullType(), 1),
        *[(time(), "01:00") for time in TIME_OF_DAY],
        (T.DayTimeIntervalType(), 1), (T.DayTimeIntervalType(), datetime.timedelta.max),
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
    "values", [{"f0": "x"}, "x", b"x", bytearray(b"x"), {"x"}, pd.DataFrame({"x": [1]})]
)
def test_what_only_python_takes_for_a_tuple_is_refused(values: Any) -> None:
    """Its keys, characters, bytes or column names would be stored."""
    for kind in (T.LongType(), T.DateType()):
        with pytest.raises(StateValueError, match=r"(?s)state .count.*; field 'f0' is .*: give"):
            codec(kind).encode(values)
        two = codec(kind, kind)
        for some in (two, two.plain, TupleCodec(struct(kind, kind), "state 'count'", is_key=True)):
            with pytest.raises(
                StateValueError, match=r"(?s)state .count.*is not a tuple.*one value"
            ):
                some.encode(values)
    for some in (codec(T.StringType()), TupleCodec(struct(T.StringType()), "keys", is_key=True)):
        if isinstance(values, str):
            assert some.decode(some.encode(values)) == (values,)
        else:
            with pytest.raises(StateValueError, match=r"(?s)is not a text.*give str"):
                some.encode(values)


class Swapped(NamedTuple):
    f1: int
    f0: int


@pytest.mark.parametrize("swapped", [T.Row(f1=1, f0=2), Swapped(1, 2), T.Row(x=1, f0=2)])
def test_a_row_whose_names_are_those_of_other_fields_is_refused(swapped: Any) -> None:
    both = struct(T.LongType(), T.LongType())
    with pytest.raises(StateValueError, match=r"at the place of 'f[01]'"):
        codec(T.LongType(), T.LongType()).encode(swapped)
    for kind, value in [(both, swapped), (T.ArrayType(both), [swapped])]:
        with pytest.raises(StateValueError, match=r"at the place of 'f[01]'"):
            codec(kind).encode((value,))


def test_a_row_with_names_of_its_own_is_taken_by_place_as_by_pyspark() -> None:
    some = codec(T.LongType(), T.LongType())
    for row in (T.Row(x=1, y=2), T.Row(1, 2), T.Row(f0=1, other=2)):
        assert some.decode(some.encode(row)) == (1, 2)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (struct(T.LongType(), T.StringType()), {"f1": "a", "x": 1}),
        (struct(T.LongType()), {"F0": 1}),
        (T.ArrayType(struct(T.LongType())), [{"f0": 1}, {"f": 1}]),
        (T.MapType(T.StringType(), struct(T.LongType())), {"k": {"f": 1}}),
        (T.MapType(struct(T.LongType()), T.LongType()), [({"f": 1}, 1)]),
    ],
)
def test_a_misspelt_name_in_a_nested_dict_is_refused(kind: T.DataType, value: Any) -> None:
    with pytest.raises(StateValueError, match=r"there is no field '(x|F0|f)', and 'f0' is missing"):
        codec(kind).encode((value,))


_REQUIRED = T.StructType([T.StructField("f0", T.LongType(), nullable=False)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (_REQUIRED, (None,)),
        (_REQUIRED, {}),
        (T.ArrayType(T.LongType(), containsNull=False), [1, None]),
        (T.ArrayType(_REQUIRED), [(1,), (None,)]),
        (T.MapType(T.StringType(), T.LongType(), valueContainsNull=False), {"k": None}),
    ],
)
def test_a_null_is_refused_where_the_schema_has_none(kind: T.DataType, value: Any) -> None:
    with pytest.raises(StateValueError, match="got `None`"):
        codec(kind).encode((value,))
    some = codec(kind)
    assert some.decode(some.encode((None,))) == (None,)
    plain = struct(kind)
    plain.fields[0].nullable = False
    with pytest.raises(StateValueError, match="got `None`"):
        TupleCodec(plain, "state 'count'").encode((None,))


def test_a_null_that_was_stored_before_it_was_refused_is_still_read() -> None:
    assert TupleCodec(_REQUIRED, "state 's'").decode(b"\x91\xc0") == (None,)


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


def test_scalars_of_numpy_are_taken_at_every_level() -> None:
    kind = T.MapType(T.StringType(), T.ArrayType(struct(T.LongType(), T.FloatType())))
    some = codec(kind)
    (decoded,) = some.decode(some.encode(({np.str_("a"): [(np.int32(1), np.float64(0.5))]},)))
    assert repr(decoded) == "{'a': [Row(f0=1, f1=0.5)]}"


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


@pytest.mark.parametrize("kind", NOT_BUILT)
def test_a_type_that_is_not_built_is_named(kind: T.DataType) -> None:
    for wrapped in (kind, T.ArrayType(kind), T.MapType(T.StringType(), kind), struct(kind)):
        with pytest.raises(
            NotBuiltYetError, match=rf"state 'count'.*{re.escape(kind.simpleString())}"
        ):
            codec(wrapped)


_KEYS = st.lists(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | TEXTS
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


def test_a_stored_text_that_is_no_text_is_an_error_of_the_library() -> None:
    codec = TupleCodec(T.StructType([T.StructField("s", T.StringType())]), "state 's'")
    with pytest.raises(StateValueError, match="do not fit"):
        codec.decode(b"\x91\xa1\xff")
    with pytest.raises(StateValueError, match="do not fit"):
        codec.decode_many([b"\x91\xa1\xff", b"\x91\xa0"])


@pytest.mark.usefixtures("local_time_zone")
def test_what_python_cannot_show_is_refused_by_name_and_never_lost() -> None:
    """An instant in year 10000 of the local time, and two keys of a repeated hour."""
    last = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.timezone.utc)
    ahead = TupleCodec(struct(T.TimestampType()), "state 's'")
    repeated = TupleCodec(struct(T.MapType(T.TimestampType(), T.LongType())), "state 's'")
    hours = {
        datetime.datetime(2023, 11, 5, hour, 30, tzinfo=datetime.timezone.utc): hour
        for hour in (5, 6)
    }
    # As a worker in another zone may have stored them.
    stored = repeated.plain.encode(({int(hour.timestamp() * 1e6): n for hour, n in hours.items()},))
    if time.tzname[0] == "JST":
        with pytest.raises(StateValueError, match=r"state 's'.*Python has no time.*'f0'"):
            ahead.encode((last,))
        in_utc = ahead.plain.encode((int(last.timestamp()) * 1_000_000,))
        with pytest.raises(StateValueError, match=r"state 's'.*Python does not have.*TZ"):
            ahead.decode(in_utc)
        assert list(repeated.decode(stored)[0].values()) == [5, 6]
    else:
        ahead.decode(ahead.encode((last,)))
        with pytest.raises(StateValueError, match=r"state 's'.*two keys in an hour"):
            repeated.encode((hours,))
        with pytest.raises(StateValueError, match=r"state 's'.*two keys in an hour"):
            repeated.decode(stored)


@pytest.mark.parametrize(
    ("kind", "value", "remedy"),
    [
        (T.LongType(), 5.0, "is bigint, 5.0 is float: give int, or None"),
        (T.LongType(), True, "is bigint, True is bool: give int, or None"),
        (T.TimestampType(), pd.NaT, "is timestamp, NaT is NaTType: give datetime, or None"),
        (T.DecimalType(5, 2), 1.5, "is decimal(5,2), 1.5 is float: give Decimal, or None"),
        (T.ArrayType(T.LongType()), 1, "is array<bigint>, 1 is int: give list, or None"),
    ],
)
def test_the_error_names_the_field_and_what_to_give(
    kind: T.DataType, value: object, remedy: str
) -> None:
    for types, values in (((kind,), (value,)), ((T.LongType(), kind), (1, value))):
        name = f"f{len(types) - 1}"
        with pytest.raises(StateValueError, match=re.escape(f"; field {name!r} {remedy}")):
            codec(*types).encode(values)


def test_the_error_names_the_field_of_a_value_that_is_out_of_range() -> None:
    for kind, value in ((T.LongType(), 2**70), (T.ArrayType(T.LongType()), ["a"])):
        says = f"; give field 'f1' a value that fits {kind.simpleString()}"
        with pytest.raises(StateValueError, match=re.escape(says)):
            codec(T.LongType(), kind).encode((1, value))
