"""The canonical file: all state of one subtask as a Parquet file that every Parquet reader opens.

One row per entry, sorted by stored key, so by key group first:

================  =======  =================================================================
``key_group``     int32    null if the entry belongs to no key: operator and raw state
``kind``          string   of the state, or ``timer``, ``timer-by-time``, ``raw``
``state``         string   name of the state, null for timers and raw state
``stored_key``    binary   as in :mod:`pyspark_ckpt.operator.table.stored_keys`, keys in MessagePack
``stored_value``  binary   MessagePack by the state's schema
================  =======  =================================================================

The schema's metadata has the uid, the key schema and the states with their schemas, as JSON. A
thread makes the next row group while the last group is written.

The sizes in a file's footer are claims of its writer. Readers use the sizes in the pages' own
headers, and encodings in which a few bytes stand for many values. So the headers are read first.
Only pages of plain values are accepted, in which each value takes at least its own bytes. Together
the pages must not be larger than the footer says.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.gathering import gathered
from pyspark_ckpt.storage.base import corrupt_file
from state_backends import Changes

_Item = TypeVar("_Item")
_POLL_SECONDS = 0.1
CANONICAL_FORMAT_VERSION = 1

MAX_GROUP_BYTES = 1 << 32
"""Largest row group that is read; it is large because one entry may take a gigabyte."""

_GROUP_ENTRIES = 100_000

_GROUP_BYTES = 8 << 20
"""A row group ends at the first limit it reaches; up to five groups are in memory at once."""

_READ_ENTRIES = 10_000
_READ_BYTES = 8 << 20
_CODEC = "zstd"
_SAMPLE_BYTES = 64 << 10

_WORTHWHILE = 0.95
"""Values are compressed if a sample shrinks below this share of its size."""

_READ_COLUMNS = ["stored_key", "stored_value"]
_VERSION_KEY = b"pyspark_ckpt.format_version"
_DESCRIPTION_KEY = b"pyspark_ckpt.subtask"

_KEY_GROUP_END = 0x8000
"""Keys from this value up have no key group; see :mod:`pyspark_ckpt.operator.table.stored_keys`."""

_TIME_INDEX, _OPERATOR_STATE, _RAW_STATE = 0x8000, 0x8100, 0x8200
_TIMERS_ID = 0xFF

_COLUMNS = pa.schema(
    [
        ("key_group", pa.int32()),
        ("kind", pa.string()),
        ("state", pa.string()),
        pa.field("stored_key", pa.binary(), nullable=False),
        pa.field("stored_value", pa.binary(), nullable=False),
    ]
)

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


def read_ahead(items: Iterator[_Item]) -> Generator[_Item, None, None]:
    """Yield `items`; a thread makes the next item while the consumer works on the last item.

    This saves time if the consumer releases Python's lock, to compress, digest or write. At most
    one item waits. Only the thread uses `items`, and closes it if it is a generator. The thread
    ends before this generator does.
    """
    made: queue.Queue[Any] = queue.Queue(1)
    is_over = threading.Event()
    thread = threading.Thread(
        target=_make, args=(items, made, is_over), name="pyspark_ckpt-read-ahead", daemon=True
    )
    thread.start()
    try:
        while True:
            kind, item = made.get()
            if kind is _Failed:
                raise item
            if kind is _Ended:
                return
            yield item
    finally:
        is_over.set()
        thread.join()


class _Failed:
    pass


class _Ended:
    pass


def _make(items: Iterator[Any], made: queue.Queue[Any], is_over: threading.Event) -> None:
    try:
        try:
            for item in items:
                if not _put((None, item), made, is_over):
                    return
        finally:
            if isinstance(items, Generator):
                items.close()
    except BaseException as exc:
        _put((_Failed, exc), made, is_over)
    else:
        _put((_Ended, None), made, is_over)


def _put(item: Any, made: queue.Queue[Any], is_over: threading.Event) -> bool:
    """Hand an item over; return whether the consumer still wants items."""
    while not is_over.is_set():
        with suppress(queue.Full):
            made.put(item, timeout=_POLL_SECONDS)
            return True
    return False


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Some entries of a canonical file: of key groups, or those that belong to no key.

    With `without_key`, the entries without a key group are meant instead of `first` to `last`.
    """

    first: int = 0
    last: int = _KEY_GROUP_END
    without_key: bool = False

    def may_be_in(self, group: Any) -> bool:
        """Return whether a row group, by its statistics, may have such entries."""
        statistics = group.column(_COLUMNS.get_field_index("key_group")).statistics
        if statistics is None or not statistics.has_null_count:
            return True
        if self.without_key:
            return bool(statistics.null_count)
        if not statistics.has_min_max:
            return bool(statistics.null_count != group.num_rows)
        return bool(statistics.min <= self.last and statistics.max >= self.first)


