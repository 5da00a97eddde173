"""Tuples as they are stored, a column at a time: Arrow columns to bytes, and bytes to columns.

The bytes are those that the codecs write. Numbers, texts and bytes are encoded and read by NumPy
and Arrow, without a Python call per value. Other types are encoded value by value with the codec
itself, in plain form. Where a stored tuple is anything else, nothing is read here: the codec reads
the tuples one by one, or names the one that is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum, auto
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.values.arrow import arrow_type, plain_values
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.shown import first_bad_text
from pyspark_ckpt.values.types import TEXTS, Canonical, KeyForm, find_leaf
from pyspark_ckpt.values.words import shown

Bytes = np.ndarray[Any, Any]

_NULL = 0xC0
_MARK_BYTES = 1
_MOST_BYTES = 9
_FIX_TUPLE = 15
_encode = msgspec.msgpack.Encoder().encode


class Form(Enum):
    """What a tuple is in the state; equal keys, and equal keys of a map, get the same bytes."""

    VALUE = auto()
    MAP_KEY = auto()
    KEY = auto()


def encoded_tuples(
    columns: Sequence[pa.Array], schema: T.StructType, form: Form, *heads: pa.Array
) -> pa.BinaryArray:
    """Return the encoded tuple of each row, after the bytes of `heads`.

    `heads` are binary arrays without nulls. StateValueError is raised for a text that is not UTF-8
    and for a map that has a key twice, because they could not be read again.
    """
    rows = len(heads[0]) if heads else len(columns[0])
    head = repeated(tuple_head(len(schema.fields)), rows)
    parts: list[pa.Array] = []
    for column, field in zip(columns, schema.fields, strict=True):
        _check_texts(column, field)
        parts += _encoded_column(column, field, form)
    return joined(*heads, head, *parts)


def joined(*parts: pa.Array) -> pa.BinaryArray:
    """Return the concatenated bytes of binary arrays of the same length, row by row."""
    if len(parts) == 1:
        return parts[0]
    separator = pa.scalar(b"", pa.binary())
    found: pa.BinaryArray = pc.binary_join_element_wise(*parts, separator)
    return found


def repeated(data: bytes, rows: int) -> pa.BinaryArray:
    """Return an array that has the same bytes in each row."""
    return fixed_width(np.tile(np.frombuffer(data, np.uint8), (rows, 1)))


def fixed_width(matrix: Bytes) -> pa.BinaryArray:
    """Return a binary array of the rows of a matrix of bytes."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * width
    return _binary(offsets, np.ascontiguousarray(matrix))


def big_endian(values: Bytes) -> Bytes:
    """Return integers as a matrix of their bytes, the highest first."""
    width = values.dtype.itemsize
    swapped = np.ascontiguousarray(values.astype(values.dtype.newbyteorder(">")))
    return swapped.view(np.uint8).reshape(len(values), width)


def tuple_head(width: int) -> bytes:
    """Return the first bytes of an encoded tuple of so many values."""
    if width <= _FIX_TUPLE:
        return bytes([0x90 | width])
    return b"\xdc" + width.to_bytes(2, "big")


def _encoded_column(column: pa.Array, field: T.StructField, form: Form) -> list[pa.Array]:
    """Return the parts of a column whose concatenation is the encoded column."""
    row = find_leaf(field.dataType)
    if form is Form.KEY:
        if row is None or row.key_form is KeyForm.ENCODED:
            return _binaries(_nested_key(column, field))
        if row.key_texts is not None:
            numbers = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            return _texts(pa.array(row.key_texts(numbers), pa.string(), mask=_flags(column)))
    if row is None:
        return [_by_codec(column, field, form)]
    if row.plain is float:
        return [_floats(column, None if form is Form.VALUE else row.canonical)]
    encode = _ENCODERS.get(row.plain)
    return [_by_codec(column, field, form)] if encode is None else encode(column)


def _check_texts(column: pa.Array, field: T.StructField) -> None:
    bad = first_bad_text(column) if holds(field.dataType, TEXTS) else None
    if bad is not None:
        raise StateValueError(
            f"column {field.name!r} is {field.dataType.simpleString()} and has the text "
            f"{shown(bad)}, which is not UTF-8: decode it, or have the column as binary"
        )


def _flags(column: pa.Array) -> Bytes | None:
    if column.null_count == 0:
        return None
    flags: Bytes = column.is_null().to_numpy(zero_copy_only=False)
    return flags


