"""The typed codec: encodes tuples by a Spark schema as MessagePack, never pickle.

Each encoded tuple is decoded by the types of the schema and compared with what was given. In 0.1 us
this is the cheapest check and the strictest: it proves that the value can be read again. Only a
tuple that is not equal, such as one with a NaN, is looked at value by value, as output columns are.

A state has one codec for all schemas of its history; old entries are converted when they are read.
An entry of the first schema is the bare tuple. An entry of a later schema begins with MessagePack
uint8 (``cc``) and the schema's place in the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.errors import CorruptFileError, NotBuiltYetError, PlanError, StateValueError
from pyspark_ckpt.values.message_pack import UNREADABLE
from pyspark_ckpt.values.nesting import holds, types_in
from pyspark_ckpt.values.plain import (
    PLAIN,
    STATE_FORM,
    STATE_STYLE,
    ValueStyle,
    canonical_fields,
    check_places,
    fields_reader,
    fields_writer,
    msgspec_type,
)
from pyspark_ckpt.values.types import INSTANTS, NO_KEYS, find_leaf
from pyspark_ckpt.values.user import Converter, unwrapped
from pyspark_ckpt.values.words import shown

_MISFITS = (
    msgspec.MsgspecError, TypeError, OverflowError, AttributeError, ValueError, BufferError,
    RecursionError,
)  # fmt: skip
"""What is raised for a value that does not fit, by its writer, by msgspec, or by a comparison."""

_ARRAY_HEAD = b"\xdd"
"""The first byte of a MessagePack array with a length of four bytes."""


class TupleCodec:
    """Encodes and decodes the tuples of one schema.

    `what` names the tuples in errors, such as ``state 'count'``. With `is_key`, equal tuples give
    equal bytes, as keys of a map must. If `style` is ``None``, decoded values are plain, as they
    are stored: times are integers, structs are tuples.
    """

    def __init__(
        self,
        schema: T.StructType,
        what: str,
        *,
        is_key: bool = False,
        style: ValueStyle | None = STATE_STYLE,
    ) -> None:
        self._schema = schema
        self._what = what
        types = tuple(_wire_type(field.dataType, what) for field in schema.fields)
        if is_key:
            _check_key(schema, what)
        tuple_type = tuple.__class_getitem__(types)
        self._decoder = msgspec.msgpack.Decoder(tuple_type)
        self._names = schema.names
        # Of written values only: stored ones may be older than this check.
        required = None if style is None else required_decoder(schema)
        self._checker = required or self._decoder
        self._many_decoder = msgspec.msgpack.Decoder(list.__class_getitem__(tuple_type))
        self._encoder = msgspec.msgpack.Encoder(enc_hook=unwrapped)
        self._form = STATE_FORM if style is STATE_STYLE else PLAIN
        self._write = None if style is None else fields_writer(self._form, schema, is_checked=True)
        self._read = None if style is None else fields_reader(schema, style)
        self._reads_back = style is STATE_STYLE and any(
            isinstance(each, T.MapType) and holds(each.keyType, INSTANTS)
            for each in types_in(schema)
        )
        self._is_key = is_key
        self._is_of_users = style is not None
        self._canonical = canonical_fields(schema) if is_key else None

    prefix = b""
    """What encoded tuples begin with."""

    @cached_property
    def plain(self) -> TupleCodec:
        """The codec of the same bytes that takes and returns plain values, without any loss."""
        return TupleCodec(self._schema, self._what, is_key=self._is_key, style=None)

    def encode(self, values: Any) -> bytes:
        """Encode one tuple."""
        try:
            if type(values) is not tuple:  # a plain one pays for no check of other types
                values = _as_tuple(values, self._names)
            wire = values if self._write is None else self._write(values)
            data = self._encoder.encode(wire)
            checked = self._checker.decode(data)
            is_the_same = checked == wire or not self._is_of_users
        except _MISFITS as exc:
            data, checked = self._by_value(values, exc)
        else:
            if not is_the_same:
                data, checked = self._by_value(values)
        if self._reads_back:
            self._read_back(values, checked)
        if not self._is_key:
            return data
        # Decoding by type has made 1 and 1.0 the same value.
        return self._encoder.encode(
            checked if self._canonical is None else self._canonical(checked)
        )

    def as_tuple(self, values: Any) -> tuple[Any, ...]:
        """Return the tuple that :meth:`encode` takes values for."""
        if type(values) is tuple:
            return values
        try:
            return _as_tuple(values, self._names)
        except _MISFITS as exc:
            raise self._misfit(values, exc) from exc

    def encode_all(self, values: Any) -> list[bytes]:
        """Encode each tuple of a list, or of what Python takes for one."""
        if isinstance(values, _NO_TUPLES) or not isinstance(values, Iterable):
            raise StateValueError(
                f"{self._what}: {shown(values)} is {type(values).__name__}; give a list of tuples"
            )
        return list(map(self.encode, values))

    @cached_property
    def _write_each(self) -> Converter | None:
        return fields_writer(self._form, self._schema)

    def _by_value(self, values: Any, found: Exception | None = None) -> tuple[bytes, Any]:
        """Return a tuple encoded, and decoded, after a look at each of its values."""
        try:
            if found is not None and (not self._is_of_users or type(values) is not tuple):
                raise found
            wire = values if self._write_each is None else self._write_each(values)
            data = self._encoder.encode(wire)
            return data, self._checker.decode(data)
        except _MISFITS as exc:
            raise self._misfit(values, exc) from exc

    def _read_back(self, values: Any, checked: Any) -> None:
        """Refuse values that could be written, and not read in this worker's time zone."""
        assert self._read is not None  # a map is read by a converter
        try:
            self._read(checked)
        except (ValueError, OverflowError, OSError) as exc:
            raise self._misfit(values, exc) from exc

    def _misfit(self, values: Any, why: Exception) -> StateValueError:
        error: StateValueError = StateValueError(
            f"{self._what}: {shown(values)} does not fit the schema "
            f"{self._schema.simpleString()} ({why}); {self._remedy(values)}"
        )
        return error

    def _remedy(self, values: Any) -> str:
        """Return what to give in place of a tuple that does not fit."""
        fields = self._schema.fields
        if self._is_of_users and type(values) is tuple and len(values) == len(fields):
            for field, value in zip(fields, values, strict=True):
                if len(fields) == 1 or not self._fits(field, value):
                    return remedy_of(field, value)
        return "give a tuple with one value per field"

    def _fits(self, field: T.StructField, value: Any) -> bool:
        alone = TupleCodec(T.StructType([field]), self._what, is_key=self._is_key)
        try:
            alone.encode((value,))
        except StateValueError:
            return False
        return True

    def decode_many(self, stored: Sequence[bytes | None]) -> list[tuple[Any, ...] | None]:
        """Decode several tuples, with ``None`` in place of those that are missing."""
        found = [data for data in stored if data is not None]
        head = _ARRAY_HEAD + len(found).to_bytes(4, "big")
        try:  # one call for all takes a sixth of the time
            plain = self._many_decoder.decode(b"".join([head, *found]))
        except UNREADABLE:
            plain = None
        if plain is None or self._read is not None:
            return [None if data is None else self.decode(data) for data in stored]
        if len(found) == len(stored):
            return list(plain)
        values = iter(plain)
        return [None if data is None else next(values) for data in stored]

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode one tuple."""
        try:
            wire: tuple[Any, ...] = self._decoder.decode(data)
        except UNREADABLE as e:
            raise StateValueError(
                f"{self._what}: stored bytes do not fit the schema "
                f"{self._schema.simpleString()} ({e})"
            ) from e
        if self._read is None:
            return wire
        try:
            values: tuple[Any, ...] = self._read(wire)
        except (ValueError, OverflowError, OSError) as e:
            raise StateValueError(
                f"{self._what}: it has a value that Python does not have in this worker's time "
                f"zone ({e}): read it with getMany in an Arrow table, or give the workers the "
                "time zone of the session (TZ)"
            ) from e
        return values


def key_encoder() -> Callable[[Any], bytes]:
    """Return the encoder of stored keys; equal keys have equal bytes."""
    return msgspec.msgpack.Encoder().encode


_NO_TUPLES = (Mapping, Set, str, bytes, bytearray, memoryview, pd.DataFrame)
"""What Python would make a tuple of: of the keys, characters, bytes or names of columns."""


def _as_tuple(values: Any, names: list[str]) -> tuple[Any, ...]:
    """Return a tuple's values; a value that is not a sequence is that of the only field."""
    if type(values) is list:
        return tuple(values)
    if isinstance(values, tuple):
        check_places(values, names)
        return tuple(values)
    if values is None:
        raise TypeError("None is not a tuple")
    if isinstance(values, _NO_TUPLES) or not isinstance(values, Iterable) or _is_scalar(values):
        if len(names) == 1:
            return (values,)
        raise TypeError(f"{type(values).__name__} is not a tuple")
    return tuple(values)


