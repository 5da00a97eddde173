"""The size that the pages of a Parquet file expand to, found without expanding them.

The sizes in a file's footer are claims of its writer. Readers use the sizes in the pages' own
headers, and encodings in which a few bytes stand for many values. So the headers are read first.
Only pages of plain values are accepted, in which each value takes at least its own bytes. Together
the pages must not be larger than the footer says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

_HEADER_BYTES = 64 << 10
"""Largest page header; it may have the smallest and the largest value of the page."""

_MAX_DEPTH = 8
_DATA_PAGE = 0
_PLAIN = 0
_TYPE, _UNCOMPRESSED, _COMPRESSED, _DATA_HEADER = 1, 2, 3, 5
_NUM_VALUES, _ENCODING = 1, 2

# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)


class PageError(ValueError):
    """A page does not match the footer, or does not have plain values."""


def check_pages(file: BinaryIO, chunk: Any, rows: int) -> None:
    """Check the pages of one column chunk by their headers.

    It changes the position of `file`.
    """
    place = chunk.data_page_offset
    if chunk.has_dictionary_page:
        raise PageError(f"column {chunk.path_in_schema} has a dictionary")
    end = place + chunk.total_compressed_size
    size_bytes = values = 0
    while place < end:
        file.seek(place)
        header = _Header(file.read(_HEADER_BYTES), chunk.path_in_schema)
        size_bytes += header.size_bytes + header.uncompressed_bytes
        values += header.values
        place += header.size_bytes + header.compressed_bytes
        if size_bytes > chunk.total_uncompressed_size or values > rows:
            break
    if place != end or values != rows or size_bytes > chunk.total_uncompressed_size:
        raise PageError(
            f"column {chunk.path_in_schema} expands to {size_bytes} bytes and {values} values or "
            f"more, but {chunk.total_uncompressed_size} bytes and {rows} values are declared"
        )


class _Header:
    """One page's header."""

    def __init__(self, data: bytes, column: str) -> None:
        reader = _Thrift(data)
        try:
            fields = reader.struct()
            data_header = fields.get(_DATA_HEADER, {})
            self.size_bytes = reader.position
            self.uncompressed_bytes = _natural(fields[_UNCOMPRESSED])
            self.compressed_bytes = _natural(fields[_COMPRESSED])
            is_plain = fields[_TYPE] == _DATA_PAGE and data_header[_ENCODING] == _PLAIN
            self.values = _natural(data_header[_NUM_VALUES]) if is_plain else 0
        except (IndexError, KeyError, TypeError) as exc:
            raise PageError(f"column {column} has a page that cannot be read") from exc
        if not is_plain:
            raise PageError(f"column {column} has a page that is not of plain values")


def _natural(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(value)
    return value


class _Thrift:
    """Reads numbers and structs of Thrift's compact protocol, and skips other values.

    It raises ``IndexError`` if the bytes end too early, ``PageError`` for an impossible value.
    """

    def __init__(self, data: bytes) -> None:
        self.position = 0
        self._data = data
        self._depth = 0

    def struct(self) -> dict[int, Any]:
        """Read a struct as a dictionary by field id."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise PageError("a page header is nested too deeply")
        fields: dict[int, Any] = {}
        field_id = 0
        while kind := self._byte():
            field_id = field_id + (kind >> 4) if kind >> 4 else self._zigzag()
            fields[field_id] = self._value(kind & 0x0F)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in _INTEGERS:
            return self._zigzag()
        readers: dict[int, Callable[[], Any]] = {
            _BYTE: self._byte,
            _DOUBLE: lambda: self._skip(8),
            _BINARY: lambda: self._skip(self._varint()),
            _STRUCT: self.struct,
        }
        if kind not in readers:  # lists, sets and maps: no page header has them
            raise PageError(f"a page header has a field of the type {kind}")
        return readers[kind]()

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _skip(self, size_bytes: int) -> None:
        self.position += size_bytes
        if self.position > len(self._data):
            raise IndexError(self.position)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
            if shift > 63:
                raise PageError("a number in a page header is too long")

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