def _integers(column: pa.Array) -> list[pa.Array]:
    nulls = _flags(column)
    plain = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
    numbers = plain.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    matrix = np.empty((len(numbers), _MOST_BYTES), np.uint8)
    matrix[:, 0] = numbers.astype(np.uint8)
    lengths = np.ones(len(numbers), np.int64)
    in_bytes = big_endian(numbers)
    for low, high, mark in (
        (128, 1 << 8, 0xCC), (1 << 8, 1 << 16, 0xCD), (1 << 16, 1 << 32, 0xCE),
        (1 << 32, 1 << 63, 0xCF), (-(1 << 7), -32, 0xD0), (-(1 << 15), -(1 << 7), 0xD1),
        (-(1 << 31), -(1 << 15), 0xD2), (-(1 << 63), -(1 << 31), 0xD3),
    ):  # fmt: skip
        places = np.flatnonzero((numbers >= low) & (numbers <= high - 1))
        if len(places):
            width = 1 << (mark & 3)
            matrix[places, 0] = mark
            matrix[places, 1 : 1 + width] = in_bytes[places, 8 - width :]
            lengths[places] += width
    if nulls is not None:
        matrix[nulls, 0] = _NULL
        lengths[nulls] = 1
    return [_ragged(matrix, lengths)]


def _floats(column: pa.Array, canonical: Canonical | None) -> pa.BinaryArray:
    nulls = _flags(column)
    numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    if canonical is not None:
        numbers = canonical.array(numbers)
    matrix = np.empty((len(numbers), _MOST_BYTES), np.uint8)
    matrix[:, 0] = 0xCB
    matrix[:, 1:] = big_endian(numbers)
    if nulls is None:
        return fixed_width(matrix)
    matrix[nulls, 0] = _NULL
    return _ragged(matrix, np.where(nulls, _MARK_BYTES, _MOST_BYTES))


def _booleans(column: pa.Array) -> list[pa.Array]:
    nulls = _flags(column)
    flags = column.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003  # of Arrow
    marks = np.where(flags, np.uint8(0xC3), np.uint8(0xC2))
    if nulls is not None:
        marks[nulls] = _NULL
    return [fixed_width(marks.reshape(-1, 1))]


def _texts(column: pa.Array) -> list[pa.Array]:
    plain = column.cast(pa.string()).cast(pa.binary())
    lengths = _lengths(plain)
    heads = np.zeros((len(lengths), 5), np.uint8)
    heads[:, 0] = 0xA0 | np.minimum(lengths, 31)
    widths = np.ones(len(lengths), np.int64)
    _set_heads(heads, widths, lengths, ((32, 1 << 8, 0xD9), (1 << 8, 1 << 16, 0xDA)), 0xDB)
    return _with_heads(plain, heads, widths)


def _binaries(column: pa.Array) -> list[pa.Array]:
    plain = column.cast(pa.binary())
    lengths = _lengths(plain)
    heads = np.zeros((len(lengths), 5), np.uint8)
    widths = np.ones(len(lengths), np.int64)
    _set_heads(heads, widths, lengths, ((0, 1 << 8, 0xC4), (1 << 8, 1 << 16, 0xC5)), 0xC6)
    return _with_heads(plain, heads, widths)


_ENCODERS: dict[type, Callable[[pa.Array], list[pa.Array]]] = {
    int: _integers,
    bool: _booleans,
    str: _texts,
    bytes: _binaries,
}
"""By the Python type of plain values. Floats are encoded by :func:`_floats`."""


def _set_heads(
    heads: Bytes,
    widths: Bytes,
    lengths: Bytes,
    ranges: Sequence[tuple[int, int, int]],
    last_mark: int,
) -> None:
    """Set the heads of the lengths in each range; a head has 1, 2, then 4 bytes of length."""
    in_bytes = big_endian(lengths.astype(np.uint32))
    last = (ranges[-1][1], 1 << 32, last_mark)
    for number, (low, high, mark) in enumerate((*ranges, last)):
        places = np.flatnonzero((lengths >= low) & (lengths < high))
        if len(places):
            width = 1 << number
            heads[places, 0] = mark
            heads[places, 1 : 1 + width] = in_bytes[places, 4 - width :]
            widths[places] = 1 + width


def _with_heads(plain: pa.Array, heads: Bytes, widths: Bytes) -> list[pa.Array]:
    nulls = _flags(plain)
    if nulls is not None:
        heads[nulls, 0] = _NULL
        widths[nulls] = _MARK_BYTES
        plain = plain.fill_null(b"")
    return [_ragged(heads, widths), plain]


