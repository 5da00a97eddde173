"""Value, list and map state: PySpark's methods and return types over a :class:`StateTable`.

Values are tuples in and tuples out. Each state works on the table's current key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pandas as pd

from pyspark_ckpt.operator.state_table import StateTable
from pyspark_ckpt.operator.time_to_live import Aging
from pyspark_ckpt.operator.value_columns import ValueColumns
from pyspark_ckpt.operator.versioned_codec import Codec

Value = tuple[Any, ...]

_chunk_encoder = msgspec.msgpack.Encoder()
_chunk_decoder = msgspec.msgpack.Decoder(list[bytes])
_CHUNK_NUMBER_BYTES = 4
_ITEM_BYTES = 50
"""What an appended value takes in memory beside its bytes."""


class ValueState:
    """One tuple per key; the methods of ``pyspark.sql.streaming.ValueState``.

    Parameters
    ----------
    table, state_id
        The epoch's state, and which one of it this is.
    codec
        Of the state's tuples.
    aging
        How its entries grow old, ``None`` if they never carried a time.
    columns
        The state's schema as pandas columns, for :meth:`getMany` and :meth:`updateMany`.
    """

    def __init__(
        self,
        table: StateTable,
        state_id: bytes,
        codec: Codec,
        aging: Aging | None = None,
        columns: ValueColumns | None = None,
    ) -> None:
        self._table = table
        self._state_id = state_id
        self._codec = codec
        self._aging = aging
        self._columns = columns

    def exists(self) -> bool:
        """Tell whether the key has a value."""
        data = self._table.get_prefetched(self._state_id)
        return data is not None and (self._aging is None or self._aging.shown(data) is not None)

    def get(self) -> Value | None:
        """Return the key's value, ``None`` if it has none."""
        data = self._table.get_prefetched(self._state_id)
        if data is None:
            return None
        if self._aging is None:
            return self._codec.decode(data)
        shown = self._aging.shown(data)
        if shown is None:
            return None
        renewed = self._aging.renewed(data)
        if renewed is not None:
            self._table.put(self._table.stored_key(self._state_id), renewed)
        return self._codec.decode(shown)

    def update(self, newValue: Value) -> None:
        """Set the key's value."""
        data = self._codec.encode(newValue)
        if self._aging is not None:
            data = self._aging.stamp() + data
        self._table.put(self._table.stored_key(self._state_id), data)

    def clear(self) -> None:
        """Remove the key's value."""
        self._table.delete(self._table.stored_key(self._state_id))

    def getMany(self, keys: pd.DataFrame) -> pd.DataFrame:
        """Return the values of several keys as columns, a row per key in their order.

        For ``handleInputBatch``. A key without a value has nulls in all columns; numbers come as
        pandas' nullable types, which keep 64-bit integers exact.

        Parameters
        ----------
        keys
            The frame of keys that ``handleInputBatch`` got, or some of its rows.
        """
        stored_keys = self._table.stored_keys(self._state_id, keys.index.tolist())
        values: list[Value | None] = []
        for key, data in zip(stored_keys, self._table.get_many(stored_keys), strict=True):
            values.append(None if data is None else self._read(key, data))
        return self._value_columns.frame(values, keys.index)

    def updateMany(self, keys: pd.DataFrame, values: pd.DataFrame) -> None:
        """Set the values of several keys from columns, a row per key in their order.

        Parameters
        ----------
        keys
            The frame of keys that ``handleInputBatch`` got, or some of its rows.
        values
            The state's columns by name, as many rows as `keys`.
        """
        stored_keys = self._table.stored_keys(self._state_id, keys.index.tolist())
        stamp = b"" if self._aging is None else self._aging.stamp()
        rows = self._value_columns.rows(values, len(stored_keys))
        for key, row in zip(stored_keys, rows, strict=True):
            self._table.put(key, stamp + self._codec.encode(row))

    def clearMany(self, keys: pd.DataFrame) -> None:
        """Remove the values of several keys of ``handleInputBatch``."""
        for key in self._table.stored_keys(self._state_id, keys.index.tolist()):
            self._table.delete(key)

    def _read(self, key: bytes, data: bytes) -> Value | None:
        if self._aging is None:
            return self._codec.decode(data)
        shown = self._aging.shown(data)
        renewed = None if shown is None else self._aging.renewed(data)
        if renewed is not None:
            self._table.put(key, renewed)
        return None if shown is None else self._codec.decode(shown)

    @property
    def _value_columns(self) -> ValueColumns:
        assert self._columns is not None  # the processor's handle gives them
        return self._columns