@dataclass(frozen=True, slots=True)
class ArrowEntries:
    """Entries whose keys and values are in Arrow already: binary arrays of the same length."""

    keys: pa.BinaryArray
    values: pa.BinaryArray

    @classmethod
    def of(cls, part: Changes) -> ArrowEntries:
        """Return the same entries in Arrow; the value of a delete is null."""
        return cls(pa.array(part.keys, pa.binary()), pa.array(part.values, pa.binary()))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice) -> ArrowEntries:
        return ArrowEntries(self.keys[rows], self.values[rows])

    def filter(self, mask: pa.BooleanArray) -> ArrowEntries:
        """Return the entries for which the mask is true."""
        return ArrowEntries(self.keys.filter(mask), self.values.filter(mask))

    def changes(self) -> Changes:
        """Return the same entries as lists of bytes."""
        return Changes(self.keys.to_pylist(), self.values.to_pylist())

    def pairs(self) -> Iterator[tuple[bytes, Any]]:
        """Yield each key with its value, ``None`` for a delete."""
        return zip(self.keys.to_pylist(), self.values.to_pylist(), strict=True)


Part = Changes | ArrowEntries


def encode_canonical(handle: Handle, parts: Iterable[Part]) -> Generator[bytes, None, None]:
    """Yield the bytes of a canonical file, in bounded memory.

    A task on an executor calls it.

    `parts` must be all of the subtask's state: only puts, in the order of the keys.
    """
    sink = _Sink()
    schema = _COLUMNS.with_metadata(_metadata(handle))
    names = _Names(handle)
    with closing(read_ahead(_groups(parts, partial(names.table, schema)))) as tables:
        first = [next(tables, schema.empty_table())]
        # With several states, the first values may all be of one state.
        codec = _codec(first[0]["stored_value"]) if len(handle.states) == 1 else _CODEC
        with pq.ParquetWriter(
            sink,
            schema,
            compression={
                name: codec if name == "stored_value" else _CODEC for name in schema.names
            },
            use_dictionary=["kind", "state"],
            write_statistics=["key_group", "kind", "state"],
        ) as to:
            while first or (first := [*islice(tables, 1)]):
                table = first.pop()  # no other reference keeps it in memory
                if len(table):
                    to.write_table(table, row_group_size=len(table))
                del table
                yield from sink.take()
    yield from sink.take()


def decode_canonical(file: BinaryIO, name: str, entries: int) -> Iterator[Changes]:
    """Yield all state of a canonical file, in bounded memory.

    The caller has checked its digest. Before any page is decompressed, this function checks that
    the pages do not expand to more than the file declares.
    """
    for batch in canonical_batches(file, name, entries):
        yield ArrowEntries(*batch.columns).changes()


