"""The writes of one epoch, held back until the barrier: in memory, above a limit on disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from state_backends import Changes, StateBackend, StateBackendError, in_parts, open_temporary

Write = bytes | None
"""A value, or ``None`` for a delete."""

NOT_WRITTEN: Any = object()
"""The result for a key that the epoch has not written."""

DEFAULT_LIMIT_BYTES = 256 * 1024**2
FRAME_ENTRIES = 10_000
FRAME_BYTES = 8 << 20
"""A frame ends when it reaches one of the two limits."""

_MOVED_BYTES = 1 << 20
"""Bytes that are moved to disk, or read from it, at once."""

_ENTRY_BYTES = 250
"""Memory of an entry in addition to its bytes: two objects, two dictionary slots."""

_MOST_BELOW_EACH = 64
"""Most groups of entries, each below another prefix, that a scan looks for its prefix in."""

_DELETED = b"\x00"
_PUT = b"\x01"


class EpochWrites:
    """Puts and deletes of an epoch, the last one of each key.

    If the writes take more than `limit_bytes` of memory, they move to a temporary store in
    `directory`, by default in the system's temporary directory.
    """

    def __init__(
        self, limit_bytes: int = DEFAULT_LIMIT_BYTES, directory: Path | None = None
    ) -> None:
        self._limit_bytes = limit_bytes
        self._directory = directory
        self._memory: dict[bytes, Write] = {}
        self._below: dict[bytes, dict[bytes, Write]] = {}
        self._below_each: list[dict[bytes, bytes]] = []
        self._bytes = 0
        self._held_back_bytes = 0
        self._spilled: StateBackend | None = None
        self._spill_place: Path | None = None
        self._spills = count(1)
        self._spilled_entries = 0
        self._before_spill: list[Callable[[], None]] = []
        self._failure: BaseException | None = None

    @property
    def is_spilled(self) -> bool:
        """Whether some writes lie on disk."""
        return self._spilled is not None

    def __len__(self) -> int:
        """Return the number of entries in memory."""
        return len(self._memory)

    @property
    def entries(self) -> int:
        """The number of entries, in memory and on disk.

        An entry that is written again after it was moved to disk counts again.
        """
        return len(self._memory) + self._spilled_entries

    def find(self, key: bytes) -> Any:
        """Return what the epoch last wrote to a key, or :data:`NOT_WRITTEN`."""
        write = self._memory.get(key, NOT_WRITTEN)
        if write is NOT_WRITTEN and self._spilled is not None:
            stored = self._spilled.get_many([key])[0]
            return NOT_WRITTEN if stored is None else _decode(stored)
        return write

    def find_many(self, keys: Sequence[bytes]) -> list[Any]:
        """Return :meth:`find` of several keys, with one read from disk."""
        writes: list[Any] = [self._memory.get(key, NOT_WRITTEN) for key in keys]
        if self._spilled is None:
            return writes
        places = [place for place, write in enumerate(writes) if write is NOT_WRITTEN]
        spilled = self._spilled.get_many([keys[place] for place in places])
        for place, stored in zip(places, spilled, strict=True):
            if stored is not None:
                writes[place] = _decode(stored)
        return writes

    def add(self, key: bytes, value: Write) -> None:
        """Write one entry that no scan has to see."""
        self._memory[key] = value
        self._bytes += _ENTRY_BYTES + len(key) + (len(value) if value is not None else 0)
        if self._bytes + self._held_back_bytes > self._limit_bytes:
            self.spill()

    def add_many(self, keys: Sequence[bytes], values: Sequence[Write]) -> None:
        """Write several entries that no scan has to see; a spill may come between them."""
        for start in range(0, len(keys), FRAME_ENTRIES):
            end = start + FRAME_ENTRIES
            self._add_some(keys[start:end], values[start:end])

    def add_below(self, prefix: bytes, key: bytes, value: Write) -> None:
        """Write one entry that :meth:`scan` of `prefix` must see."""
        below = self._below.get(prefix)
        if below is None:
            self._below[prefix] = {key: value}
        else:
            below[key] = value
        # As in `add`; calling it would cost another call for each write.
        self._memory[key] = value
        self._bytes += _ENTRY_BYTES + len(key) + (len(value) if value is not None else 0)
        if self._bytes + self._held_back_bytes > self._limit_bytes:
            self.spill()

    def add_many_below(self, prefix: bytes, keys: Sequence[bytes], value: Write) -> None:
        """Write one value to several entries that :meth:`scan` of `prefix` must see."""
        for start in range(0, len(keys), FRAME_ENTRIES):
            some = keys[start : start + FRAME_ENTRIES]
            self._below.setdefault(prefix, {}).update(dict.fromkeys(some, value))
            self._add_some(some, [value] * len(some))

    def add_below_each(
        self, prefixes: Sequence[bytes], keys: Sequence[bytes], value: Write
    ) -> None:
        """Write one value to several entries, each of which :meth:`scan` of its prefix must see."""
        for start in range(0, len(keys), FRAME_ENTRIES):
            end = start + FRAME_ENTRIES
            some = keys[start:end]
            of_prefixes = dict(zip(prefixes[start:end], some, strict=True))
            if len(of_prefixes) < len(some) or len(self._below_each) == _MOST_BELOW_EACH:
                for prefix, key in zip(prefixes[start:end], some, strict=True):
                    self.add_below(prefix, key, value)
                continue
            # Most prefixes are never scanned, and a dictionary for each would cost the most.
            self._below_each.append(of_prefixes)
            self._add_some(some, [value] * len(some))

    def _add_some(self, keys: Sequence[bytes], values: Sequence[Write]) -> None:
        self._memory.update(zip(keys, values, strict=True))
        self._bytes += _ENTRY_BYTES * len(keys)
        self._bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))
        if self._bytes + self._held_back_bytes > self._limit_bytes:
            self.spill()

    def _written_below(self, prefix: bytes) -> dict[bytes, Write]:
        """Return the writes in memory that a scan of a prefix must see."""
        for of_prefixes in self._below_each:
            key = of_prefixes.get(prefix)
            if key is not None:
                self._below.setdefault(prefix, {})[key] = self._memory[key]
        return self._below.get(prefix, {})

    def newest_below(self, prefix: bytes) -> Write:
        """Return the newest write in memory below a prefix, ``None`` for a delete or no write."""
        written = self._written_below(prefix)
        return next(reversed(written.values())) if written else None

    def first_below(self, prefix: bytes) -> bytes | None:
        """Return the lowest key below a prefix that has a value in memory, without sorting."""
        written = self._written_below(prefix)
        return min((key for key, value in written.items() if value is not None), default=None)

    def scan(self, prefix: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, Write]]:
        """Yield the writes below a prefix in key order, deletes included, at least up to `end`."""
        written: Iterable[tuple[bytes, Write]] = self._written_below(prefix).items()
        if end is not None:  # only the wanted writes are sorted
            written = [write for write in written if write[0] < end]
        in_memory = iter(sorted(written))
        if self._spilled is None:
            return in_memory
        spilled = ((key, _decode(stored)) for key, stored in self._spilled.scan(prefix))
        return overlaid(spilled, in_memory)

    def before_spill(self, write_pending: Callable[[], None]) -> None:
        """Register a callback by which a state hands over the writes that it holds back."""
        self._before_spill.append(write_pending)

    def hold_back(self, size_bytes: int) -> None:
        """Count the bytes of writes that a state holds back until it hands them over."""
        self._held_back_bytes += size_bytes
        if self._bytes + self._held_back_bytes > self._limit_bytes:
            self.spill()

    def hand_over_pending(self) -> None:
        """Make the states hand over the writes that they hold back."""
        self._held_back_bytes = 0
        for write_pending in self._before_spill:
            write_pending()

    def spill(self) -> None:
        """Move all writes in memory to disk.

        If it fails, it raises the error now and at every later :meth:`spill` or
        :meth:`all_in_order`. A processor may catch the first error, but its epoch must not end
        without these writes.
        """
        self._check_complete()
        self._bytes = 0  # the writes that are handed over now must not spill again
        try:
            self.hand_over_pending()
            if self._spilled is None:
                self._spill_place = Path(tempfile.mkdtemp(prefix="spilled-", dir=self._directory))
                self._spilled = open_temporary(self._spill_place / "writes")
            self._below.clear()
            self._below_each.clear()
            self._spilled_entries += len(self._memory)
            self._spilled.apply(self._taken_in_order(), str(next(self._spills)))
        except BaseException as exc:
            self._failure = exc
            raise
        self._bytes = 0

    def _check_complete(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _taken_in_order(self) -> Iterator[Changes]:
        """Take the writes out of memory in key order, encoded for the store on disk.

        In small parts, because memory is full: encoding all writes at once would double it.
        """
        memory = self._memory
        encoded = ((key, _encode(memory.pop(key))) for key in sorted(memory))
        yield from in_parts(encoded, FRAME_ENTRIES, _MOVED_BYTES)

    def all_in_order(self) -> Iterator[Changes]:
        """Yield all writes in key order, in frames.

        If an earlier :meth:`spill` failed, it raises that error, because some writes are lost.
        """
        self._check_complete()
        self.hand_over_pending()
        if self._spilled is None:
            yield from self._frames_in_memory()
            return
        in_memory = ((key, self._memory[key]) for key in sorted(self._memory))
        yield from in_frames(overlaid(_read_once(self._spilled), in_memory))

    def _frames_in_memory(self) -> Iterator[Changes]:
        keys = sorted(self._memory)
        for start in range(0, len(keys), FRAME_ENTRIES):
            frame_keys = keys[start : start + FRAME_ENTRIES]
            values = list(map(self._memory.__getitem__, frame_keys))
            size_bytes = sum(map(len, frame_keys)) + sum(map(len, filter(None, values)))
            if size_bytes < FRAME_BYTES:
                yield Changes(frame_keys, values)
            else:
                yield from in_frames(zip(frame_keys, values, strict=True))

    def close(self) -> None:
        """Remove the writes from disk; safe to call twice."""
        spilled, self._spilled = self._spilled, None
        try:
            if spilled is not None:
                spilled.close()
        except StateBackendError:
            if self._failure is None:
                raise
            # RocksDB fails here as it did in `spill`, and the writes are lost anyway.
        finally:
            if self._spill_place is not None:
                shutil.rmtree(self._spill_place, ignore_errors=True)


def overlaid(
    lower: Iterator[tuple[bytes, Write]], upper: Iterator[tuple[bytes, Write]]
) -> Iterator[tuple[bytes, Write]]:
    """Merge two streams in key order; if both have a key, the upper stream's value is yielded."""
    pending = next(upper, None)
    for key, value in lower:
        while pending is not None and pending[0] < key:
            yield pending
            pending = next(upper, None)
        if pending is not None and pending[0] == key:
            yield pending
            pending = next(upper, None)
        else:
            yield key, value
    if pending is not None:
        yield pending
        yield from upper


def in_frames(entries: Iterator[tuple[bytes, Write]]) -> Iterator[Changes]:
    """Gather entries into frames of :data:`FRAME_ENTRIES`, or of :data:`FRAME_BYTES` at least."""
    return in_parts(entries, FRAME_ENTRIES, FRAME_BYTES)


def frames_of(backend: StateBackend) -> Iterator[Changes]:
    """Yield all state of a backend in frames."""
    return backend.scan_in_parts(FRAME_ENTRIES, FRAME_BYTES)


def _read_once(spilled: StateBackend) -> Iterator[tuple[bytes, Write]]:
    """Yield all writes on disk without filling the cache, because they are read once."""
    for part in spilled.scan_in_parts(FRAME_ENTRIES, _MOVED_BYTES):
        for key, stored in zip(part.keys, part.values, strict=True):
            assert stored is not None  # a delete is encoded, too
            yield key, _decode(stored)


def _encode(write: Write) -> bytes:
    return _DELETED if write is None else _PUT + write


def _decode(stored: bytes) -> Write:
    return None if stored == _DELETED else stored[1:]
