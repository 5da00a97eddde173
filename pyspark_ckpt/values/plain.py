"""Compiles converters between what users give, plain values, and what users see, per schema.

A plain value is what is stored: structs are tuples, maps are dicts, times are Spark's integers. A
style describes the Python objects that a user sees, among them rows that are faster than PySpark's.
A converter never gets ``None``, because nulls need no conversion.
"""

from __future__ import annotations

import datetime
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.types import INSTANTS, Kind, LeafType, find_leaf, leaf_of
from pyspark_ckpt.values.user import Converter, local_timestamp

_encode = msgspec.msgpack.Encoder().encode


def row_type_of(names: list[str]) -> type[Row]:
    """Return a Row class whose rows are created and read without PySpark's overhead per row.

    If a field has the name of a method of Row, read it as in PySpark: ``row["count"]``.
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


_EXACT_MICROSECONDS = 2**32 * 1_000_000
"""In the years 1834 to 2106, seconds as a float are exact to the microsecond."""


@dataclass(frozen=True, slots=True)
class ValueStyle:
    """Functions that make the Python objects that users see: of structs, maps and timestamps."""

    struct: Callable[[list[str]], Converter]
    map: Callable[[Iterable[tuple[Any, Any]]], Any]
    timestamp: Converter


def _row_of(names: list[str]) -> Converter:
    row_type, make = row_type_of(names), tuple.__new__
    return lambda values: make(row_type, values)


def _dict_of(names: list[str]) -> Converter:
    return lambda values: dict(zip(names, values, strict=False))


def dict_of_times(entries: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a map by local times, of which two of a repeated hour are one to Python."""
    pairs = list(entries)
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a map has two keys in an hour that the local time repeats")
    return made


STATE_STYLE = ValueStyle(_row_of, dict, local_timestamp)
"""The objects of PySpark's state: Row, dict and naive local timestamps."""


def row_style(zone: datetime.tzinfo) -> ValueStyle:
    """Return the style of PySpark's rows: dicts, lists of map entries, timestamps in `zone`."""
    return ValueStyle(_dict_of, list, lambda micros: aware_timestamp(zone, micros))


def aware_timestamp(zone: datetime.tzinfo, microseconds: int) -> datetime.datetime:
    """Return an instant as a datetime in `zone`."""
    if -_EXACT_MICROSECONDS < microseconds < _EXACT_MICROSECONDS:  # takes less than half the time
        return datetime.datetime.fromtimestamp(microseconds / 1_000_000, zone)
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.datetime.fromtimestamp(seconds, zone).replace(microsecond=rest)


def aware_timestamps(zone: datetime.tzinfo, microseconds: Sequence[Any]) -> list[Any]:
    """Return :func:`aware_timestamp` of a column's values; nulls stay nulls."""
    if None in microseconds or max(map(abs, microseconds), default=0) >= _EXACT_MICROSECONDS:
        return [None if value is None else aware_timestamp(zone, value) for value in microseconds]
    # Without a Python call per value, this takes two thirds of the time.
    seconds = [value / 1_000_000 for value in microseconds]
    return list(map(datetime.datetime.fromtimestamp, seconds, repeat(zone)))


def msgspec_type(data_type: T.DataType, *, nullable: bool = True, as_declared: bool = False) -> Any:
    """Return the msgspec type that checks a Spark type's plain values.

    With `as_declared`, nulls are refused where the schema says ``not null``. Only what is written
    is checked so, because what was stored before this check may have such nulls.
    """
    kind = _value_type(data_type, as_declared=as_declared)
    return kind | None if nullable or not as_declared else kind


def _value_type(data_type: T.DataType, *, as_declared: bool) -> Any:
    inner = partial(msgspec_type, as_declared=as_declared)
    if isinstance(data_type, T.ArrayType):
        return list.__class_getitem__(inner(data_type.elementType, nullable=data_type.containsNull))
    if isinstance(data_type, T.StructType):
        fields = [inner(field.dataType, nullable=field.nullable) for field in data_type]
        return tuple.__class_getitem__(tuple(fields))
    if isinstance(data_type, T.MapType):
        key = _value_type(data_type.keyType, as_declared=as_declared)
        value = inner(data_type.valueType, nullable=data_type.valueContainsNull)
        return dict.__class_getitem__((key, value))
    return leaf_of(data_type).wire


