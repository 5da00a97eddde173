"""Encoded tuples read as columns are what the codec reads, one tuple after the other."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.encoded import stored_columns
from pyspark_ckpt.values.state_columns import ValueColumns
from tests.unit.operator.spark_values import TYPES, struct

_LONG = T.LongType()
_EDGES = [n for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63) for n in (1 << bits, (1 << bits) - 1)]
_LONGS = [n for edge in _EDGES for n in (edge, -edge, -edge - 1) if -(1 << 63) <= n < 1 << 63]
_TEXTS = ["", "ä", *("x" * n for n in (31, 32, 255, 256, 65535, 65536))]
READ: list[tuple[T.DataType, list[Any]]] = [
    (_LONG, _LONGS),
    (T.IntegerType(), [-(1 << 31), (1 << 31) - 1, 5]),
    (T.ShortType(), [-(1 << 15), (1 << 15) - 1]),
    (T.ByteType(), [-128, 127, 0]),
    (T.DoubleType(), [0.1, math.nan, math.inf, -0.0]),
    (T.FloatType(), [0.5, math.nan, -math.inf]),
    (T.BooleanType(), [True, False]),
    (T.StringType(), _TEXTS),
    (T.BinaryType(), [text.encode() for text in _TEXTS]),
    (T.DateType(), [-(1 << 31), (1 << 31) - 1, 0]),
    (T.TimestampType(), [-(1 << 63), (1 << 63) - 1, 0]),
    (T.TimestampNTZType(), [-(1 << 63), (1 << 63) - 1, 0]),
    (T.DayTimeIntervalType(), [-(1 << 63), (1 << 63) - 1, 0]),
    (T.YearMonthIntervalType(), [-(1 << 31), 0]),
]
"""Types that are read a column at a time, with values in plain form."""


def codec_of(schema: T.StructType) -> TupleCodec:
    return TupleCodec(schema, "state 's'", style=None)


def by_codec(stored: Sequence[bytes | None], schema: T.StructType) -> list[pa.Array]:
    values = codec_of(schema).decode_many(stored)
    return [whole.chunk(0) for whole in ValueColumns(schema, "state 's'").table(values).columns]


def shown(columns: list[pa.Array]) -> list[Any]:
    """Return columns so that they can be compared: Arrow's NaN does not equal itself."""
    return [
        (column.type, list(map(repr, column.to_pylist())))
        if pa.types.is_floating(column.type)
        else column
        for column in columns
    ]


@pytest.mark.parametrize(("kind", "values"), READ, ids=lambda p: str(p)[:15])
def test_each_type_with_and_without_nulls_and_missing_tuples(
    kind: T.DataType, values: list[Any]
) -> None:
    schema = struct(_LONG, kind, T.BooleanType())
    encode = codec_of(schema).encode
    rows = [(number, value, None) for number, value in enumerate(values)]
    for some in (rows, [*rows, (None, None, None)], [(None, None, True)]):
        stored: list[bytes | None] = list(map(encode, some))
        for each in (stored, [None, *stored, None]):
            found = stored_columns(each, schema, b"")
            assert found is not None
            assert shown(found) == shown(by_codec(each, schema))


@st.composite
def stored_tuples(draw: st.DrawFn) -> tuple[T.StructType, list[bytes | None]]:
    columns = draw(st.lists(TYPES, min_size=1, max_size=3))
    schema = struct(*(kind for kind, _ in columns))
    encode = TupleCodec(schema, "state 's'").encode
    values = st.tuples(*(st.none() | values for _, values in columns)).map(encode)
    return schema, draw(st.lists(st.none() | values, min_size=1, max_size=4))


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(stored_tuples())
def test_what_is_read_is_what_the_codec_reads(
    stored: tuple[T.StructType, list[bytes | None]],
) -> None:
    schema, tuples = stored
    found = stored_columns(tuples, schema, b"")
    assert found is None or shown(found) == shown(by_codec(tuples, schema))


_CHANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=3)