def _lengths(column: pa.Array) -> Bytes:
    lengths: Bytes = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _ragged(matrix: Bytes, lengths: Bytes) -> pa.BinaryArray:
    """Return a binary array of the first bytes of each row of a matrix."""
    width = int(lengths.max(initial=1))
    data = matrix[:, :width][np.arange(width) < lengths[:, None]]
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return _binary(offsets, data)


def _binary(offsets: Bytes, data: Bytes) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _one_by_one(values: Sequence[Any], encode: Callable[[Any], bytes]) -> pa.BinaryArray:
    return pa.array(map(encode, values), pa.binary(), size=len(values))


def _by_codec(column: pa.Array, field: T.StructField, form: Form) -> pa.BinaryArray:
    """Return the values as a tuple's codec encodes them, without the tuple's head."""
    if form is Form.KEY:  # a decimal, which a key has as text
        return _one_by_one(column.to_pylist(), _decimal_text)
    encode = _codec(field, is_key=form is Form.MAP_KEY).encode
    try:
        values = plain_values(field.dataType, column, _dict_of_all)
    except _SameKeyError as exc:
        raise StateValueError(
            f"column {field.name!r} is {field.dataType.simpleString()} and has a map with the key "
            f"{shown(exc.args[0])} twice: give each key once"
        ) from None
    return _one_by_one(values, lambda value: encode((value,))[1:])


class _SameKeyError(Exception):
    """A map has a key twice, so one of its entries would be lost."""