@dataclass(frozen=True, slots=True)
class PlainForm:
    """How plain values are made: what becomes of the entries of a map.

    With `shows_times`, an instant has to have a time in this process's zone, in which state shows
    it.
    """

    pack_map: Callable[[Iterable[tuple[Any, Any]]], Any] = dict
    shows_times: bool = False

    def leaf_writer(self, row: LeafType, data_type: T.DataType) -> Converter:
        """Return a function from what a user gives for a leaf to its plain value."""
        if self.shows_times and row.write_shown is not None:
            return row.write_shown
        return row.take if row.write is None else row.write(data_type)


PLAIN = PlainForm()
"""Structs are tuples, maps are dicts, times are Spark's integers, decimals are decimals."""

STATE_FORM = PlainForm(shows_times=True)
"""The form of values that are read again in the state's style."""


@dataclass(frozen=True, slots=True)
class Writer:
    """How a form writes the values of a type.

    `convert` raises an error if the type does not take the value. Values of the types in
    `as_they_are` need no conversion.
    """

    convert: Converter
    as_they_are: frozenset[type]

    def __call__(self, value: Any) -> Any:
        """Return the plain value of a user's value; null is null."""
        if value is None or type(value) in self.as_they_are:
            return value
        return self.convert(value)


def writer_of(form: PlainForm, data_type: T.DataType, *, is_checked: bool = False) -> Writer | None:
    """Return how users' values become plain values, ``None`` if they are the same.

    With `is_checked`, the caller makes sure that what is read is what was written. Then leaves
    whose plain values are equal to the users' values are not looked at one by one.
    """
    if isinstance(data_type, T.ArrayType):
        return _array_writer(writer_of(form, data_type.elementType, is_checked=is_checked))
    if isinstance(data_type, T.StructType):
        return Writer(_struct_writer(form, data_type, is_checked=is_checked), _NONE)
    if isinstance(data_type, T.MapType):
        return Writer(_map_writer(form, data_type, is_checked=is_checked), _NONE)
    row = leaf_of(data_type)
    if is_checked and row.as_they_are:
        return None
    return Writer(form.leaf_writer(row, data_type), row.as_they_are)


_NONE: frozenset[type] = frozenset()


def reader_of(data_type: T.DataType, style: ValueStyle) -> Converter | None:
    """Return a function from plain values to users' values, ``None`` if they are the same."""
    if isinstance(data_type, T.ArrayType):
        return items_converter(reader_of(data_type.elementType, style))
    if isinstance(data_type, T.StructType):
        return _struct_reader(data_type, style)
    if isinstance(data_type, T.MapType):
        return _map_reader(data_type, style)
    row = leaf_of(data_type)
    if row.kind is Kind.INSTANT:
        return style.timestamp
    return None if row.read is None else row.read(data_type)


def fields_writer(
    form: PlainForm, schema: T.StructType, *, is_checked: bool = False
) -> Converter | None:
    """Return :func:`writer_of` for a sequence of a schema's values; it checks their number."""
    writers = [writer_of(form, field.dataType, is_checked=is_checked) for field in schema.fields]
    return _written(writers) if any(writers) else None


def _written(writers: Sequence[Writer | None]) -> Converter:
    width = len(writers)
    active = [
        (index, writer.as_they_are, writer.convert)
        for index, writer in enumerate(writers)
        if writer is not None
    ]

    def write_fields(values: Sequence[Any]) -> tuple[Any, ...]:
        written = list(values)
        if len(written) != width:
            raise ValueError(f"{len(written)} values for {width} fields")
        for index, as_they_are, convert in active:
            value = written[index]
            if value is not None and type(value) not in as_they_are:
                written[index] = convert(value)
        return tuple(written)

    return write_fields


def fields_reader(schema: T.StructType, style: ValueStyle) -> Converter | None:
    """Return a function from a sequence of a schema's plain values to users' values."""
    converters = [reader_of(field.dataType, style) for field in schema.fields]
    return fields_converter(converters) if any(converters) else None


def fields_converter(converters: Sequence[Converter | None]) -> Converter:
    """Return a function that applies one converter to each value of a sequence, except to nulls."""
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


def _array_writer(item: Writer | None) -> Writer | None:
    if item is None:
        return None
    as_they_are = item.as_they_are | {type(None)}

    def write(values: Any) -> Any:
        if not _is_list(values):
            raise TypeError(f"{type(values).__name__} is not a list: give a list")
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            values = values.tolist()
        if as_they_are.issuperset(map(type, values)):
            return list(values)
        return list(map(item, values))

    return Writer(write, _NONE)


def _is_list(values: Any) -> bool:
    """Return whether values are those of an array; the fields of a Row are those of a struct."""
    if isinstance(values, tuple):
        return not isinstance(values, Row) and not hasattr(values, "_fields")
    return isinstance(values, list) or _is_array(values)


