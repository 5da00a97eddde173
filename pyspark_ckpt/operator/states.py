"""Value, list and map state: PySpark's methods and return types over a :class:`StateTable`.

Values are tuples in and tuples out. Each state works on the table's current key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pyspark_ckpt.operator.codec import TupleCodec
from pyspark_ckpt.operator.state_table import StateTable

Value = tuple[Any, ...]

_chunk_encoder = msgspec.msgpack.Encoder()
_chunk_decoder = msgspec.msgpack.Decoder(list[bytes])
_CHUNK_NUMBER_BYTES = 4
_NOTHING_APPENDED: tuple[int, list[bytes]] = (0, [])


class ValueState:
    """One tuple per key; the methods of ``pyspark.sql.streaming.ValueState``."""

    def __init__(self, table: StateTable, state_id: bytes, codec: TupleCodec) -> None:
        self._table = table
        self._state_id = state_id
        self._codec = codec

    def exists(self) -> bool:
        """Tell whether the key has a value."""
        return self._table.get_prefetched(self._state_id) is not None

    def get(self) -> Value | None:
        """Return the key's value, ``None`` if it has none."""
        data = self._table.get_prefetched(self._state_id)
        return None if data is None else self._codec.decode(data)

    def update(self, newValue: Value) -> None:
        """Set the key's value."""
        self._table.put(self._table.stored_key(self._state_id), self._codec.encode(newValue))

    def clear(self) -> None:
        """Remove the key's value."""
        self._table.delete(self._table.stored_key(self._state_id))


class ListState:
    """A list of tuples per key; the methods of ``pyspark.sql.streaming.ListState``.

    Each epoch's appended values become one chunk at the barrier, so appending never rewrites the
    list. The entry at the list's own key counts the chunks; the list exists as long as it does.
    """

    def __init__(self, table: StateTable, state_id: bytes, codec: TupleCodec) -> None:
        self._table = table
        self._state_id = state_id
        self._codec = codec
        self._appended: dict[bytes, tuple[int, list[bytes]]] = {}
        table.before_barrier(self._write_chunks)

    def exists(self) -> bool:
        """Tell whether the key's list has a value."""
        return self._table.get_prefetched(self._state_id) is not None

    def get(self) -> Iterator[Value]:
        """Yield the key's values in order."""
        prefix = self._table.stored_key(self._state_id)
        for key, data in self._table.scan(prefix):
            if key != prefix:
                for item in _chunk_decoder.decode(data):
                    yield self._codec.decode(item)
        for item in list(self._appended.get(prefix, _NOTHING_APPENDED)[1]):
            yield self._codec.decode(item)

    def put(self, newState: list[Value]) -> None:
        """Replace the key's list."""
        encoded = [self._codec.encode(value) for value in newState]
        self.clear()
        self._append(encoded)

    def appendValue(self, newState: Value) -> None:
        """Append one value."""
        self._append([self._codec.encode(newState)])

    def appendList(self, newState: list[Value]) -> None:
        """Append several values."""
        self._append([self._codec.encode(value) for value in newState])

    def clear(self) -> None:
        """Remove the key's list."""
        prefix = self._table.stored_key(self._state_id)
        for key, _ in list(self._table.scan(prefix)):
            self._table.write_below(prefix, key, None)
        self._appended.pop(prefix, None)

    def _append(self, encoded: list[bytes]) -> None:
        if not encoded:
            return
        prefix = self._table.stored_key(self._state_id)
        chunk = self._appended.get(prefix)
        if chunk is None:
            count = self._table.get_prefetched(self._state_id)
            number = 0 if count is None else int.from_bytes(count, "big")
            chunk = self._appended[prefix] = (number, [])
            self._table.write_below(
                prefix, prefix, (number + 1).to_bytes(_CHUNK_NUMBER_BYTES, "big")
            )
        chunk[1].extend(encoded)

    def _write_chunks(self) -> None:
        for prefix, (number, items) in self._appended.items():
            key = prefix + number.to_bytes(_CHUNK_NUMBER_BYTES, "big")
            self._table.write_below(prefix, key, _chunk_encoder.encode(items))
        self._appended.clear()


class MapState:
    """A map of tuples to tuples per key; the methods of ``pyspark.sql.streaming.MapState``.

    Each entry is stored on its own: one lookup reads one entry, however wide the map.
    """

    def __init__(
        self, table: StateTable, state_id: bytes, key_codec: TupleCodec, codec: TupleCodec
    ) -> None:
        self._table = table
        self._state_id = state_id
        self._key_codec = key_codec
        self._codec = codec

    def exists(self) -> bool:
        """Tell whether the key's map has an entry."""
        return self._table.has_any_below(self._table.stored_key(self._state_id))

    def getValue(self, key: Value) -> Value | None:
        """Return an entry's value, ``None`` if there is none."""
        data = self._table.get(self._entry_key(key)[1])
        return None if data is None else self._codec.decode(data)

    def containsKey(self, key: Value) -> bool:
        """Tell whether the map has an entry."""
        return self._table.get(self._entry_key(key)[1]) is not None

    def updateValue(self, key: Value, value: Value) -> None:
        """Set an entry."""
        prefix, entry_key = self._entry_key(key)
        self._table.write_below(prefix, entry_key, self._codec.encode(value))

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        """Yield all entries."""
        prefix = self._table.stored_key(self._state_id)
        for key, data in self._table.scan(prefix):
            yield self._key_codec.decode(key[len(prefix) :]), self._codec.decode(data)

    def keys(self) -> Iterator[Value]:
        """Yield all entries' keys."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Value]:
        """Yield all entries' values."""
        return (value for _, value in self.iterator())

    def removeKey(self, key: Value) -> None:
        """Remove an entry."""
        prefix, entry_key = self._entry_key(key)
        self._table.write_below(prefix, entry_key, None)

    def clear(self) -> None:
        """Remove all entries."""
        prefix = self._table.stored_key(self._state_id)
        for key, _ in list(self._table.scan(prefix)):
            self._table.write_below(prefix, key, None)

    def _entry_key(self, key: Value) -> tuple[bytes, bytes]:
        prefix = self._table.stored_key(self._state_id)
        return prefix, prefix + self._key_codec.encode(key)
