"""Where a key's state is, found without Spark: its key group, and its stored form.

The hash of one column is the seed of the next, and a null leaves the seed as it is.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, StateValueError
from pyspark_ckpt.operator.rows.key_columns import check_key
from pyspark_ckpt.operator.rows.murmur import SEED, hash_bytes, hash_integer, hash_long, signed
from pyspark_ckpt.operator.values.codec import TupleCodec, key_encoder
from pyspark_ckpt.operator.values.leaves import TEXTS, TIME_OF_DAY
from pyspark_ckpt.operator.values.message_pack import MESSAGE_PACK
from pyspark_ckpt.operator.values.transport import travels_as_json
from pyspark_ckpt.operator.values.wire_form import wire_type

_LONG_DIGITS = 18
"""Spark hashes decimals of at most so many digits as a long."""

_INTEGERS: tuple[type[T.DataType], ...] = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.DateType, T.YearMonthIntervalType,
)  # fmt: skip
_LONGS: tuple[type[T.DataType], ...] = (
    T.LongType, T.TimestampType, T.TimestampNTZType, T.DayTimeIntervalType, *TIME_OF_DAY,
)  # fmt: skip


class KeyPlaces:
    """Finds the key groups and stored forms of keys, on any machine, without a Spark session."""

    def __init__(self, key_schema: T.StructType, max_parallelism: int) -> None:
        self._fields = key_schema.fields
        self._max_parallelism = max_parallelism
        for field in self._fields:
            check_key(field)
            _check_collation(field)
        self._columns = [_KeyColumn(field) for field in self._fields]
        self._encode = key_encoder()

    def place(self, key: Sequence[Any]) -> tuple[int, bytes]:
        """Return the key group and the encoded key of a key."""
        if len(key) != len(self._fields):
            names = ", ".join(field.name for field in self._fields)
            raise StateValueError(
                f"key {key!r} has {len(key)} values: give one value for each key column ({names})"
            )
        seed = SEED
        sent = []
        for column, value in zip(self._columns, key, strict=True):
            plain, in_key = column.forms_of(value)
            seed = _hashed(column.data_type, plain, seed)
            sent.append(in_key)
        return signed(seed) % self._max_parallelism, self._encode(tuple(sent))


class _KeyColumn:
    """One key column: its values in plain form, which is hashed, and as they are stored."""

    def __init__(self, field: T.StructField) -> None:
        self.data_type = field.dataType
        self._codec = TupleCodec(T.StructType([field]), f"key column {field.name!r}", is_key=True)
        plain = tuple.__class_getitem__((wire_type(MESSAGE_PACK, field.dataType),))
        self._decode = msgspec.msgpack.Decoder(plain).decode
        self._is_encoded = travels_as_json(field.dataType)

    def forms_of(self, value: Any) -> tuple[Any, Any]:
        """Return the plain form of a value, and its form in the stored key."""
        encoded = self._codec.encode((value,))
        (plain,) = self._decode(encoded)
        if self._is_encoded:
            return plain, encoded
        if plain is not None and isinstance(self.data_type, T.TimestampNTZType):
            return plain, _timestamp_text(plain)
        return plain, plain


def _check_collation(field: T.StructField) -> None:
    collation = getattr(field.dataType, "collation", "UTF8_BINARY")
    if collation != "UTF8_BINARY":
        raise NotBuiltYetError(
            f"key column {field.name!r} has the collation {collation}: only Spark hashes its keys, "
            "so read the whole state instead of one key"
        )


def _timestamp_text(microseconds: int) -> str:
    """Return a timestamp without a zone as Spark casts it to text."""
    time = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=microseconds)  # noqa: DTZ001
    text = time.isoformat(" ", "seconds")
    return f"{text}.{time.microsecond:06}".rstrip("0") if time.microsecond else text


def _hashed(data_type: T.DataType, value: Any, seed: int) -> int:
    """Return Spark's hash of a plain value, from 0 to 2**32 - 1."""
    if value is None:
        return seed
    if isinstance(data_type, T.ArrayType):
        for item in value:
            seed = _hashed(data_type.elementType, item, seed)
        return seed
    if isinstance(data_type, T.StructType):
        for field, item in zip(data_type.fields, value, strict=True):
            seed = _hashed(field.dataType, item, seed)
        return seed
    if isinstance(data_type, T.DecimalType):
        return _of_decimal(data_type, value, seed)
    return _LEAVES[type(data_type)](value, seed)


def _of_float(value: float, seed: int) -> int:
    """Return the hash of a float or double: the plan hashes both as doubles."""
    return hash_long(struct.unpack(">q", struct.pack(">d", value))[0], seed)


def _of_text(value: str, seed: int) -> int:
    return hash_bytes(value.encode(), seed)


_LEAVES: dict[type[T.DataType], Callable[[Any, int], int]] = {
    **dict.fromkeys(_INTEGERS, hash_integer),
    **dict.fromkeys(_LONGS, hash_long),
    **dict.fromkeys(TEXTS, _of_text),
    T.FloatType: _of_float,
    T.DoubleType: _of_float,
    T.BinaryType: hash_bytes,
}


_ALL_DIGITS = Context(prec=2 * 38)
"""Of any decimal of Spark, unscaled; the context of the thread may have fewer."""


def _of_decimal(data_type: T.DecimalType, value: Decimal, seed: int) -> int:
    unscaled = int(value.scaleb(data_type.scale, context=_ALL_DIGITS))
    if data_type.precision <= _LONG_DIGITS:
        return hash_long(unscaled, seed)
    # As Java's BigInteger.toByteArray: the fewest bytes that hold the sign.
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return hash_bytes(unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True), seed)