def _is_array(values: Any) -> bool:
    """Return whether values are a NumPy array, as frames show arrays."""
    return isinstance(values, np.ndarray) and values.ndim > 0


def items_converter(convert: Converter | None) -> Converter | None:
    """Return a function that converts the items of an array, except nulls; ``None`` without one."""
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct_writer(form: PlainForm, data_type: T.StructType, *, is_checked: bool) -> Converter:
    names, width = data_type.names, len(data_type.fields)
    convert = fields_writer(form, data_type, is_checked=is_checked)

    def write(value: Any) -> Any:
        values = value
        if isinstance(value, dict):
            check_names(value, names)
            values = [value.get(name) for name in names]
        elif not isinstance(value, list | tuple):
            raise TypeError(f"{type(value).__name__} is not a struct: give a Row, tuple or dict")
        elif type(value) not in _WITHOUT_NAMES:
            check_places(value, names)
        if len(values) != width:
            raise ValueError(f"{len(values)} values for the {width} fields {names}")
        return tuple(values if convert is None else convert(values))

    return write


_WITHOUT_NAMES = (tuple, list)


def check_names(given: Collection[str], names: Sequence[str]) -> None:
    """Refuse the names of values if one is unknown and another one is missing.

    That is a misspelt name. Only one of the two is allowed, as in PySpark: what is missing is
    null, what is unknown is left out.
    """
    unknown = [name for name in given if name not in names]
    missing = [name for name in names if name not in given] if unknown else []
    if missing:
        raise ValueError(f"there is no field {unknown[0]!r}, and {missing[0]!r} is missing")


def check_places(values: Sequence[Any], names: list[str]) -> None:
    """Refuse a Row or a named tuple that has a field at the place of another one.

    State takes values by place, as in PySpark, whatever the Row calls them. But if the schema has
    the name elsewhere, values would be swapped.
    """
    given = getattr(values, "__fields__" if isinstance(values, Row) else "_fields", names)
    if given == names:
        return
    for name, wanted in zip(given, names, strict=False):
        if name != wanted and name in names:
            raise ValueError(
                f"it has {name!r} at the place of {wanted!r}, and values are taken by place"
            )


def _struct_reader(data_type: T.StructType, style: ValueStyle) -> Converter:
    make, convert = style.struct(data_type.names), fields_reader(data_type, style)
    return make if convert is None else lambda values: make(convert(values))


def _map_writer(form: PlainForm, data_type: T.MapType, *, is_checked: bool) -> Converter:
    kinds = [data_type.keyType, data_type.valueType]
    convert = _written([writer_of(form, kind, is_checked=is_checked) for kind in kinds])

    def write(value: Any) -> Any:
        if not isinstance(value, dict | list):
            raise TypeError(
                f"{type(value).__name__} is not a map: give a dict or a list of entries"
            )
        entries = value.items() if isinstance(value, dict) else map(_entry, value)
        packed = form.pack_map([convert(entry) for entry in entries])
        if len(packed) < len(value):
            raise ValueError(f"two keys are one key in {data_type.simpleString()}")
        return packed

    return write


def _entry(entry: Any) -> Any:
    if not isinstance(entry, list | tuple):
        raise TypeError(f"{type(entry).__name__} is not an entry of a map: give a key and a value")
    return entry


def _map_reader(data_type: T.MapType, style: ValueStyle) -> Converter:
    converters = [reader_of(kind, style) for kind in (data_type.keyType, data_type.valueType)]
    make = style.map
    if make is dict and holds(data_type.keyType, INSTANTS):
        make = dict_of_times
    if not any(converters):
        return lambda entries: make(entries.items())
    convert = fields_converter(converters)
    return lambda entries: make([convert(entry) for entry in entries.items()])


def canonical_of(data_type: T.DataType) -> Converter | None:
    """Return a function that makes equal plain values of a type encode alike.

    -0.0 becomes 0.0, all NaNs become the same NaN, and entries of maps are sorted by their bytes.
    ``None`` if equal values encode alike without it.
    """
    if isinstance(data_type, T.ArrayType):
        return items_converter(canonical_of(data_type.elementType))
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


def _canonical_map(key: Converter | None, value: Converter | None) -> Converter:
    convert = fields_converter([key, value])

    def canonical(entries: dict[Any, Any]) -> dict[Any, Any]:
        return dict(sorted(map(convert, entries.items()), key=_encode))

    return canonical