def _is_scalar(values: Any) -> bool:
    """Return whether this is a value of NumPy without a dimension, which seems to be iterable."""
    return isinstance(values, np.generic | np.ndarray) and not values.ndim


def required_decoder(schema: T.StructType) -> msgspec.msgpack.Decoder[tuple[Any, ...]] | None:
    """Return a decoder that refuses nulls where the schema does, ``None`` if it never does."""
    declared = [
        msgspec_type(field.dataType, nullable=field.nullable, as_declared=True)
        for field in schema.fields
    ]
    if declared == [msgspec_type(field.dataType) for field in schema.fields]:
        return None
    return msgspec.msgpack.Decoder(tuple.__class_getitem__(tuple(declared)))


def _check_key(schema: T.StructType, what: str) -> None:
    if holds(schema, NO_KEYS):
        raise PlanError(
            f"{what}: {schema.simpleString()} has a variant, which cannot be (part of) a key; "
            "take the values that identify it out of the variant"
        )


def _wire_type(data_type: T.DataType, what: str) -> Any:
    try:
        return msgspec_type(data_type)
    except NotBuiltYetError as e:
        raise NotBuiltYetError(f"{what}: {e}") from None


Value = tuple[Any, ...]
"""One value of a state, as users see it."""

VERSION_MARK = 0xCC
"""First byte of an entry of a later schema; the second is the place of its schema."""