@pytest.mark.slow
@settings(deadline=None, max_examples=600)
@given(
    st.lists(st.sampled_from(READ), min_size=1, max_size=3), st.data(), _CHANGES, st.integers(-3, 3)
)
def test_damaged_tuples_are_left_to_the_codec(
    kinds: list[tuple[T.DataType, list[Any]]],
    data: st.DataObject,
    changes: list[tuple[int, int]],
    longer: int,
) -> None:
    schema = struct(*(kind for kind, _ in kinds))
    rows = st.tuples(*(st.sampled_from([*values[:3], None]) for _, values in kinds))
    given_rows = data.draw(st.lists(rows, min_size=1, max_size=3))
    tuples = [bytearray(codec_of(schema).encode(row)) for row in given_rows]
    damaged = data.draw(st.sampled_from(tuples))
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    damaged += bytes(max(longer, 0))
    del damaged[len(damaged) + min(longer, 0) :]
    stored = list(map(bytes, tuples))
    found = stored_columns(stored, schema, b"")
    if found is not None:
        assert shown(found) == shown(by_codec(stored, schema))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x91", b"\x92\x01", b"\x91\xcd\x01", b"\x91\x01\x01", b"\x91\xcf" + b"\xff" * 8,
        b"\x91\xa1x", b"\x91\xcb" + bytes(8), b"\x90",
    ],
    ids=repr,
)  # fmt: skip
def test_a_tuple_of_another_form_reads_nothing(data: bytes) -> None:
    assert stored_columns([b"\x91\x01", data], struct(_LONG), b"") is None
    assert stored_columns([data, b"\x91\x01"], struct(_LONG), b"") is None


def test_a_text_that_is_no_text_or_ends_behind_its_tuple() -> None:
    schema = struct(T.StringType())
    for data in (b"\x91\xa1\xff", b"\x91\xa5x", b"\x91\xdb\xff\xff\xff\xff", b"\x91\xd9"):
        assert stored_columns([data, b"\x91\xa0"], schema, b"") is None
        with pytest.raises(StateValueError, match="do not fit"):
            codec_of(schema).decode_many([data, b"\x91\xa0"])


@pytest.mark.parametrize("kind", [T.StringType(), T.BinaryType()], ids=str)
def test_texts_take_a_few_times_their_memory(kind: T.DataType) -> None:
    """They took 17 times as much: a worker ran out of memory with a part of large texts."""
    value = "x" * 500 if isinstance(kind, T.StringType) else b"x" * 500
    stored = [codec_of(struct(kind)).encode((value,))] * 5000
    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes()
        found = stored_columns(stored, struct(kind), b"")
        in_arrow = pa.total_allocated_bytes() - before
        in_python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found[0].to_pylist() == [value] * 5000
    assert in_arrow + in_python < 4 * sum(map(len, stored))


def test_tuples_of_a_later_schema_are_read_if_all_are() -> None:
    schema, prefix = struct(_LONG), b"\xcc\x01"
    found = stored_columns([prefix + b"\x91\x07", None], schema, prefix)
    assert found is not None
    assert found[0].to_pylist() == [7, None]
    assert stored_columns([prefix + b"\x91\x07", b"\x91\x07"], schema, prefix) is None
    assert stored_columns([prefix + b"\x91\x07"], schema, b"") is None


@pytest.mark.parametrize(("kind", "values"), READ[:9], ids=lambda p: str(p)[:15])
def test_frames_are_those_of_the_codec(kind: T.DataType, values: list[Any]) -> None:
    schema = struct(_LONG, kind)
    columns, codec = ValueColumns(schema, "state 's'"), TupleCodec(schema, "state 's'")
    stored = [None, *(codec.encode((1, value)) for value in values), codec.encode((None, None))]
    index = pd.Index(np.arange(len(stored))[::-1])
    found = columns.stored_frame(stored, b"", index)
    assert found is not None
    pd.testing.assert_frame_equal(found, columns.frame(codec.decode_many(stored), index))
    for name in found:
        found.loc[index[0], name] = found.loc[index[1], name]  # it may be written to
