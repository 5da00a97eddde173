"""The form of values in MessagePack: all that is stored, and the keys of nested types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.operator.leaf_values import (
    PLAIN_TYPES,
    TIME_OF_DAY,
    bounded,
    decimal_writer,
    narrowed,
    variant_parts,
)
from pyspark_ckpt.operator.wire_form import Converter, WireForm, fields_converter

_LEAF_TYPES: dict[type[T.DataType], Any] = {
    **PLAIN_TYPES,
    T.FloatType: float,
    T.DoubleType: float,
    T.DateType: bounded(32),
    T.TimestampNTZType: bounded(64),
    **dict.fromkeys(TIME_OF_DAY, bounded(64)),
    T.DayTimeIntervalType: bounded(64),
    T.VariantType: tuple[bytes, bytes],
}
_AS_SPARK: tuple[type[T.DataType], ...] = (
    T.DateType, T.TimestampType, T.TimestampNTZType, *TIME_OF_DAY, T.DayTimeIntervalType,
)  # fmt: skip
_NAN = float("nan")
_encode = msgspec.msgpack.Encoder().encode


class MessagePackForm(WireForm):
    """Structs are arrays, maps are maps, times are Spark's integers, decimals are text."""

    def leaf_type(self, data_type: T.DataType) -> Any:
        """Return the msgspec type of a leaf."""
        return _LEAF_TYPES[type(data_type)]

    def leaf_writer(self, data_type: T.DataType) -> Converter | None:
        """Return what turns a leaf into its plain value."""
        if isinstance(data_type, T.DecimalType):
            return decimal_writer(data_type)
        if isinstance(data_type, T.FloatType):
            return narrowed
        if isinstance(data_type, T.VariantType):
            return variant_parts
        return data_type.toInternal if isinstance(data_type, _AS_SPARK) else None

    def leaf_reader(self, data_type: T.DataType) -> Converter | None:
        """Return what turns a plain value back."""
        if isinstance(data_type, T.VariantType):
            return lambda parts: T.VariantVal(*parts)
        return data_type.fromInternal if isinstance(data_type, _AS_SPARK) else None

    def struct_type(self, field_types: Sequence[Any]) -> Any:
        """Return the msgspec type of a struct."""
        return tuple.__class_getitem__(tuple(field_types))

    def map_type(self, key_type: Any, value_type: Any) -> Any:
        """Return the msgspec type of a map."""
        return dict.__class_getitem__((key_type, value_type))

    def pack_struct(self, width: int) -> Converter:  # noqa: ARG002
        """Return what makes a struct of its fields."""
        return tuple

    def unpack_struct(self, width: int) -> Converter:  # noqa: ARG002
        """Return what gives the fields of a struct."""
        return _as_is

    def pack_map(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        """Return the plain value of a map."""
        return dict(entries)

    def unpack_map(self, wire: Any) -> Iterable[tuple[Any, Any]]:
        """Return the entries of a map's plain value."""
        entries: Iterable[tuple[Any, Any]] = wire.items()
        return entries


MESSAGE_PACK = MessagePackForm()


def canonical_of(data_type: T.DataType) -> Converter | None:
    """Return what makes equal plain values of a type encode alike; ``None``: they do already.

    -0.0 becomes 0.0, all NaNs become one, and entries of maps are sorted by their bytes.
    """
    if isinstance(data_type, T.FloatType | T.DoubleType):
        return _canonical_float
    if isinstance(data_type, T.ArrayType):
        return _canonical_array(canonical_of(data_type.elementType))
    if isinstance(data_type, T.StructType):
        return canonical_fields(data_type)
    if isinstance(data_type, T.MapType):
        return _canonical_map(canonical_of(data_type.keyType), canonical_of(data_type.valueType))
    return None


def canonical_fields(schema: T.StructType) -> Converter | None:
    """Return :func:`canonical_of` for a sequence of a schema's plain values."""
    converters = [canonical_of(field.dataType) for field in schema.fields]
    return fields_converter(converters) if any(converters) else None


def _canonical_float(value: float) -> float:
    return _NAN if math.isnan(value) else value + 0.0


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