VERSION_BYTES = 2
MAX_VERSION = 255


class Codec(Protocol):
    """Encodes and decodes the tuples of a state."""

    @property
    def prefix(self) -> bytes:
        """What encoded tuples begin with."""

    @property
    def plain(self) -> Codec:
        """The codec of the same bytes that takes and returns plain values, without any loss."""

    def encode(self, values: Any) -> bytes:
        """Encode one tuple."""

    def encode_all(self, values: Any) -> list[bytes]:
        """Encode each tuple of a list."""

    def as_tuple(self, values: Any) -> tuple[Any, ...]:
        """Return the tuple that :meth:`encode` takes values for."""

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode one tuple."""

    def decode_many(self, stored: Sequence[bytes | None]) -> list[tuple[Any, ...] | None]:
        """Decode several tuples, with ``None`` in place of those that are missing."""


@dataclass(frozen=True, slots=True)
class EarlierSchema:
    """How entries of an earlier schema are read."""

    codec: Codec
    convert: Callable[[tuple[Any, ...]], tuple[Any, ...]]

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode an entry to a tuple of the newest schema."""
        return self.convert(self.codec.decode(data))


class VersionedCodec:
    """Writes the newest schema and reads every schema of a state's history.

    `earlier` has the earlier schemas, oldest first.
    """

    def __init__(self, newest: Codec, earlier: Sequence[EarlierSchema], what: str) -> None:
        self._newest = newest
        self._earlier = earlier
        self._readers = [*(schema.decode for schema in earlier), newest.decode]
        self.prefix = bytes([VERSION_MARK, len(earlier)]) if earlier else b""
        self._what = what

    @cached_property
    def plain(self) -> VersionedCodec:
        """The codec of the same bytes that takes and returns plain values, without any loss."""
        earlier = [EarlierSchema(one.codec.plain, one.convert) for one in self._earlier]
        return VersionedCodec(self._newest.plain, earlier, self._what)

    def encode(self, values: Any) -> bytes:
        """Encode one tuple in the newest schema."""
        return self.prefix + self._newest.encode(values)

    def encode_all(self, values: Any) -> list[bytes]:
        """Encode each tuple of a list in the newest schema."""
        return [self.prefix + data for data in self._newest.encode_all(values)]

    def as_tuple(self, values: Any) -> tuple[Any, ...]:
        """Return the tuple that :meth:`encode` takes values for."""
        return self._newest.as_tuple(values)

    def decode_many(self, stored: Sequence[bytes | None]) -> list[tuple[Any, ...] | None]:
        """Decode several tuples of any schemas."""
        return [None if data is None else self.decode(data) for data in stored]

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode one tuple of any schema."""
        if data[0] != VERSION_MARK:
            return self._readers[0](data)
        version = data[1]
        if version >= len(self._readers):
            raise CorruptFileError(
                f"{self._what}: a stored entry has schema {version}, the handle knows "
                f"{len(self._readers)}; restore from another checkpoint"
            )
        return self._readers[version](data[VERSION_BYTES:])


def version_of(data: bytes) -> int:
    """Return the place of an entry's schema in the state's history."""
    return data[1] if data[0] == VERSION_MARK else 0


_NESTED_IN_PYTHON: dict[type[T.DataType], str] = {T.ArrayType: "list", T.MapType: "dict"}


def remedy_of(field: T.StructField, value: Any) -> str:
    """Return what to give for a field in place of a value that does not fit it."""
    kind, given = field.dataType.simpleString(), type(value).__name__
    row = find_leaf(field.dataType)
    python = row.python if row else _NESTED_IN_PYTHON.get(type(field.dataType))
    if python in (None, given):  # what is in it does not fit, or it is out of range
        return f"give field {field.name!r} a value that fits {kind}"
    null = ", or None" if field.nullable else ""
    return f"field {field.name!r} is {kind}, {shown(value)} is {given}: give {python}{null}"
