"""Columns in Arrow of what users give: Python values of rows, and columns that they yield."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.values.arrow import (
    arrow_array,
    arrow_type,
    in_type,
    plain_values,
)
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.plain import PlainForm, fields_writer
from pyspark_ckpt.values.words import shown

_encode = msgspec.msgpack.Encoder().encode


def check_keys(keys: list[Any]) -> None:
    """Refuse plain keys of a map of which two are equal: Spark has no such map."""
    if len(keys) > 1:
        encoded = [_encode(_canonical(key)) for key in keys]
        if len(set(encoded)) < len(keys):
            found = next(key for key, one in zip(keys, encoded, strict=True)
                         if encoded.count(one) > 1)  # fmt: skip
            raise ValueError(f"a map has the key {shown(found)} twice: give each key once")


def _canonical(key: Any) -> Any:
    return key + 0.0 if isinstance(key, float) else key


def values_column(data_type: T.DataType, values: Sequence[Any]) -> pa.Array:
    """Return Python values that a user gives for a Spark type as an Arrow column."""
    schema = T.StructType([T.StructField("c0", data_type)])
    write = fields_writer(PlainForm(pack_map=_checked_entries), schema)
    plain = values if write is None else [write((value,))[0] for value in values]
    return arrow_array(data_type, plain)


def yielded_column(data_type: T.DataType, column: pa.ChunkedArray) -> pa.Array:
    """Return a column in Arrow that a processor yields, in the type of the output."""
    array = whole(cast(column, arrow_type(data_type)))
    if pa.types.is_nested(array.type):
        array.validate(full=True)  # texts in it may be no UTF-8
    if holds(data_type, T.MapType):
        plain_values(data_type, array, _checked_entries)
    return array


def _checked_entries(entries: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    made = list(entries)
    check_keys([key for key, _ in made])
    return made


def cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Return a column in another type of its kind; another kind, or no room, is an Arrow error."""
    if column.type == wanted:
        return column
    if pa.types.is_date(wanted) and pa.types.is_timestamp(column.type):
        return _dates(column)
    if not _is_of_kind(column.type, wanted):
        in_ms = pa.types.is_integer(column.type) and pa.types.is_timestamp(wanted)
        unit = f", cast it first, milliseconds to timestamp[ms, tz={wanted.tz}]" if in_ms else ""
        raise pa.ArrowInvalid(f"{column.type} is not {wanted}{unit}")
    if pa.types.is_dictionary(column.type):
        column = pc.dictionary_decode(column)
    return in_type(column, wanted)


def _dates(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times at midnight as dates; Arrow's cast drops the time of day."""
    dates = column.cast(pa.date32())
    if not dates.cast(column.type).equals(column):
        raise pa.ArrowInvalid("a time of day would be lost: cast it to date32 before")
    return dates


def _is_of_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of a type mean the same in another, where they fit, as in a Row.

    Arrow casts more: to it a number is also a time, in the unit of the time's type, and a boolean.
    """
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_null(given):
        return True
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None)
    if pa.types.is_list(wanted):
        return _is_any(given, _LISTS) and _is_of_kind(given.value_type, wanted.value_type)
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(given)
            and _is_of_kind(given.key_type, wanted.key_type)
            and _is_of_kind(given.item_type, wanted.item_type)
        )
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(given) and _fields_are_of_kind(given, wanted)
    return any(is_it(wanted) and _is_any(given, of_kind) for is_it, of_kind in _KINDS)


_IsType = Callable[[pa.DataType], bool]
_INTEGER: _IsType = pa.types.is_integer
_TEXT: tuple[_IsType, ...] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)
_BYTES: tuple[_IsType, ...] = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_KINDS: tuple[tuple[_IsType, tuple[_IsType, ...]], ...] = (
    (pa.types.is_boolean, (pa.types.is_boolean,)),
    (_INTEGER, (_INTEGER,)),
    (pa.types.is_floating, (pa.types.is_floating, _INTEGER)),
    (pa.types.is_decimal, (pa.types.is_decimal, _INTEGER)),
    (pa.types.is_string, _TEXT),
    (pa.types.is_binary, _BYTES),
    (pa.types.is_date, (pa.types.is_date,)),
    (pa.types.is_time, (pa.types.is_time,)),
    (pa.types.is_duration, (pa.types.is_duration,)),
)
_LISTS: tuple[_IsType, ...] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
)


def _is_any(given: pa.DataType, kinds: Sequence[_IsType]) -> bool:
    return any(is_it(given) for is_it in kinds)


def _fields_are_of_kind(given: pa.StructType, wanted: pa.StructType) -> bool:
    """Compare fields by name, and those of one name in their order, as Arrow casts them."""
    left = list(given)
    missing = False
    for field in wanted:
        for place, one in enumerate(left):
            if one.name == field.name:
                if not _is_of_kind(left.pop(place).type, field.type):
                    return False
                break
        else:
            missing = True
    # The cast says whether a field may be missing; if another one is unknown, it is misspelt.
    return not (missing and left)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks > 1:
            raise pa.ArrowInvalid("the column has over 2 GB: yield it in several tables")
        return array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array
