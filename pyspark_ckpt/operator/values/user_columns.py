"""Columns in Arrow as the values that users see in rows, and columns that users yield.

Rows have the values that PySpark's rows have: structs are dicts, maps are lists of entries, and
instants are in the session's time zone. Python has fewer times than Spark, and no text that is not
UTF-8; a value that it does not have is named with its column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.operator.task_failure import shown
from pyspark_ckpt.operator.values.arrow_values import (
    ColumnStyle,
    a_list,
    arrow_array,
    arrow_type,
    in_type,
    plain_values,
    python_values,
    viewed,
)
from pyspark_ckpt.operator.values.message_pack import MessagePackForm
from pyspark_ckpt.operator.values.time_zones import zone_of
from pyspark_ckpt.operator.values.wire_form import aware_timestamps, fields_writer
from pyspark_ckpt.values.columns import integers_of, nulls_of, with_nulls
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.types import Kind, find_leaf

Numbers = np.ndarray[Any, Any]
Leaf = Callable[[pa.Array], list[Any]]

_NO_TIME = -(1 << 63)


class ValueNotHeldError(ValueError):
    """A column has a value of Spark that Python does not have."""


NOT_HELD = (ValueError, OverflowError, OSError, pa.ArrowException)
"""What Python and Arrow raise for times that Python does not have, and texts that are not UTF-8."""


def retyped(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column that Spark has sent in the library's type for it; mostly without a copy.

    Spark's types differ in the time zone's name, and in what they say of nulls and names.
    """
    if column.type == wanted:
        return column
    try:
        return viewed(column, wanted)
    except pa.ArrowInvalid:  # large texts, if Spark's conf asks for them
        try:
            return in_type(column, wanted)
        except pa.ArrowInvalid:
            if not _is_large(column.type):
                raise
            return column


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def row_columns(time_zone: str) -> ColumnStyle:
    """Return the style of PySpark's rows."""
    return ColumnStyle(_RowLeaves(time_zone).of, _dicts, _entries, a_list)


class _RowLeaves:
    """The values of leaf types as PySpark's rows have them."""

    def __init__(self, time_zone: str) -> None:
        self._time_zone = time_zone

    def of(self, data_type: T.DataType) -> Leaf | None:
        row = find_leaf(data_type)
        if row is not None and row.kind is Kind.INSTANT:
            return partial(_instants, self._time_zone)
        return None if row is None else row.shown


def _dicts(names: list[str]) -> Callable[[tuple[Any, ...]], Any]:
    return lambda values: dict(zip(names, values, strict=True))


def _entries(_: T.DataType, entries: Iterable[tuple[Any, Any]]) -> Any:
    return list(entries)


def _instants(time_zone: str, column: pa.Array) -> list[Any]:
    return with_nulls(aware_timestamps(zone_of(time_zone), integers_of(column).tolist()), column)


def is_text(data_type: pa.DataType) -> bool:
    """Return whether an Arrow type is that of texts."""
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def first_bad_text(column: pa.Array | pa.ChunkedArray) -> bytes | None:
    """Return the first text of a column that is not UTF-8, ``None`` if there is none.

    The column may have any type; texts inside its values are looked at too.
    """
    if isinstance(column, pa.ChunkedArray):
        return next((bad for bad in map(first_bad_text, column.chunks) if bad is not None), None)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return next(_bad_texts(column), None)
    return None


def _bad_texts(column: pa.Array) -> Iterator[bytes]:
    kind = column.type
    if is_text(kind):
        binary = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
        yield from filter(_is_no_text, filter(None, column.view(binary).to_pylist()))
    elif pa.types.is_map(kind):
        yield from _bad_texts(column.keys)
        yield from _bad_texts(column.items)
    elif pa.types.is_struct(kind):
        for field in column.flatten():
            yield from _bad_texts(field)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _bad_texts(column.flatten())


def _is_no_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def check_held(
    field: T.StructField, column: pa.Array, read: Callable[[pa.Array], Sequence[Any]]
) -> None:
    """Name the first value of a column that Python does not have, if there is one.

    `read` makes Python values of the column; it has failed.
    """
    check_texts(field, column)
    for row in range(len(column)):
        one = column.slice(row, 1)
        try:
            read(one)
        except NOT_HELD as exc:
            raise ValueNotHeldError(
                f"column {field.name!r} is {field.dataType.simpleString()} and has "
                f"{shown(in_words(field.dataType, one))}, which Python does not have ({exc}): "
                "use an ArrowProcessor, which has all of Spark's times, cast it to text before "
                "key_by, or leave out such rows"
            ) from exc


def check_texts(field: T.StructField, column: pa.Array | pa.ChunkedArray) -> None:
    """Name the first text of a column that is not UTF-8, if there is one.

    Spark makes such texts when it casts binaries or reads files of another encoding.
    """
    if _has_texts(column.type) and (found := first_bad_text(column)) is not None:
        raise ValueNotHeldError(
            f"column {field.name!r} is {field.dataType.simpleString()} and has the text "
            f"{shown(found)}, which is not UTF-8: {_remedy_of_text(field)}, or leave out such rows"
        )


def _has_texts(kind: pa.DataType) -> bool:
    return is_text(kind) or any(_has_texts(kind.field(n).type) for n in range(kind.num_fields))


def _remedy_of_text(field: T.StructField) -> str:
    if isinstance(field.dataType, T.StringType):
        name = field.name
        return (
            f"before key_by, read it in its encoding, such as decode(cast({name} as binary), "
            f"'ISO-8859-1'), replace what is wrong with make_valid_utf8({name}), or cast it to "
            "binary"
        )
    return "before key_by, replace what is wrong in its texts with make_valid_utf8"


def in_words(data_type: T.DataType, one: pa.Array) -> str:
    """Return the value of an array of one row as errors show it."""
    (plain,) = plain_values(data_type, one, list)
    row = find_leaf(data_type)
    return str(plain) if row is None else row.in_words(plain)


def newest_ms(column: pa.Array, bounds: Sequence[int]) -> list[int | None]:
    """Return the newest time, in milliseconds, of the rows from each bound to the next.

    It is ``None`` if all of them are null. None of the ranges is empty, unless there is no row.
    """
    if not len(column):
        return [None] * (len(bounds) - 1)
    microseconds = integers_of(column)
    nulls = nulls_of(column)
    if nulls is not None:
        microseconds = np.where(nulls, _NO_TIME, microseconds)
    newest = np.maximum.reduceat(microseconds, bounds[:-1])
    times: list[int | None] = (newest // 1000).tolist()
    for place in np.flatnonzero(newest == _NO_TIME).tolist():
        times[place] = None
    return times


class _EntriesForm(MessagePackForm):
    """Plain values with maps as lists of entries, because Arrow's keys need no hash."""

    def pack_map(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        made = list(entries)
        check_keys([key for key, _ in made])
        return made


_ENTRIES_OF_MAPS = _EntriesForm()
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
    write = fields_writer(_ENTRIES_OF_MAPS, schema)
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


_PIECE_BYTES = 1 << 30
"""Columns of texts are cut into pieces of this size, if they have more than one array can have."""


def shown_column(data_type: T.DataType, column: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Return a column as an Arrow processor sees it, in the Arrow type of its Spark type.

    It is in one piece, unless it has more bytes of text than one array can have.
    """
    wanted = arrow_type(data_type)
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        if not _is_large(column.type):
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


def values_of(data_type: T.DataType, column: pa.Array, time_zone: str) -> list[Any]:
    """Return the values of a column as rows show them."""
    return python_values(data_type, column, row_columns(time_zone))
