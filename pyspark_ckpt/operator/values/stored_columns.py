"""Encoded tuples of many keys as Arrow columns, without a Python object for each value.

It reads what :mod:`pyspark_ckpt.operator.values.message_pack_columns` and the codecs write, where
all columns are numbers, times, truth values, texts or bytes. Where a tuple is anything else it
reads nothing, and the codec reads the tuples one by one, or names the one that is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.arrow_values import arrow_type
from pyspark_ckpt.operator.values.message_pack_columns import tuple_head
from pyspark_ckpt.values.types import find_leaf

Numbers = np.ndarray[Any, Any]
Read = tuple[pa.Array, Numbers]
"""A column, and where the next one begins in each tuple."""

_NULL = 0xC0
_MOST_BYTES = 9
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


def _expect(is_so: Numbers) -> None:
    if not is_so.all():
        raise _OtherFormError


def _wide(
    data: Numbers, places: Numbers, marks: Numbers, kinds: dict[int, str], values: Numbers
) -> Numbers:
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


def _integers(data: Numbers, places: Numbers, kind: pa.DataType) -> Read:
    marks = data[places]
    values = marks.view(np.int8).astype(np.int64)  # the small ones are their own marks
    widths = _wide(data, places, marks, _WIDE_INTEGERS, values)
    nulls = marks == _NULL
    _expect((widths > 0) | nulls | (marks <= 0x7F) | (marks >= 0xE0))
    numbers = pa.array(values, mask=nulls)
    if pa.types.is_date32(kind):
        numbers = numbers.cast(pa.int32())
    return numbers.cast(kind), places + 1 + widths


def _floats(data: Numbers, places: Numbers, kind: pa.DataType) -> Read:
    marks = data[places]
    nulls = marks == _NULL
    _expect(nulls | (marks == 0xCB))
    values = data[places[:, None] + np.arange(1, _MOST_BYTES)].view(">f8")[:, 0]
    numbers = pa.array(values.astype(np.float64), mask=nulls, from_pandas=False)
    return numbers.cast(kind), places + np.where(nulls, 1, _MOST_BYTES)


def _booleans(data: Numbers, places: Numbers, kind: pa.DataType) -> Read:
    marks = data[places]
    nulls = marks == _NULL
    _expect(nulls | (marks == 0xC2) | (marks == 0xC3))
    return pa.array(marks == 0xC3, kind, mask=nulls), places + 1


def _texts(data: Numbers, places: Numbers, kind: pa.DataType) -> Read:
    marks = data[places]
    is_short = (marks & 0xE0) == 0xA0
    lengths = np.where(is_short, marks & 0x1F, 0).astype(np.int64)
    column, ends = _sized(data, places, lengths, is_short, _LENGTHS_OF_TEXTS, kind)
    column.validate(full=True)  # stored bytes may be no UTF-8
    return column, ends


def _binaries(data: Numbers, places: Numbers, kind: pa.DataType) -> Read:
    lengths = np.zeros(len(places), np.int64)
    return _sized(data, places, lengths, lengths > 0, _LENGTHS_OF_BINARIES, kind)


def _sized(
    data: Numbers,
    places: Numbers,
    lengths: Numbers,
    is_short: Numbers,
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


def _validity(nulls: Numbers) -> pa.Buffer | None:
    if not nulls.any():
        return None
    return pa.array(~nulls).buffers()[1]


_READERS: dict[type, Callable[[Numbers, Numbers, pa.DataType], Read]] = {
    int: _integers,
    float: _floats,
    bool: _booleans,
    str: _texts,
    bytes: _binaries,
}
"""By the Python type of plain values."""
