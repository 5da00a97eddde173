"""Where a key's state is: key groups, subtasks, tokens, and Spark's hash without Spark.

A key belongs to key group ``pmod(hash(key columns), max_parallelism)`` for good; key groups are
spread over subtasks in ranges, as Flink's KeyGroupRangeAssignment does.

The hash of one column is the seed of the next, and a null leaves the seed as it is.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import cache
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.operator.rows.key_columns import check_key
from pyspark_ckpt.operator.values.codec import TupleCodec, key_encoder
from pyspark_ckpt.operator.values.leaves import TEXTS, TIME_OF_DAY
from pyspark_ckpt.operator.values.message_pack import MESSAGE_PACK
from pyspark_ckpt.operator.values.transport import travels_as_json
from pyspark_ckpt.operator.values.wire_form import wire_type

MAX_MAX_PARALLELISM = 32768
"""Flink's upper bound; it also keeps a key group's two bytes below the reserved keys."""

SEED = 42
"""The seed of Spark's ``hash``."""

_MASK = 0xFFFFFFFF

_LONG_DIGITS = 18
"""Spark hashes decimals of at most so many digits as a long."""

_INTEGERS: tuple[type[T.DataType], ...] = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.DateType, T.YearMonthIntervalType,
)  # fmt: skip

_LONGS: tuple[type[T.DataType], ...] = (
    T.LongType, T.TimestampType, T.TimestampNTZType, T.DayTimeIntervalType, *TIME_OF_DAY,
)  # fmt: skip

_ALL_DIGITS = Context(prec=2 * 38)
"""Of any decimal of Spark, unscaled; the context of the thread may have fewer."""


def default_max_parallelism(parallelism: int) -> int:
    """Return Flink's default number of key groups: 1.5 x parallelism as a power of two, 128 up."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), 128), MAX_MAX_PARALLELISM)


def check_max_parallelism(max_parallelism: int, parallelism: int) -> int:
    """Return `max_parallelism` if it can serve `parallelism` subtasks."""
    if not parallelism <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise PlanError(
            f"maxParallelism is {max_parallelism}: it must lie between the parallelism "
            f"(spark.sql.shuffle.partitions = {parallelism}) and {MAX_MAX_PARALLELISM}"
        )
    return max_parallelism


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that holds a key group."""
    return key_group * parallelism // max_parallelism


def key_groups_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Return the key groups that a subtask holds."""
    start = -(-subtask * max_parallelism // parallelism)
    stop = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(start, stop)


@cache
def subtask_tokens(parallelism: int) -> tuple[int, ...]:
    """Return the token of each subtask.

    Spark's hash partitioning puts the integer ``tokens[i]`` into partition *i*, so each subtask
    gets a separate partition, and a separate call of the Python function.
    """
    tokens: dict[int, int] = {}
    token = 0
    while len(tokens) < parallelism:
        tokens.setdefault(signed(hash_integer(token, SEED)) % parallelism, token)
        token += 1
    return tuple(tokens[partition] for partition in range(parallelism))


def hash_integer(value: int, seed: int) -> int:
    """Return the hash of a 32-bit integer, from 0 to 2**32 - 1."""
    return _finished(_mixed(seed, value), 4)


def hash_long(value: int, seed: int) -> int:
    """Return the hash of a 64-bit integer, from 0 to 2**32 - 1."""
    return _finished(_mixed(_mixed(seed, value), value >> 32), 8)


def hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, from 0 to 2**32 - 1."""
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<i", data[:whole]):
        seed = _mixed(seed, word)
    for byte in struct.unpack(f"{len(data) - whole}b", data[whole:]):
        seed = _mixed(seed, byte)
    return _finished(seed, len(data))


def _mixed(seed: int, word: int) -> int:
    mixed = _rotated((word & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return (_rotated(seed ^ mixed, 13) * 5 + 0xE6546B64) & _MASK


def _finished(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def signed(value: int) -> int:
    """Return a hash as the signed number that Spark shows."""
    return value - (1 << 32) if value >> 31 else value


class KeyPlaces:
    """Finds the key groups and stored forms of keys, on any machine, without a Spark session."""

    def __init__(self, key_schema: T.StructType, max_parallelism: int) -> None:
        self._fields = key_schema.fields
        self._max_parallelism = max_parallelism
        for field in self._fields:
            check_key(field)
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


def _of_decimal(data_type: T.DecimalType, value: Decimal, seed: int) -> int:
    unscaled = int(value.scaleb(data_type.scale, context=_ALL_DIGITS))
    if data_type.precision <= _LONG_DIGITS:
        return hash_long(unscaled, seed)
    # As Java's BigInteger.toByteArray: the fewest bytes that hold the sign.
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return hash_bytes(unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True), seed)
