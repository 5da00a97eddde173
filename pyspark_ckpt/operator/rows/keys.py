"""Where a key's state is: key groups, subtasks and tokens.

A key belongs to key group ``pmod(hash(key columns), max_parallelism)`` for good; key groups are
spread over subtasks in ranges, as Flink's KeyGroupRangeAssignment does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.operator.rows.key_columns import check_key
from pyspark_ckpt.values.codec import TupleCodec, key_encoder
from pyspark_ckpt.values.hashing import SEED, hash_integer, signed
from pyspark_ckpt.values.plain import msgspec_type
from pyspark_ckpt.values.types import KeyForm, find_leaf, key_form_of, leaf_of, stored_key_type

MAX_MAX_PARALLELISM = 32768
"""Flink's upper bound; it also keeps a key group's two bytes below the reserved keys."""


def default_max_parallelism(parallelism: int) -> int:
    """Return Flink's default number of key groups: 1.5 x parallelism as a power of two, 128 up."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), 128), MAX_MAX_PARALLELISM)


def check_max_parallelism(max_parallelism: int, parallelism: int) -> int:
    """Return `max_parallelism` if it can serve `parallelism` subtasks."""
    if not parallelism <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise PlanError(
            f"max_parallelism is {max_parallelism}: it must lie between the parallelism "
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
            seed = seed if plain is None else column.hash(plain, seed)
            sent.append(in_key)
        return signed(seed) % self._max_parallelism, self._encode(tuple(sent))

    def group_of_stored(self, encoded: bytes) -> int:
        """Return the key group of a key from its stored form."""
        seed = SEED
        for column, stored in zip(self._columns, self._decode(encoded), strict=True):
            plain = column.plain_of(stored)
            seed = seed if plain is None else column.hash(plain, seed)
        return signed(seed) % self._max_parallelism

    @cached_property
    def _decode(self) -> Callable[[bytes], tuple[Any, ...]]:
        return msgspec.msgpack.Decoder(stored_key_type(self._fields)).decode


class _KeyColumn:
    """One key column: its values in plain form, which is hashed, and as they are stored."""

    def __init__(self, field: T.StructField) -> None:
        self.hash = _hash_of(field.dataType)
        row = find_leaf(field.dataType)
        self._texts = None if row is None else row.key_texts
        self._codec = TupleCodec(T.StructType([field]), f"key column {field.name!r}", is_key=True)
        plain = tuple.__class_getitem__((msgspec_type(field.dataType),))
        self._decode = msgspec.msgpack.Decoder(plain).decode
        self._is_encoded = key_form_of(field.dataType) is KeyForm.ENCODED

    def forms_of(self, value: Any) -> tuple[Any, Any]:
        """Return the plain form of a value, and its form in the stored key."""
        encoded = self._codec.encode((value,))
        (plain,) = self._decode(encoded)
        if self._is_encoded:
            return plain, encoded
        if plain is not None and self._texts is not None:
            return plain, self._texts(np.array([plain]))[0]
        return plain, plain

    def plain_of(self, stored: Any) -> Any:
        """Return the plain form of a value in a stored key."""
        if stored is None:
            return None
        if self._is_encoded:
            return self._decode(stored)[0]
        return int(np.datetime64(stored, "us").astype(np.int64)) if self._texts else stored


def _hash_of(data_type: T.DataType) -> Callable[[Any, int], int]:
    """Return Spark's hash of plain values of a type, from 0 to 2**32 - 1."""
    if isinstance(data_type, T.ArrayType):
        of_item = _hash_of(data_type.elementType)

        def of_array(items: Any, seed: int) -> int:
            for item in items:
                seed = seed if item is None else of_item(item, seed)
            return seed

        return of_array
    if isinstance(data_type, T.StructType):
        of_fields = [_hash_of(field.dataType) for field in data_type.fields]

        def of_struct(items: Any, seed: int) -> int:
            for of_field, item in zip(of_fields, items, strict=True):
                seed = seed if item is None else of_field(item, seed)
            return seed

        return of_struct
    hasher = leaf_of(data_type).hasher
    return hasher(data_type) if hasher is not None else _of_nothing


def _of_nothing(_: Any, seed: int) -> int:
    return seed
