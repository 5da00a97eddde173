"""Columns of users in Arrow: from the form in which rows travel, and back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.arrow_values import arrow_array, arrow_type, in_type, plain_values
from pyspark_ckpt.operator.values.message_pack import MessagePackForm
from pyspark_ckpt.operator.values.sent_columns import values_of, with_nulls
from pyspark_ckpt.operator.values.transport import (
    Transport,
    all_received,
    travels_as_json,
)
from pyspark_ckpt.operator.values.wire_form import fields_writer

Numbers = np.ndarray[Any, Any]

_PIECE_BYTES = 1 << 30
"""Columns of texts are cut into pieces of this size, if they have more than one array can have."""


class _EntriesForm(MessagePackForm):
    """Plain values with maps as lists of entries, because Arrow's keys need no hash."""

    def pack_map(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        return list(entries)


_ENTRIES_OF_MAPS = _EntriesForm()


def shown_column(
    data_type: T.DataType, sent: pa.Array, nulls: Numbers | None, transport: Transport
) -> pa.Array | pa.ChunkedArray:
    """Return a column as a processor sees it, in the Arrow type of its Spark type.

    It is in one piece, unless it has more bytes of text than one array can have.
    """
    column = with_nulls(sent, nulls)
    wanted = arrow_type(data_type)
    if travels_as_json(data_type):
        return values_column(data_type, all_received(transport, values_of(column)))
    if isinstance(data_type, T.DateType | T.TimestampType):
        return column.view(wanted)
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        if not pa.types.is_large_string(column.type) and not pa.types.is_large_binary(column.type):
            raise
    return pa.chunked_array([piece.cast(wanted) for piece in _small_pieces(column)], wanted)


def _small_pieces(column: pa.Array) -> Iterator[pa.Array]:
    """Yield copies of the parts of a column, each with so many bytes as a small type holds."""
    if len(column) > 1 and column.nbytes > _PIECE_BYTES:
        half = len(column) // 2
        yield from _small_pieces(column.slice(0, half))
        yield from _small_pieces(column.slice(half))
    else:
        yield column.take(pa.array(range(len(column)), pa.int64()))


def values_column(data_type: T.DataType, values: Sequence[Any]) -> pa.Array:
    """Return Python values of a Spark type as an Arrow column."""
    schema = T.StructType([T.StructField("c0", data_type)])
    write = fields_writer(_ENTRIES_OF_MAPS, schema, is_checked=True)
    plain = values if write is None else [write((value,))[0] for value in values]
    return arrow_array(data_type, plain)


def sent_column(
    data_type: T.DataType,
    column: pa.ChunkedArray,
    make: Callable[[Sequence[Any]], pa.Array],
    make_nested: Callable[[Sequence[Any]], pa.Array],
) -> pa.Array:
    """Return a column that a processor yields as it travels.

    `make` makes a travelling column of Python values, and names a value that does not fit.
    `make_nested` does the same for values in plain form, with maps as lists of entries.
    """
    wanted = arrow_type(data_type)
    if column.type != wanted:
        column = cast(column, wanted)
    array = whole(column)
    if isinstance(data_type, T.DateType):
        return array.view(pa.int32())
    if isinstance(data_type, T.TimestampType):
        return array.view(pa.int64())
    if isinstance(data_type, T.TimestampNTZType):
        return make(array.to_pylist())
    if travels_as_json(data_type):
        return make_nested(plain_values(data_type, array, list))
    return array


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