def _dict_of_all(entries: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    pairs = list(entries)
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _SameKeyError(next(key for key in keys if keys.count(key) > 1))
    return made


def _nested_key(column: pa.Array, field: T.StructField) -> pa.BinaryArray:
    """Return the encoded keys of a type that a key has as bytes; a null has bytes too."""
    encode = _codec(field, is_key=True).encode
    return _one_by_one(plain_values(field.dataType, column), lambda value: encode((value,)))


def _codec(field: T.StructField, *, is_key: bool) -> TupleCodec:
    what = f"column {field.name!r}"
    return TupleCodec(T.StructType([field]), what, is_key=is_key, style=None)


def _decimal_text(value: Decimal | None) -> bytes:
    return _encode(value)


Read = tuple[pa.Array, Bytes]
"""A column, and where the next one begins in each tuple."""

_MOST_IN_AN_ARRAY = (1 << 31) - 1
"""Bytes that an Arrow array of texts holds."""

_WIDE_INTEGERS = {
    0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8",
    0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8",
}  # fmt: skip
_LENGTHS_OF_TEXTS = {0xD9: ">u1", 0xDA: ">u2", 0xDB: ">u4"}
_LENGTHS_OF_BINARIES = {0xC4: ">u1", 0xC5: ">u2", 0xC6: ">u4"}


class _OtherFormError(Exception):
    """A tuple is not of the form that can be read a column at a time."""


def stored_columns(
    stored: Sequence[bytes | None], schema: T.StructType, prefix: bytes
) -> list[pa.Array] | None:
    """Return encoded tuples as a column for each field; ``None`` in `stored` becomes nulls.

    `prefix` is what tuples of this schema begin with. The columns have the types of
    :func:`arrow_type`. Returns ``None`` if the codec has to read the tuples.
    """
    rows = [find_leaf(field.dataType) for field in schema.fields]
    readers = [None if row is None else _READERS.get(row.plain) for row in rows]
    found = [data for data in stored if data is not None]
    if not found or not readers or None in readers:
        return None
    # The bytes after the last tuple are for looks beyond the end of one that is damaged.
    data = np.frombuffer(b"".join([*found, bytes(_MOST_BYTES)]), np.uint8)
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    ends = np.cumsum(lengths)
    places = ends - lengths
    columns = []
    try:
        for byte in prefix + tuple_head(len(schema.fields)):
            _expect(data[places] == byte)
            places = places + 1
        _expect(places <= ends)
        for field, read in zip(schema.fields, readers, strict=True):
            assert read is not None
            column, places = read(data, places, arrow_type(field.dataType))
            _expect(places <= ends)
            columns.append(column)
        _expect(places == ends)
    except (_OtherFormError, pa.ArrowException):
        return None
    return columns if len(found) == len(stored) else _spread(columns, stored)


def _spread(columns: list[pa.Array], stored: Sequence[bytes | None]) -> list[pa.Array]:
    missing = np.fromiter((data is None for data in stored), np.bool_, len(stored))
    numbers = np.cumsum(~missing) - 1
    places = pa.array(np.where(missing, 0, numbers), mask=missing)
    return [column.take(places) for column in columns]


def _expect(is_so: Bytes) -> None:
    if not is_so.all():
        raise _OtherFormError


def _wide(data: Bytes, places: Bytes, marks: Bytes, kinds: dict[int, str], values: Bytes) -> Bytes:
    """Set the values whose mark is followed by a number; return how many bytes follow each mark."""
    widths = np.zeros(len(marks), np.int64)
    for mark, kind in kinds.items():
        rows = np.flatnonzero(marks == mark)
        if len(rows):
            dtype = np.dtype(kind)
            in_bytes = data[places[rows, None] + np.arange(1, 1 + dtype.itemsize)]
            numbers = in_bytes.view(dtype)[:, 0]
            if mark == 0xCF:
                _expect(numbers <= np.iinfo(np.int64).max)
            values[rows] = numbers
            widths[rows] = dtype.itemsize
    return widths


def _read_integers(data: Bytes, places: Bytes, kind: pa.DataType) -> Read:
    marks = data[places]
    values = marks.view(np.int8).astype(np.int64)  # the small ones are their own marks
    widths = _wide(data, places, marks, _WIDE_INTEGERS, values)
    nulls = marks == _NULL
    _expect((widths > 0) | nulls | (marks <= 0x7F) | (marks >= 0xE0))
    numbers = pa.array(values, mask=nulls)
    if pa.types.is_date32(kind):
        numbers = numbers.cast(pa.int32())
    return numbers.cast(kind), places + 1 + widths


def _read_floats(data: Bytes, places: Bytes, kind: pa.DataType) -> Read:
    marks = data[places]
    nulls = marks == _NULL
    _expect(nulls | (marks == 0xCB))
    values = data[places[:, None] + np.arange(1, _MOST_BYTES)].view(">f8")[:, 0]
    numbers = pa.array(values.astype(np.float64), mask=nulls, from_pandas=False)
    return numbers.cast(kind), places + np.where(nulls, 1, _MOST_BYTES)


def _read_booleans(data: Bytes, places: Bytes, kind: pa.DataType) -> Read:
    marks = data[places]
    nulls = marks == _NULL
    _expect(nulls | (marks == 0xC2) | (marks == 0xC3))
    return pa.array(marks == 0xC3, kind, mask=nulls), places + 1


def _read_texts(data: Bytes, places: Bytes, kind: pa.DataType) -> Read:
    marks = data[places]
    is_short = (marks & 0xE0) == 0xA0
    lengths = np.where(is_short, marks & 0x1F, 0).astype(np.int64)
    column, ends = _sized(data, places, lengths, is_short, _LENGTHS_OF_TEXTS, kind)
    column.validate(full=True)  # stored bytes may be no UTF-8
    return column, ends


def _read_binaries(data: Bytes, places: Bytes, kind: pa.DataType) -> Read:
    lengths = np.zeros(len(places), np.int64)
    return _sized(data, places, lengths, lengths > 0, _LENGTHS_OF_BINARIES, kind)


def _sized(
    data: Bytes,
    places: Bytes,
    lengths: Bytes,
    is_short: Bytes,
    kinds: dict[int, str],
    kind: pa.DataType,
) -> Read:
    marks = data[places]
    widths = _wide(data, places, marks, kinds, lengths)
    nulls = marks == _NULL
    _expect((widths > 0) | nulls | is_short)
    begins = places + 1 + widths
    ends = begins + lengths
    _expect(begins[1:] >= ends[:-1])
    _expect(ends[-1:] <= min(len(data), _MOST_IN_AN_ARRAY))
    # All bytes as an array of what is between two values, a value, what is between and so on: Arrow
    # copies the values out of it at once. A number for each byte took 17 times their memory.
    bounds = np.zeros(2 * len(places) + 1, np.int32)
    bounds[1::2], bounds[2::2] = begins, ends
    both = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    values = both.take(pa.array(np.arange(1, len(bounds) - 1, 2)))
    buffers = [_validity(nulls), *values.buffers()[1:]]
    return pa.Array.from_buffers(kind, len(places), buffers), ends


def _validity(nulls: Bytes) -> pa.Buffer | None:
    if not nulls.any():
        return None
    return pa.array(~nulls).buffers()[1]


_READERS: dict[type, Callable[[Bytes, Bytes, pa.DataType], Read]] = {
    int: _read_integers,
    float: _read_floats,
    bool: _read_booleans,
    str: _read_texts,
    bytes: _read_binaries,
}
"""By the Python type of plain values."""
