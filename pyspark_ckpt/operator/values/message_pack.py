"""The form of values in MessagePack: all stored values, and keys of nested types.

Also finds where a MessagePack value ends, because msgspec does not say it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.wire_form import WireForm, fields_converter
from pyspark_ckpt.values.types import find_leaf, leaf_of
from pyspark_ckpt.values.user import Converter

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)
"""What msgspec raises for bytes that are not a value of the type; the second for bad texts."""

_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Number of bytes after the first byte, by the first byte."""

_SIZED = {
    0xC4: (">B", 0), 0xC5: (">H", 0), 0xC6: (">I", 0),
    0xC7: (">B", 1), 0xC8: (">H", 1), 0xC9: (">I", 1),
    0xD9: (">B", 0), 0xDA: (">H", 0), 0xDB: (">I", 0),
}  # fmt: skip
"""Format of the length that follows, and bytes that the length does not count."""

_COUNTED = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}
"""Format of the number of items that follows, and values per item."""


def end_of_value(data: bytes, start: int) -> int:
    """Return where the MessagePack value that begins at `start` ends."""
    position, open_values = start, 1
    while open_values:
        open_values -= 1
        try:
            position, items = _past_head(data, position)
        except (LookupError, struct.error) as exc:
            raise ValueError(f"no whole MessagePack value at {start}") from exc
        open_values += items
    if position > len(data):
        raise ValueError(f"no whole MessagePack value at {start}")
    return position


def _past_head(data: bytes, position: int) -> tuple[int, int]:
    """Return the position after a value's head and own bytes, and the number of values in it."""
    first = data[position]
    position += 1
    if first <= 0x7F or first >= 0xE0:
        return position, 0
    if first <= 0x8F:
        return position, 2 * (first & 0x0F)
    if first <= 0x9F:
        return position, first & 0x0F
    if first <= 0xBF:
        return position + (first & 0x1F), 0
    if first in _FIXED:
        return position + _FIXED[first], 0
    if first in _SIZED:
        form, more = _SIZED[first]
        length = struct.unpack_from(form, data, position)[0]
        return position + struct.calcsize(form) + more + length, 0
    form, values = _COUNTED[first]
    count = struct.unpack_from(form, data, position)[0]
    return position + struct.calcsize(form), values * count


_encode = msgspec.msgpack.Encoder().encode


class MessagePackForm(WireForm):
    """Structs are arrays, maps are maps, times are Spark's integers, decimals are text."""

    def leaf_type(self, data_type: T.DataType) -> Any:
        """Return the msgspec type of a leaf."""
        return leaf_of(data_type).wire

    def leaf_writer(self, data_type: T.DataType) -> Converter:
        """Return a function from what a user gives for a leaf to its plain value."""
        row = leaf_of(data_type)
        return row.take if row.write is None else row.write(data_type)

    def kinds_as_they_are(self, data_type: T.DataType) -> frozenset[type]:
        """Return the Python types of which a value is its own plain value."""
        return leaf_of(data_type).as_they_are

    def leaf_reader(self, data_type: T.DataType) -> Converter | None:
        """Return a function from a plain value to the leaf, ``None`` if they are the same."""
        read = leaf_of(data_type).read
        return None if read is None else read(data_type)

    def struct_type(self, field_types: Sequence[Any]) -> Any:
        """Return the msgspec type of a struct."""
        return tuple.__class_getitem__(tuple(field_types))

    def map_type(self, key_type: Any, value_type: Any) -> Any:
        """Return the msgspec type of a map."""
        return dict.__class_getitem__((key_type, value_type))

    def pack_struct(self, width: int) -> Converter:  # noqa: ARG002
        """Return a function from fields to a struct."""
        return tuple

    def unpack_struct(self, width: int) -> Converter:  # noqa: ARG002
        """Return a function from a struct to its fields."""
        return _as_is

    def pack_map(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        """Return the plain value of a map."""
        return dict(entries)

    def unpack_map(self, wire: Any) -> Iterable[tuple[Any, Any]]:
        """Return the entries of a map's plain value."""
        entries: Iterable[tuple[Any, Any]] = wire.items()
        return entries


class StateForm(MessagePackForm):
    """The form of values that are read again in the state's style: an instant has a local time."""

    def leaf_writer(self, data_type: T.DataType) -> Converter:
        """Return a function from what a user gives for a leaf to its plain value."""
        return leaf_of(data_type).write_shown or super().leaf_writer(data_type)


MESSAGE_PACK = MessagePackForm()
STATE_FORM = StateForm()


def canonical_of(data_type: T.DataType) -> Converter | None:
    """Return a function that makes equal plain values of a type encode alike.

    -0.0 becomes 0.0, all NaNs become the same NaN, and entries of maps are sorted by their bytes.
    ``None`` if equal values encode alike without it.
    """
    if isinstance(data_type, T.ArrayType):
        return _canonical_array(canonical_of(data_type.elementType))
    if isinstance(data_type, T.StructType):
        return canonical_fields(data_type)
    if isinstance(data_type, T.MapType):
        return _canonical_map(canonical_of(data_type.keyType), canonical_of(data_type.valueType))
    row = find_leaf(data_type)
    return None if row is None or row.canonical is None else row.canonical.value


def canonical_fields(schema: T.StructType) -> Converter | None:
    """Return :func:`canonical_of` for a sequence of a schema's plain values."""
    converters = [canonical_of(field.dataType) for field in schema.fields]
    return fields_converter(converters) if any(converters) else None


def _canonical_array(convert: Converter | None) -> Converter | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _canonical_map(key: Converter | None, value: Converter | None) -> Converter:
    convert = fields_converter([key, value])

    def canonical(entries: dict[Any, Any]) -> dict[Any, Any]:
        return dict(sorted(map(convert, entries.items()), key=_encode))

    return canonical


def _as_is(wire: Any) -> Any:
    return wire