def canonical_batches(
    file: BinaryIO, name: str, entries: int, key_groups: KeyGroups | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield entries of a canonical file as batches of stored keys and values, without nulls.

    The caller has checked the file. More entries than those of `key_groups` may come; by default
    all come.
    """
    try:
        parquet = pq.ParquetFile(file, buffer_size=1 << 20)
        _check(parquet, name, entries)
        groups = [
            number
            for number in range(parquet.metadata.num_row_groups)
            if key_groups is None or key_groups.may_be_in(parquet.metadata.row_group(number))
        ]
        _check_pages(parquet, file, groups)
        missing = sum(parquet.metadata.row_group(number).num_rows for number in groups)
        for batch in _batches(parquet, groups):
            if any(column.null_count for column in batch.columns):
                raise corrupt_file(name, "an entry has no key or no value")
            missing -= len(batch)
            yield batch
        if missing:
            raise corrupt_file(name, f"{missing} of its {entries} entries are missing")
    except CorruptFileError:
        raise
    except (pa.ArrowException, PageError, OSError, MemoryError, ValueError) as exc:
        # Arrow raises all but one, `ValueError` for a column's name that is not UTF-8.
        raise corrupt_file(name, str(exc)) from exc


def _batches(parquet: pq.ParquetFile, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the entries in batches with a limited number of entries and bytes."""
    for number in groups:
        group = parquet.metadata.row_group(number)
        entry_bytes = group.total_byte_size // max(group.num_rows, 1)
        entries = min(_READ_ENTRIES, max(_READ_BYTES // max(entry_bytes, 1), 1))
        yield from parquet.iter_batches(entries, row_groups=[number], columns=_READ_COLUMNS)


def _codec(column: pa.ChunkedArray) -> str:
    """Return the codec for the values of one state: ``none`` if no sample shrinks.

    Compressing random values took half of the time of a whole file (measured).
    """
    samples = [
        chunk.buffers()[-1][-_SAMPLE_BYTES:]  # an array of nothing has no buffer
        for chunk in column.chunks
        if len(chunk) and chunk.buffers()[-1]
    ]
    if sum(map(len, samples)) < _SAMPLE_BYTES:
        return _CODEC
    gains = [len(pa.compress(each, _CODEC)) < _WORTHWHILE * len(each) for each in samples]
    return _CODEC if any(gains) else "none"


class _Sink:
    """A file for Arrow; :meth:`take` returns and forgets the bytes that were written."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: the bytes are in memory."""

    def close(self) -> None:
        """Do nothing: the last bytes are taken afterwards."""

    def take(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        return parts


class _Names:
    """Returns the key group, kind and state of many entries at once."""

    def __init__(self, handle: Handle) -> None:
        self._states = handle.states

    def table(self, schema: pa.Schema, part: Part) -> pa.Table:
        entries = part if isinstance(part, ArrowEntries) else ArrowEntries.of(part)
        stored_keys = entries.keys
        group, state_id = _heads(stored_keys)
        keyed = group < _KEY_GROUP_END
        columns = [
            pa.array(group, pa.int32(), mask=~keyed),
            *self._kinds_and_names(group, state_id, keyed),
            stored_keys,
            entries.values,
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def _kinds_and_names(self, group: Any, state_id: Any, keyed: Any) -> list[pa.Array]:
        kinds = [each.kind for each in self._states]
        names = [each.name for each in self._states]
        count = len(self._states)
        lowest, highest = int(state_id.min()), int(state_id.max())
        if lowest == highest < count and keyed.all():  # most parts have keyed entries of one state
            return [pa.repeat(texts[lowest], len(group)) for texts in (kinds, names)]
        of_state = (keyed | (group == _OPERATOR_STATE)) & (state_id < count)
        kind = np.where(of_state, state_id, -1)
        for place, mask in enumerate(
            (keyed & (state_id == _TIMERS_ID), group == _TIME_INDEX, group == _RAW_STATE)
        ):
            kind[mask] = count + place
        return [
            _looked_up([*kinds, "timer", "timer-by-time", "raw"], kind, kind >= 0),
            _looked_up(names, state_id, of_state),
        ]


def _heads(keys: pa.Array) -> tuple[Any, Any]:
    """Return the first two bytes of each key as a number, and the third; 0xfe for missing bytes."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    padded = np.concatenate([data, np.full(3, 0xFE, np.uint8)])
    lengths = np.diff(offsets)
    heads = [
        np.where(lengths > place, padded[offsets[:-1] + place], 0xFE).astype(np.int32)
        for place in range(3)
    ]
    return heads[0] * 256 + heads[1], heads[2]


def _looked_up(texts: list[str], places: Any, known: Any) -> pa.Array:
    indices = pa.array(np.where(known, places, 0), pa.int32(), mask=~known)
    return pa.array(texts, pa.string()).take(indices)


def _groups(parts: Iterable[Part], to_table: Callable[[Part], pa.Table]) -> Iterator[pa.Table]:
    """Gather parts into tables of the length of a row group.

    Each part is converted to Arrow at once, so the next part reuses Python's memory. Gathering
    Python objects instead doubled the time to read them (measured).
    """
    tables = (to_table(part) for part in parts if len(part))
    groups = gathered(tables, _GROUP_BYTES, attrgetter("nbytes"), _GROUP_ENTRIES, len)
    try:
        yield from map(pa.concat_tables, groups)
    finally:
        groups.close()
        if isinstance(parts, Generator):
            parts.close()  # in the thread that read from it


def _metadata(handle: Handle) -> dict[bytes, bytes]:
    description = {
        "uid": handle.uid,
        "subtask": handle.subtask,
        "parallelism": handle.parallelism,
        "max_parallelism": handle.max_parallelism,
        "epoch": handle.epoch,
        "key_schema": handle.key_schema,
        "states": handle.states,
    }
    return {
        _VERSION_KEY: str(CANONICAL_FORMAT_VERSION).encode(),
        _DESCRIPTION_KEY: msgspec.json.encode(description),
    }


def _is_newer(version: bytes) -> bool:
    return version.isdigit() and len(version) < 10 and int(version) > CANONICAL_FORMAT_VERSION


def _check(parquet: pq.ParquetFile, name: str, entries: int) -> None:
    metadata = parquet.metadata
    version = (metadata.metadata or {}).get(_VERSION_KEY)
    if version is not None and _is_newer(version):
        raise CorruptFileError(
            f"{name}: canonical format {int(version)} is newer than this library's "
            f"{CANONICAL_FORMAT_VERSION}; upgrade pyspark_ckpt"
        )
    if version != str(CANONICAL_FORMAT_VERSION).encode():
        raise corrupt_file(name, f"it is not a canonical file of format {CANONICAL_FORMAT_VERSION}")
    columns = parquet.schema_arrow
    if columns.names != _COLUMNS.names or columns.types != _COLUMNS.types:
        raise corrupt_file(name, f"it has the columns {columns.names}")
    if metadata.num_rows != entries:
        raise corrupt_file(name, f"it has {metadata.num_rows} entries, but {entries} were written")
    for number in range(metadata.num_row_groups):
        if metadata.row_group(number).total_byte_size > MAX_GROUP_BYTES:
            raise corrupt_file(
                name, f"its row group {number} is too large for a file of this library"
            )


def _check_pages(parquet: pq.ParquetFile, file: BinaryIO, groups: Sequence[int]) -> None:
    metadata = parquet.metadata
    for number in groups:
        group = metadata.row_group(number)
        chunks = [group.column(_COLUMNS.get_field_index(column)) for column in _READ_COLUMNS]
        if sum(chunk.total_uncompressed_size for chunk in chunks) > MAX_GROUP_BYTES:
            raise PageError(f"row group {number} is too large for a file of this library")
        for chunk in chunks:
            check_pages(file, chunk, group.num_rows)


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
