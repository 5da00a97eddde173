"""How Spark values become the plain values of an encoding, and back; compiled once per schema.

A form knows the encoding's leaves and what it makes of structs and maps. A style knows which Python
objects a user sees. Converters never get ``None``: nulls need no conversion in any form.

Row classes for input rows: PySpark's Row, made and read faster.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError


def row_type_of(names: list[str]) -> type[Row]:
    """Return a Row class whose rows are made, and read by name, without PySpark's overhead per row.

    A field that shares its name with a method of Row is reached as in PySpark: by ``row["count"]``.
    """
    # A namedtuple's fields are read in C; itemgetter would go through Row's own __getitem__.
    places = [f"f{index}" for index in range(len(names))]
    readers = namedtuple("readers", places)  # type: ignore[misc]  # mypy wants a literal
    by_name = {
        name: getattr(readers, place)
        for name, place in reversed(list(zip(names, places, strict=True)))
        if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**by_name, "__fields__": names, "__slots__": ()})


Converter = Callable[[Any], Any]

_EXACT_MICROSECONDS = 2**32 * 1_000_000
"""Up to here, in the years 1834 to 2106, seconds as a float tell microseconds apart."""


class WireForm(ABC):
    """What an encoding makes of each Spark type."""

    @abstractmethod
    def leaf_type(self, data_type: T.DataType) -> Any:
        """Return the msgspec type of a leaf, ``KeyError`` if Spark's type has none here."""

    @abstractmethod
    def leaf_writer(self, data_type: T.DataType) -> Converter | None:
        """Return what turns a leaf into its plain value; ``None``: it is one already."""

    @abstractmethod
    def leaf_reader(self, data_type: T.DataType) -> Converter | None:
        """Return what turns a plain value back; ``None``: it is what users see."""

    @abstractmethod
    def struct_type(self, field_types: Sequence[Any]) -> Any:
        """Return the msgspec type of a struct."""

    @abstractmethod
    def map_type(self, key_type: Any, value_type: Any) -> Any:
        """Return the msgspec type of a map."""

    @abstractmethod
    def pack_struct(self, width: int) -> Converter:
        """Return what makes a struct's plain value of its fields' plain values."""

    @abstractmethod
    def unpack_struct(self, width: int) -> Converter:
        """Return what gives the plain values of a struct's fields."""

    @abstractmethod
    def pack_map(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        """Return the plain value of a map."""

    @abstractmethod
    def unpack_map(self, wire: Any) -> Iterable[tuple[Any, Any]]:
        """Return the entries of a map's plain value."""


@dataclass(frozen=True, slots=True)
class ValueStyle:
    """The Python objects that users see: of a struct's names, a map's entries, microseconds."""

    struct: Callable[[list[str]], Converter]
    map: Callable[[Iterable[tuple[Any, Any]]], Any]
    timestamp: Converter


def _row_of(names: list[str]) -> Converter:
    row_type, make = row_type_of(names), tuple.__new__
    return lambda values: make(row_type, values)


def _dict_of(names: list[str]) -> Converter:
    return lambda values: dict(zip(names, values, strict=False))


STATE_STYLE = ValueStyle(_row_of, dict, T.TimestampType().fromInternal)
"""What PySpark's state gives back: Row, dict and naive local timestamps."""


def row_style(zone: datetime.tzinfo) -> ValueStyle:
    """Return what PySpark's rows hold: dicts, lists of map entries, timestamps in `zone`."""
    return ValueStyle(_dict_of, list, lambda micros: aware_timestamp(zone, micros))


def aware_timestamp(zone: datetime.tzinfo, microseconds: int) -> datetime.datetime:
    """Return the instant, shown in `zone`."""
    if -_EXACT_MICROSECONDS < microseconds < _EXACT_MICROSECONDS:  # in less than half the time
        return datetime.datetime.fromtimestamp(microseconds / 1_000_000, zone)
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.datetime.fromtimestamp(seconds, zone).replace(microsecond=rest)


def aware_timestamps(zone: datetime.tzinfo, microseconds: Sequence[Any]) -> list[Any]:
    """Return :func:`aware_timestamp` of a column's values; nulls stay nulls."""
    if None in microseconds or max(map(abs, microseconds), default=0) >= _EXACT_MICROSECONDS:
        return [None if value is None else aware_timestamp(zone, value) for value in microseconds]
    # In two thirds of the time: no call of Python's for each.
    seconds = [value / 1_000_000 for value in microseconds]
    return list(map(datetime.datetime.fromtimestamp, seconds, repeat(zone)))


def wire_type(form: WireForm, data_type: T.DataType) -> Any:
    """Return the msgspec type that checks a Spark type's plain values; nulls are allowed.

    Raises
    ------
    NotBuiltYetError
        If the type, or one inside it, is not built yet.
    """
    return _value_type(form, data_type) | None


def _value_type(form: WireForm, data_type: T.DataType) -> Any:
    if isinstance(data_type, T.ArrayType):
        return list.__class_getitem__(wire_type(form, data_type.elementType))
    if isinstance(data_type, T.StructType):
        return form.struct_type([wire_type(form, field.dataType) for field in data_type.fields])
    if isinstance(data_type, T.MapType):
        key_type = _value_type(form, data_type.keyType)
        return form.map_type(key_type, wire_type(form, data_type.valueType))
    try:
        return form.leaf_type(data_type)
    except KeyError:
        raise NotBuiltYetError(
            f"values of type {data_type.simpleString()} are not built yet"
        ) from None


def writer_of(form: WireForm, data_type: T.DataType) -> Converter | None:
    """Return what turns users' values of a type into plain values, ``None`` if they are plain."""
    if isinstance(data_type, T.ArrayType):
        return _array_writer(writer_of(form, data_type.elementType))
    if isinstance(data_type, T.StructType):
        return _struct_writer(form, data_type)
    if isinstance(data_type, T.MapType):
        return _map_writer(form, data_type)
    return form.leaf_writer(data_type)


def reader_of(form: WireForm, data_type: T.DataType, style: ValueStyle) -> Converter | None:
    """Return what turns plain values into what users see, ``None`` if they are the same."""
    if isinstance(data_type, T.ArrayType):
        return _array_reader(reader_of(form, data_type.elementType, style))
    if isinstance(data_type, T.StructType):
        return _struct_reader(form, data_type, style)
    if isinstance(data_type, T.MapType):
        return _map_reader(form, data_type, style)
    if isinstance(data_type, T.TimestampType):
        return style.timestamp
    return form.leaf_reader(data_type)


def fields_writer(form: WireForm, schema: T.StructType) -> Converter | None:
    """Return what turns a sequence of a schema's values into plain ones; checks their number."""
    converters = [writer_of(form, field.dataType) for field in schema.fields]
    return fields_converter(converters) if any(converters) else None


def fields_reader(form: WireForm, schema: T.StructType, style: ValueStyle) -> Converter | None:
    """Return what turns a sequence of a schema's plain values back."""
    converters = [reader_of(form, field.dataType, style) for field in schema.fields]
    return fields_converter(converters) if any(converters) else None


def fields_converter(converters: Sequence[Converter | None]) -> Converter:
    """Return what applies a converter to each of a sequence's values, nulls left alone."""
    width = len(converters)
    active = [(index, convert) for index, convert in enumerate(converters) if convert is not None]

    def convert_fields(values: Sequence[Any]) -> tuple[Any, ...]:
        converted = list(values)
        if len(converted) != width:
            raise ValueError(f"{len(converted)} values for {width} fields")
        for index, convert in active:
            value = converted[index]
            if value is not None:
                converted[index] = convert(value)
        return tuple(converted)

    return convert_fields


def _array_writer(convert: Converter | None) -> Converter | None:
    if convert is None:
        return None

    def write(values: Any) -> Any:
        if not isinstance(values, list | tuple):
            raise TypeError(f"{type(values).__name__} is no list")
        return [None if value is None else convert(value) for value in values]

    return write


def _array_reader(convert: Converter | None) -> Converter | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct_writer(form: WireForm, data_type: T.StructType) -> Converter:
    names, width = data_type.names, len(data_type.fields)
    convert, pack = fields_writer(form, data_type), form.pack_struct(width)

    def write(value: Any) -> Any:
        values = [value.get(name) for name in names] if isinstance(value, dict) else value
        if not isinstance(values, list | tuple):
            raise TypeError(f"{type(value).__name__} is no struct: give a Row, tuple or dict")
        if len(values) != width:
            raise ValueError(f"{len(values)} values for the {width} fields {names}")
        return pack(values if convert is None else convert(values))

    return write


def _struct_reader(form: WireForm, data_type: T.StructType, style: ValueStyle) -> Converter:
    unpack, make = form.unpack_struct(len(data_type.fields)), style.struct(data_type.names)
    convert = fields_reader(form, data_type, style)
    if convert is None:
        return lambda wire: make(unpack(wire))
    return lambda wire: make(convert(unpack(wire)))


def _map_writer(form: WireForm, data_type: T.MapType) -> Converter:
    convert = fields_converter(
        [writer_of(form, data_type.keyType), writer_of(form, data_type.valueType)]
    )

    def write(value: Any) -> Any:
        entries = value.items() if isinstance(value, dict) else value
        if not isinstance(value, dict | list):
            raise TypeError(f"{type(value).__name__} is no map: give a dict or a list of entries")
        return form.pack_map([convert(entry) for entry in entries])

    return write


def _map_reader(form: WireForm, data_type: T.MapType, style: ValueStyle) -> Converter:
    converters = [reader_of(form, kind, style) for kind in (data_type.keyType, data_type.valueType)]
    unpack, make = form.unpack_map, style.map
    if not any(converters):
        return lambda wire: make(unpack(wire))
    convert = fields_converter(converters)
    return lambda wire: make([convert(entry) for entry in unpack(wire)])
