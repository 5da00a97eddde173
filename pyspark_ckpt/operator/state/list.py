"""List state: PySpark's methods and return types over a :class:`StateTable`, in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import msgspec

from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import Aging
from pyspark_ckpt.values.codec import Codec, Value

encode_chunk = msgspec.msgpack.Encoder().encode
"""Encodes a list of encoded values as a chunk."""

decode_chunk = msgspec.msgpack.Decoder(list[bytes]).decode
"""Decodes a chunk to its list of encoded values."""

_CHUNK_NUMBER_BYTES = 4
_FEW_CHUNKS = 4
"""Up to so many chunks are read by their keys, for many keys at once; more are read by a scan."""

_ITEM_BYTES = 50
"""Memory of an appended value, in addition to its bytes."""


class ListState:
    """A list of tuples per key, with the methods of ``pyspark.sql.streaming.ListState``.

    ``handle.getListState`` returns it in ``init``. A processor calls its methods on executors, for
    the key that it handles. Changes are durable when the epoch is committed.

    Each epoch's appended values become one chunk at the barrier, so appending never rewrites the
    list. The entry at the list's own key, its head, counts the chunks; the list exists as long as
    the head does. With a time to live, each chunk has its own, and the head is as young as the
    youngest chunk.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    state_id : bytes
        Which state of the table this is.
    codec : Codec
        Encodes and decodes the list's tuples.
    aging : Aging, optional
        How entries grow old; without it they never expire.

    Examples
    --------
    >>> visits = handle.getListState("visits", "city string")
    >>> visits.appendValue(("Oslo",))
    >>> visits.appendValue(("Rome",))
    >>> list(visits.get())
    [('Oslo',), ('Rome',)]
    """

    def __init__(
        self, table: StateTable, state_id: bytes, codec: Codec, aging: Aging | None = None
    ) -> None:
        self._table = table
        self._state_id = state_id
        self._codec = codec
        self._aging = aging
        self._appended: dict[bytes, _Chunk] = {}
        self._counted: tuple[bytes, int] | None = None
        self._noted: tuple[int, bytes] | None = None
        table.before_barrier(self._write_chunks)

    def exists(self) -> bool:
        """Return whether :meth:`get` would return a value. It renews and removes none.

        Returns
        -------
        bool
            False for an empty list.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> visits.exists()
        False
        """
        header = self._header()
        if header is None or self._aging is None:
            return header is not None
        prefix = self._prefix()
        if prefix in self._appended:  # in this epoch, in which nothing of it expires
            return True
        # The head does not say: chunks may have been read and removed, and times were switched.
        below = self._table.scan(prefix)
        return any(self._aging.shown(chunk) is not None for key, chunk in below if key != prefix)

    def get(self) -> Iterator[Value]:
        """Return an iterator over the key's values in order, as they are now.

        Returns
        -------
        iterator of tuple
            Each with one value per field of the schema; empty if the key has no list.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> list(visits.get())
        []
        """
        prefix = self._prefix()
        appended = self._appended.get(prefix)
        count = self._count(prefix) if appended is None else appended.number
        chunks = self._chunks(prefix, count)
        return self._decode(chunks, [] if appended is None else list(appended.items))

    def put(self, newState: list[Value]) -> None:
        """Replace the key's list; an empty one clears it, which PySpark refuses.

        Parameters
        ----------
        newState : list of tuple
            The new values in order.

        Raises
        ------
        StateValueError
            If a value does not fit the schema.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> visits.put([("Oslo",), ("Rome",)])
        >>> len(list(visits.get()))
        2
        """
        encoded = self._codec.encode_all(newState)
        prefix = self._prefix()
        self._note(prefix)
        if encoded and self._aging is None and self._count(prefix) == 1:
            chunk = self._appended[prefix] = _Chunk(0)  # replaces the stored chunk
            self._extend(chunk, encoded)
            return
        self.clear()
        self._append(encoded)

    def appendValue(self, newState: Value) -> None:
        """Append one value.

        Parameters
        ----------
        newState : tuple
            One value per field of the schema.

        Raises
        ------
        StateValueError
            If the value does not fit the schema.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> visits.appendValue(("Oslo",))
        >>> visits.exists()
        True
        """
        self._append([self._codec.encode(newState)])

    def appendList(self, newState: list[Value]) -> None:
        """Append several values; an empty list changes nothing, which PySpark refuses.

        Parameters
        ----------
        newState : list of tuple
            The values in order.

        Raises
        ------
        StateValueError
            If a value does not fit the schema.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> visits.appendList([("Oslo",), ("Rome",)])
        >>> list(visits.get())
        [('Oslo',), ('Rome',)]
        """
        self._append(self._codec.encode_all(newState))

    def clear(self) -> None:
        """Remove the key's list.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> visits.appendValue(("Oslo",))
        >>> visits.clear()
        >>> visits.exists()
        False
        """
        prefix = self._prefix()
        self._note(prefix)
        self._appended.pop(prefix, None)  # first, because a spill in between would write it
        self._counted = None
        for key in list(self._written_keys(prefix)):
            self._table.write_below(prefix, key, None)

    def _prefix(self) -> bytes:
        return self._table.stored_key(self._state_id)

    def _header(self) -> bytes | None:
        return self._table.get_prefetched(self._state_id)

    def _count(self, prefix: bytes) -> int:
        """Return the number of chunks of the current key's list; it is cached for the next call."""
        if self._counted is None or self._counted[0] != prefix:
            self._counted = prefix, _number_of_chunks(self._header())
        return self._counted[1]

    def _chunk(self, number: bytes) -> bytes | None:
        return self._table.get_prefetched(self._state_id, number)

    def _written_keys(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the keys of the list's entries, and perhaps keys without an entry."""
        header = self._header()
        count = _number_of_chunks(header)
        if self._aging is not None or count > _FEW_CHUNKS:
            yield from (key for key, _ in self._table.scan(prefix))
        elif header is not None:
            yield prefix
            yield from (prefix + _encoded_number(number) for number in range(count))

    def _chunks(self, prefix: bytes, count: int) -> Iterable[bytes]:
        """Return the list's first `count` chunks, without expired ones."""
        if self._aging is not None:  # a chunk may expire later than the entry that counts it
            return self._scan(prefix)
        if count > _FEW_CHUNKS:
            return self._scan(prefix, prefix + _encoded_number(count))
        few = [self._chunk(_encoded_number(number)) for number in range(count)]
        return [chunk for chunk in few if chunk is not None]

    def _scan(self, prefix: bytes, end: bytes | None = None) -> Iterator[bytes]:
        entries = self._table.scan(prefix, end)
        # The first entry is read now, because a scan yields the entries as they are at its start.
        entries = chain(list(islice(entries, 1)), entries)
        if self._aging is not None:
            return self._aged(self._aging, prefix, entries)
        return (data for key, data in entries if key != prefix)

    def _aged(
        self, aging: Aging, prefix: bytes, entries: Iterable[tuple[bytes, bytes]]
    ) -> Iterator[bytes]:
        """Yield what reading the chunks gives, and write what reading leaves of them."""
        header, lives = None, False
        for key, data in entries:
            if key == prefix:
                header = data
                continue
            shown, left = aging.read(data)
            if left is not data and self._table.is_still(key, data):
                self._table.write_below(prefix, key, left)
            if left is not None and not lives:
                lives = True
                if header is not None:
                    self._leave_header(prefix, header, aging.renewed(header) or header)
            if shown is not None:
                yield shown
        if header is not None and not lives and prefix not in self._appended:
            self._leave_header(prefix, header, None)

    def _leave_header(self, prefix: bytes, header: bytes, left: bytes | None) -> None:
        """Write what a read of the chunks leaves of the head, unless it has changed since."""
        if left is not header and self._table.is_still(prefix, header):
            self._counted = None
            self._table.write_below(prefix, prefix, left)

    def _decode(self, chunks: Iterable[bytes], pending: list[bytes]) -> Iterator[Value]:
        items = chain.from_iterable(map(decode_chunk, chunks))
        # A generator ends at an error; `map` would continue with the next value.
        yield from map(self._codec.decode, chain(items, pending))

    def _append(self, encoded: list[bytes]) -> None:
        if not encoded:
            return
        prefix = self._prefix()
        self._note(prefix)
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
        self._counted = None
        self._table.write_below(prefix, prefix, stamp + _encoded_number(chunk.number + 1))

    def _extend(self, chunk: _Chunk, encoded: list[bytes]) -> None:
        chunk.items.extend(encoded)
        # Last, because a spill takes the chunk away with its values.
        self._table.hold_back(sum(map(len, encoded)) + _ITEM_BYTES * len(encoded))

    def _note(self, prefix: bytes) -> None:
        """Note how to take back what the call under way is about to append."""
        log = self._table.undo_log
        if log is None or self._noted == (log.call, prefix):
            return
        self._noted = log.call, prefix
        chunk = self._appended.get(prefix)
        items, stamp = (0, b"") if chunk is None else (len(chunk.items), chunk.stamp)
        log.add(lambda: self._take_back(prefix, chunk, items, stamp))

    def _take_back(self, prefix: bytes, chunk: _Chunk | None, items: int, stamp: bytes) -> None:
        self._counted = None
        if chunk is None:
            self._appended.pop(prefix, None)
            return
        del chunk.items[items:]
        chunk.stamp = stamp
        self._appended[prefix] = chunk

    def _write_chunks(self) -> None:
        appended, self._appended = self._appended, {}
        for prefix, chunk in appended.items():
            # No scan reads these writes from memory: they leave it now.
            key = prefix + _encoded_number(chunk.number)
            self._table.put(key, chunk.stamp + encode_chunk(chunk.items))


def _number_of_chunks(header: bytes | None) -> int:
    # The number is at the end of the entry, after a stamp if there is one.
    return 0 if header is None else int.from_bytes(header[-_CHUNK_NUMBER_BYTES:], "big")


def _encoded_number(number: int) -> bytes:
    return number.to_bytes(_CHUNK_NUMBER_BYTES, "big")


class _Chunk:
    """Values appended to a list after its last chunk was written."""

    __slots__ = ("items", "number", "stamp")

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: list[bytes] = []
        self.stamp = b""
