"""The bytes by which entries of others mention a key."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.editing.key_search import KeyBytes
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.encoded import Form, encoded_tuples
from tests.unit.operator.rows.sent import sent_columns
from tests.unit.operator.spark_values import struct

NOON = datetime.datetime.fromisoformat("2026-11-28T12:00:00.000001")
LEAVES: list[tuple[T.DataType, Any]] = [
    (T.StringType(), "ada.lovelace"),
    (T.StringType(), "Ada Lovelace, Countess of Lovelace"),  # texts from 32 bytes have another head
    (T.StringType(), 'ada "countess" lovelace'),
    (T.StringType(), "Łukasz"),
    (T.BinaryType(), b"\x00ada\xff"),
    (T.LongType(), 70_000),
    (T.LongType(), -(1 << 40)),
    (T.DoubleType(), 0.25),
    (T.DecimalType(12, 2), Decimal("1234.50")),
    (T.TimestampNTZType(), NOON),
]


def key(kinds: list[T.DataType], values: list[Any]) -> bytes:
    """Return a key as it is stored, without its key group."""
    schema = struct(*kinds)
    return encoded_tuples(sent_columns(schema, [tuple(values)]), schema, Form.KEY)[0].as_py()


def value(kinds: list[T.DataType], values: list[Any]) -> bytes:
    return TupleCodec(struct(*kinds), "state 'test'").encode(tuple(values))


def bytes_of(kind: T.DataType, leaf: Any) -> KeyBytes:
    return KeyBytes.of([(b"\x00\x07" + key([kind], [leaf]), value([kind], [leaf]))])


@pytest.mark.parametrize(("kind", "leaf"), LEAVES)
def test_a_key_is_found_in_what_others_store(kind: T.DataType, leaf: Any) -> None:
    key_bytes = bytes_of(kind, leaf)
    text, number = T.StringType(), T.LongType()
    assert key_bytes.too_short == 0
    assert key_bytes.are_in(key([text, kind, number], ["acme", leaf, 7]))
    assert key_bytes.are_in(value([T.ArrayType(kind), number], [[leaf], 7]))
    assert key_bytes.are_in(value([T.MapType(kind, number)], [{leaf: 7}]))
    assert not key_bytes.are_in(key([text, number], ["acme", 7]))


@pytest.mark.parametrize(
    ("kind", "leaf"), [each for each in LEAVES if isinstance(each[0], T.StringType | T.LongType)]
)
def test_a_text_or_whole_number_is_found_in_nested_keys_and_texts(
    kind: T.DataType, leaf: Any
) -> None:
    nested = T.StructType([T.StructField("x", kind), T.StructField("n", T.LongType())])
    key_bytes = bytes_of(kind, leaf)
    assert key_bytes.are_in(key([nested], [(leaf, 7)]))
    assert key_bytes.are_in(value([T.StringType()], [f"<{leaf}>"]))
    assert bytes_of(nested, (leaf, 70_000)).are_in(value([T.StringType()], [f"<{leaf}>"]))


@pytest.mark.parametrize(
    ("kind", "leaf"),
    [(T.StringType(), "bob"), (T.LongType(), 7), (T.LongType(), 65_535), (T.BinaryType(), b"abc")],
)
def test_what_is_too_short_is_counted(kind: T.DataType, leaf: Any) -> None:
    assert bytes_of(kind, leaf).too_short == 1
    named = struct(T.StringType(), kind)
    composite = bytes_of(named, ("ada.lovelace", leaf))
    assert composite.too_short == 1
    assert composite.are_in(value([T.StringType()], ["ada.lovelace"]))


def test_a_short_text_is_found_where_it_is_all() -> None:
    key_bytes = bytes_of(T.StringType(), "bob")
    assert key_bytes.are_in(value([T.ArrayType(T.StringType())], [["ada", "bob"]]))
    assert not key_bytes.are_in(value([T.StringType()], ["bobsled"]))


@pytest.mark.parametrize("kind", [T.StringType(), T.LongType(), T.BooleanType()])
def test_null_has_no_bytes(kind: T.DataType) -> None:
    key_bytes = bytes_of(kind, None)
    assert (key_bytes.too_short, key_bytes.patterns) == (0, frozenset())
