"""Columns in Arrow as the values that users see in rows, and columns that users yield.

Rows have the values that PySpark's rows have: structs are dicts, maps are lists of entries, and
instants are in the session's time zone. Python has fewer times than Spark, and no text that is not
UTF-8; a value that it does not have is named with its column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.values.arrow import (
    ColumnStyle,
    a_list,
    arrow_type,
    plain_values,
    python_values,
    viewed,
    with_offsets,
)
from pyspark_ckpt.values.columns import NUMBER_OF_NAT, integers_of, nulls_of, with_nulls
from pyspark_ckpt.values.plain import aware_timestamps
from pyspark_ckpt.values.time_zones import zone_of
from pyspark_ckpt.values.types import Kind, find_leaf
from pyspark_ckpt.values.words import shown

Numbers = np.ndarray[Any, Any]
Leaf = Callable[[pa.Array], list[Any]]


class ValueNotHeldError(ValueError):
    """A column has a value of Spark that Python does not have."""


NOT_HELD = (ValueError, OverflowError, OSError, pa.ArrowException)
"""What Python and Arrow raise for times that Python does not have, and texts that are not UTF-8."""


def retyped(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column that Spark has sent in the library's type for it, without a copy.

    Spark's types differ in the time zone's name, and in what they say of nulls and names. Large
    texts and binaries, which Spark's conf may ask for, stay large.
    """
    return viewed(with_offsets(column), _with_large(column.type, wanted))


def _with_large(kind: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return a wanted type in which large leaves of a type stay large; by place, not by name."""
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return kind
    if pa.types.is_struct(kind):
        inner = [
            field.with_type(_with_large(kind.field(n).type, field.type))
            for n, field in enumerate(wanted)
        ]
        return pa.struct(inner)
    if pa.types.is_map(kind):
        key, value = kind.key_type, kind.item_type
        return pa.map_(_with_large(key, wanted.key_type), _with_large(value, wanted.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_large(kind.value_type, wanted.value_type))
    return wanted


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
        microseconds = np.where(nulls, NUMBER_OF_NAT, microseconds)
    newest = np.maximum.reduceat(microseconds, bounds[:-1])
    times: list[int | None] = (newest // 1000).tolist()
    for place in np.flatnonzero(newest == NUMBER_OF_NAT).tolist():
        times[place] = None
    return times


_PIECE_BYTES = 1 << 30
"""Columns are cut into pieces of this size, if they have more bytes than one array can have."""


def shown_column(data_type: T.DataType, column: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Return a column as an Arrow processor sees it, in the Arrow type of its Spark type.

    It is in one piece, unless it has more bytes of text than one array can have.
    """
    wanted = arrow_type(data_type)
    if column.type == wanted:
        return column
    if column.nbytes <= _PIECE_BYTES:
        return viewed(column, wanted)
    pieces = [viewed(piece, wanted) for piece in _small_pieces(column)]
    return pa.chunked_array(pieces, wanted)


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