class ListState:
    """A list of tuples per key; the methods of ``pyspark.sql.streaming.ListState``.

    Each epoch's appended values become one chunk at the barrier, so appending never rewrites the
    list. The entry at the list's own key counts the chunks; the list exists as long as it does.
    With a time to live, each chunk has its own.
    """

    def __init__(
        self, table: StateTable, state_id: bytes, codec: Codec, aging: Aging | None = None
    ) -> None:
        self._table = table
        self._state_id = state_id
        self._codec = codec
        self._aging = aging
        self._appended: dict[bytes, _Chunk] = {}
        table.before_barrier(self._write_chunks)

    def exists(self) -> bool:
        """Tell whether the key's list has a value."""
        data = self._header()
        if data is None or self._aging is None or self._aging.shown(data) is not None:
            return data is not None
        # The header may age in another time than an older chunk does.
        below = self._table.scan(self._prefix())
        return any(self._aging.shown(chunk) is not None for _, chunk in below)

    def get(self) -> Iterator[Value]:
        """Return an iterator over the key's values in order."""
        return self._values(self._prefix())

    def put(self, newState: list[Value]) -> None:
        """Replace the key's list; an empty one clears it, which PySpark refuses."""
        encoded = [self._codec.encode(value) for value in newState]
        self.clear()
        self._append(encoded)

    def appendValue(self, newState: Value) -> None:
        """Append one value."""
        self._append([self._codec.encode(newState)])

    def appendList(self, newState: list[Value]) -> None:
        """Append several values; none change nothing, which PySpark refuses."""
        self._append([self._codec.encode(value) for value in newState])

    def clear(self) -> None:
        """Remove the key's list."""
        prefix = self._prefix()
        self._appended.pop(prefix, None)  # first: a spill in between would write it
        for key, _ in list(self._table.scan(prefix)):
            self._table.write_below(prefix, key, None)

    def _prefix(self) -> bytes:
        return self._table.stored_key(self._state_id)

    def _header(self) -> bytes | None:
        return self._table.get_prefetched(self._state_id)

    def _values(self, prefix: bytes) -> Iterator[Value]:
        appended = self._appended.get(prefix)
        pending = [] if appended is None else list(appended.items)
        for key, data in self._table.scan(prefix):
            chunk = data if self._aging is None else self._shown(prefix, key, data)
            if key != prefix and chunk is not None:
                for item in _chunk_decoder.decode(chunk):
                    yield self._codec.decode(item)
        for item in pending:
            yield self._codec.decode(item)

    def _shown(self, prefix: bytes, key: bytes, data: bytes) -> bytes | None:
        assert self._aging is not None
        shown = self._aging.shown(data)
        renewed = None if shown is None else self._aging.renewed(data)
        if renewed is not None:
            self._table.write_below(prefix, key, renewed)
        return shown

    def _append(self, encoded: list[bytes]) -> None:
        if not encoded:
            return
        prefix = self._prefix()
        stamp = b"" if self._aging is None else self._aging.stamp()
        chunk = self._appended.get(prefix)
        if chunk is not None and stamp <= chunk.stamp:
            self._extend(chunk, encoded)
            return
        header = self._header()
        if chunk is None:
            chunk = self._appended[prefix] = _Chunk(_number_of_chunks(header))
        chunk.stamp = stamp
        if self._aging is not None and header is not None:
            stamp = self._aging.stamp_over(header)  # the header lives as long as any chunk
        self._extend(chunk, encoded)
        number = (chunk.number + 1).to_bytes(_CHUNK_NUMBER_BYTES, "big")
        self._table.write_below(prefix, prefix, stamp + number)

    def _extend(self, chunk: _Chunk, encoded: list[bytes]) -> None:
        chunk.items.extend(encoded)
        # Last: a spill takes the chunk away, with what is in it.
        self._table.hold_back(sum(map(len, encoded)) + _ITEM_BYTES * len(encoded))

    def _write_chunks(self) -> None:
        appended, self._appended = self._appended, {}
        for prefix, chunk in appended.items():
            key = prefix + chunk.number.to_bytes(_CHUNK_NUMBER_BYTES, "big")
            self._table.write_below(prefix, key, chunk.stamp + _chunk_encoder.encode(chunk.items))


