"""Columns are encoded to the bytes that the codec of a state writes, value by value."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.keys import KeyPlaces
from pyspark_ckpt.values.arrow import arrow_type
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.encoded import Form, encoded_tuples, repeated
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.unit.operator.rows.sent import sent_columns
from tests.unit.operator.spark_values import TYPES, struct

_FORMS = {Form.VALUE: False, Form.MAP_KEY: True}


@st.composite
def tables(draw: st.DrawFn) -> tuple[T.StructType, list[tuple[Any, ...]]]:
    columns = draw(st.lists(TYPES, min_size=1, max_size=3))
    values = st.tuples(*(st.none() | values for _, values in columns))
    return struct(*(kind for kind, _ in columns)), draw(st.lists(values, min_size=1, max_size=4))


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("form", _FORMS)
@settings(deadline=None, max_examples=300)
@given(tables())
def test_bytes_are_those_of_the_codec(
    form: Form, table: tuple[T.StructType, list[tuple[Any, ...]]]
) -> None:
    schema, rows = table
    if _FORMS[form] and holds(schema, T.VariantType):
        return
    encode = TupleCodec(schema, "test", is_key=_FORMS[form]).encode
    assert encoded_tuples(sent_columns(schema, rows), schema, form).to_pylist() == [
        *map(encode, rows)
    ]


@pytest.mark.parametrize("form", _FORMS)
def test_every_length_of_numbers_and_texts(form: Form) -> None:
    edges = [1 << bits for bits in (5, 7, 8, 15, 16, 31, 32, 63)]
    numbers = [n for edge in edges for n in (edge - 1, edge, -edge, -edge - 1, -edge + 1)]
    numbers = [n for n in numbers if -(1 << 63) <= n < 1 << 63]
    texts = ["x" * n for n in (0, 1, 31, 32, 255, 256, 65535, 65536)]
    rows = [(n, texts[i % 8], texts[i % 8].encode()) for i, n in enumerate([*numbers, 0, None])]
    kinds = T.LongType(), T.StringType(), T.BinaryType()
    schema = struct(*kinds)
    encode = TupleCodec(schema, "test", is_key=_FORMS[form]).encode
    found = encoded_tuples(sent_columns(schema, rows), schema, form)
    assert found.to_pylist() == [*map(encode, rows)]


def test_a_wide_tuple_and_slices_of_columns() -> None:
    schema = struct(*[T.IntegerType()] * 40)
    rows = [tuple(range(n, n + 40)) for n in range(5)]
    sliced = [column[1:4] for column in sent_columns(schema, rows)]
    heads = repeated(b"\x00\x01", 3)
    wanted = [b"\x00\x01" + msgspec.msgpack.encode(row) for row in rows[1:4]]
    assert encoded_tuples(sliced, schema, Form.KEY, heads).to_pylist() == wanted


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(tables())
def test_keys_are_those_that_the_plan_sends(
    table: tuple[T.StructType, list[tuple[Any, ...]]],
) -> None:
    """Nulls too: a null in a nested column travels in the form of the column."""
    schema, rows = table
    if holds(schema, (T.MapType, T.VariantType)):
        return
    place = KeyPlaces(schema, 128).place
    wanted = [place(row)[1] for row in rows]
    assert encoded_tuples(sent_columns(schema, rows), schema, Form.KEY).to_pylist() == wanted


@pytest.mark.parametrize(
    "text",
    [
        "-290308-12-21 19:59:05.224192", "-10000-01-01 00:00:00", "-0999-12-31 23:59:59.5",
        "-0001-03-01 00:00:00", "0000-01-01 00:00:00", "0999-01-01 00:00:00.000001",
        "9999-12-31 23:59:59.999999", "+10000-01-01 00:00:00", "+294247-01-10 04:00:54.775807",
    ],
)  # fmt: skip
def test_a_local_time_in_a_key_is_the_text_of_sparks_cast(text: str) -> None:
    schema = struct(T.TimestampNTZType())
    time = np.array([text], "datetime64[us]").astype(np.int64)  # the least is none to NumPy
    column = pa.array(time).view(pa.timestamp("us"))
    (key,) = encoded_tuples([column], schema, Form.KEY).to_pylist()
    assert msgspec.msgpack.decode(key) == [text]


TIMES: list[tuple[T.DataType, pa.DataType]] = [
    (T.TimestampType(), pa.int64()),
    (T.TimestampNTZType(), pa.int64()),
    (T.DateType(), pa.int32()),
    (T.DayTimeIntervalType(), pa.int64()),
    *((kind(), pa.int64()) for kind in TIME_OF_DAY),
]
"""Times and the integers that they are in plain form."""


def edges_of(kind: T.DataType, integers: pa.DataType) -> list[int | None]:
    """The least and the greatest integer, of which Python has no time, and some that it has."""
    if isinstance(kind, TIME_OF_DAY):
        return [0, 1, 86_399_999_999_999, None]
    bits = integers.bit_width - 1
    return [-(1 << bits), (1 << bits) - 1, 0, None, 7]


def nested(kind: T.DataType, array: pa.Array) -> list[tuple[T.DataType, pa.Array, list[Any]]]:
    """An array inside of each nested type, some values of which are null, with plain values."""
    values = array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64()).to_pylist()
    places = range(len(values))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, None, 2, len(values)], pa.int32()), array)
    of_lists = [values[:2], [], None, values[2:]]
    fields = [T.StructField(name, kind) for name in "aa"]  # two of one name
    structs = pa.StructArray.from_arrays(
        [array, array], names=["a", "a"], mask=pa.array([place == 1 for place in places])
    )
    of_structs = [None if place == 1 else (values[place],) * 2 for place in places]
    bounds = pa.array([*places, len(values)], pa.int32())
    maps = pa.MapArray.from_arrays(bounds, pa.array(map(str, places)), array)
    of_maps = [{str(place): values[place]} for place in places]
    return [
        (T.ArrayType(kind), lists, of_lists),
        (T.StructType(fields), structs, of_structs),
        (T.MapType(T.StringType(), kind), maps, of_maps),
        (
            T.ArrayType(T.StructType(fields)),
            pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), structs),
            [of_structs],
        ),
    ]


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize(("kind", "integers"), TIMES, ids=str)
def test_nested_times_that_python_does_not_have(
    kind: T.DataType, integers: pa.DataType, form: Form
) -> None:
    array = pa.array(edges_of(kind, integers), integers).cast(arrow_type(kind))
    for data_type, column, plain in nested(kind, array):
        schema = T.StructType([T.StructField("v", data_type)])
        encode = TupleCodec(schema, "test", is_key=_FORMS[form]).plain.encode
        wanted = [encode((value,)) for value in plain]
        assert encoded_tuples([column], schema, form).to_pylist() == wanted
        assert encoded_tuples([column[1:]], schema, form).to_pylist() == wanted[1:]


def test_a_null_in_a_nested_key_column() -> None:
    schema = struct(T.StructType([T.StructField("x", T.IntegerType())]))
    rows: list[tuple[Any, ...]] = [(None,), ((None,),), ((1,),)]
    wanted = [KeyPlaces(schema, 128).place(row)[1] for row in rows]
    assert encoded_tuples(sent_columns(schema, rows), schema, Form.KEY).to_pylist() == wanted