def _number_of_chunks(header: bytes | None) -> int:
    # The number ends the entry, whatever stamp stands before it.
    return 0 if header is None else int.from_bytes(header[-_CHUNK_NUMBER_BYTES:], "big")


class _Chunk:
    """Values appended to a list since the last chunk was written."""

    __slots__ = ("items", "number", "stamp")

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: list[bytes] = []
        self.stamp = b""


class MapState:
    """A map of tuples to tuples per key; the methods of ``pyspark.sql.streaming.MapState``.

    Each entry is stored on its own: one lookup reads one entry, however wide the map.

    Parameters
    ----------
    table, state_id
        The epoch's state, and which one of it this is.
    key_codec, codec
        Of the map's keys and values.
    aging
        How its entries grow old, ``None`` if they never carried a time.
    row_type
        Class of the values that :meth:`getValue` returns.
    """

    def __init__(
        self,
        table: StateTable,
        state_id: bytes,
        key_codec: Codec,
        codec: Codec,
        aging: Aging | None = None,
        row_type: type[tuple[Any, ...]] = tuple,
    ) -> None:
        self._row_type = row_type
        self._table = table
        self._state_id = state_id
        self._key_codec = key_codec
        self._codec = codec
        self._aging = aging

    def exists(self) -> bool:
        """Tell whether the key's map has an entry."""
        prefix = self._prefix()
        if self._aging is None:
            return self._table.has_any_below(prefix)
        return any(self._aging.shown(data) is not None for _, data in self._table.scan(prefix))

    def getValue(self, key: Value) -> Value | None:
        """Return an entry's value, a Row as in PySpark, ``None`` if there is none."""
        data = self._read(*self._entry_key(key))
        return None if data is None else tuple.__new__(self._row_type, self._codec.decode(data))

    def containsKey(self, key: Value) -> bool:
        """Tell whether the map has an entry."""
        data = self._table.get(self._entry_key(key)[1])
        return data is not None and (self._aging is None or self._aging.shown(data) is not None)

    def updateValue(self, key: Value, value: Value) -> None:
        """Set an entry."""
        prefix, entry_key = self._entry_key(key)
        data = self._codec.encode(value)
        if self._aging is not None:
            data = self._aging.stamp() + data
        self._table.write_below(prefix, entry_key, data)

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        """Return an iterator over all entries."""
        return self._entries(self._prefix())

    def keys(self) -> Iterator[Value]:
        """Return an iterator over all entries' keys."""
        return (key for key, _ in self._entries(self._prefix()))

    def values(self) -> Iterator[Value]:
        """Return an iterator over all entries' values."""
        return (value for _, value in self._entries(self._prefix()))

    def removeKey(self, key: Value) -> None:
        """Remove an entry."""
        prefix, entry_key = self._entry_key(key)
        self._table.write_below(prefix, entry_key, None)

    def clear(self) -> None:
        """Remove all entries."""
        prefix = self._prefix()
        for key, _ in list(self._table.scan(prefix)):
            self._table.write_below(prefix, key, None)

    def _entries(self, prefix: bytes) -> Iterator[tuple[Value, Value]]:
        for key, stored in self._table.scan(prefix):
            data = stored if self._aging is None else self._shown(prefix, key, stored)
            if data is not None:
                yield self._key_codec.decode(key[len(prefix) :]), self._codec.decode(data)

    def _read(self, prefix: bytes, entry_key: bytes) -> bytes | None:
        data = self._table.get(entry_key)
        if data is None or self._aging is None:
            return data
        return self._shown(prefix, entry_key, data)

    def _shown(self, prefix: bytes, entry_key: bytes, data: bytes) -> bytes | None:
        assert self._aging is not None
        shown = self._aging.shown(data)
        renewed = None if shown is None else self._aging.renewed(data)
        if renewed is not None:
            self._table.write_below(prefix, entry_key, renewed)
        return shown

    def _prefix(self) -> bytes:
        return self._table.stored_key(self._state_id)

    def _entry_key(self, key: Value) -> tuple[bytes, bytes]:
        prefix = self._prefix()
        return prefix, prefix + self._key_codec.encode(key)
