"""One epoch's view of a subtask's state: the backend below, this epoch's writes on top.

:mod:`pyspark_ckpt.operator.table.stored_keys` describes where entries lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.operator.table.keys import Numbers, PartKeys, positions_of
from pyspark_ckpt.operator.table.undo import UndoableWrites, UndoLog
from pyspark_ckpt.operator.table.writes import NOT_WRITTEN, EpochWrites, Write, overlaid
from state_backends import Changes, StateBackend

PREFETCH_KEYS = 16_384
"""Most keys that are read ahead at once."""

PREFETCH_BYTES = 4 << 20
"""Bytes of a state that are read ahead, estimated by the size of the entries read before."""

_FIRST_KEYS = 4
_TIMES_AS_MANY = 16
"""Keys of the first read-ahead, and the factor by which the next may be larger."""

_MOST_RUNS = 64
"""Places of which is known how many keys in a row were asked for an entry there."""

_MOST_OF_RUN = 256
"""Most keys of a run that are read ahead: a larger read takes as long for each key."""


@dataclass(slots=True)
class CurrentKey:
    """The key that the processor is working on, with its place among the part's keys.

    Outside a key, as in ``init``, and in a call for many keys `key_group` is ``None``.
    `is_many` says that it is such a call.
    """

    key_group: bytes | None = None
    key: bytes = b""
    position: int = 0
    event_time_ms: int | None = None
    is_many: bool = False

    @property
    def is_outside(self) -> bool:
        """Whether the processor works on no key."""
        return self.key_group is None and not self.is_many

    def become(self, other: CurrentKey) -> None:
        """Become the key, or the call for many keys, that `other` is."""
        self.key_group, self.key, self.position = other.key_group, other.key, other.position
        self.event_time_ms, self.is_many = other.event_time_ms, other.is_many

    def leave(self) -> None:
        """Leave the key, or the keys: none is current."""
        self.key_group, self.key, self.event_time_ms, self.is_many = None, b"", None, False


@dataclass(frozen=True, slots=True)
class _ReadAhead:
    """A state's stored entries for the keys from position `start` on."""

    start: int
    keys: list[bytes]
    values: list[bytes | None]

    def fitting(self, most_bytes: int) -> int:
        """Return how many such entries have so many bytes, one at least."""
        size_bytes = sum(map(len, filter(None, self.values)))
        return max(1, most_bytes * len(self.keys) // max(size_bytes, 1))


@dataclass(slots=True)
class _Run:
    """Keys in a row that were asked for an entry at the same place below the key.

    `in_row` of them were asked, the last one at position `last`. `ahead` is what was read together,
    and `fitting` how many entries of that size may be.
    """

    last: int
    in_row: int = 1
    fitting: int = _MOST_OF_RUN
    ahead: _ReadAhead | None = None


class StateTable:
    """Reads through and buffers writes until the barrier.

    `backend` is at the version that the epoch starts from, and is not written to. `keys` has the
    key group and encoded key of the first part's keys, in the order of processing. `undo_log` is
    set if the writes of a call can be undone.
    """

    def __init__(
        self,
        backend: StateBackend,
        keys: Sequence[tuple[bytes, bytes]] = (),
        writes: EpochWrites | None = None,
    ) -> None:
        self.current = CurrentKey()
        self._backend = backend
        self._keys = keys
        self._writes = EpochWrites() if writes is None else writes
        self._find = self._writes.find
        self.undo_log = UndoLog() if isinstance(self._writes, UndoableWrites) else None
        self._ahead: dict[bytes, _ReadAhead] = {}
        self._keys_ahead: dict[bytes, int] = {}
        self._runs: dict[bytes, _Run] = {}
        self.reads = 0
        self._missed = 0

    @property
    def cache_hits(self) -> int:
        """Number of reads that did not ask the backend."""
        return self.reads - self._missed

    @property
    def part(self) -> Sequence[tuple[bytes, bytes]]:
        """The keys of the part that the processor works on."""
        return self._keys

    def begin_part(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Continue with another part of the epoch's keys."""
        self._keys = keys
        self._ahead.clear()
        self._runs.clear()

    def enter(self, position: int) -> None:
        """Make one of the part's keys the current one."""
        self.current.key_group, self.current.key = self._keys[position]
        self.current.position = position

    def stored_key(self, state_id: bytes) -> bytes:
        """Return the stored key of a state for the current key."""
        try:
            return self.current.key_group + state_id + self.current.key  # type: ignore[operator]
        except TypeError:
            raise StateUseError(
                "keyed state was used outside a key: use it in handleInputRows, "
                "handleExpiredTimer or handleInitialState, or in a loop over eachKey(keys) of the "
                "handle in a call for many keys, not in init or handleBroadcastRows"
            ) from None

    def positions_of(self, keys: pd.DataFrame | pa.Table, where: str) -> Numbers:
        """Return the positions in the part of keys that a processor gives."""
        return positions_of(keys, self._keys, where)

    def stored_keys(self, state_id: bytes, positions: Numbers) -> list[bytes]:
        """Return a state's stored keys for several keys of the part. The caller keeps the list."""
        keys = self._keys
        if isinstance(keys, PartKeys):
            return keys.below(state_id, positions)
        some = [keys[position] for position in positions.tolist()]
        return [group + state_id + key for group, key in some]

    def get(self, key: bytes) -> bytes | None:
        """Return one entry."""
        self.reads += 1
        write: Write = self._find(key)
        if write is not NOT_WRITTEN:
            return write
        self._missed += 1
        return self._backend.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return several entries, in their order."""
        self.reads += len(keys)
        if not self._writes.entries:
            self._missed += len(keys)
            return self._backend.get_many(keys)
        values = self._writes.find_many(keys)
        places = [place for place, write in enumerate(values) if write is NOT_WRITTEN]
        stored = self._backend.get_many([keys[place] for place in places])
        for place, value in zip(places, stored, strict=True):
            values[place] = value
        self._missed += len(places)
        return values

    def get_prefetched(self, state_id: bytes, below: bytes = b"") -> bytes | None:
        """Return an entry of the current key, read together with those of the next keys.

        `below` is what follows the key in the stored key, and is empty for the entry at the key
        itself.
        """
        current = self.current
        if current.key_group is None:
            return self.get(self.stored_key(state_id))  # raises the error
        self.reads += 1
        ahead = self._ahead.get(state_id + below)
        if ahead is None or not 0 <= current.position - ahead.start < len(ahead.keys):
            ahead = self._read_ahead(state_id, below, current.position)
        place = current.position - ahead.start
        write: Write = self._find(ahead.keys[place])
        return ahead.values[place] if write is NOT_WRITTEN else write

    def get_entry(self, state_id: bytes, below: bytes) -> bytes | None:
        """Return an entry of the current key, which the next keys may or may not be asked for.

        If several keys in a row were asked for an entry at the same place, as for the same window,
        as many of the next keys are read together.

        `below` is what follows the key in the stored key.
        """
        current = self.current
        if current.key_group is None:
            return self.get(self.stored_key(state_id))  # raises the error
        name, position = state_id + below, current.position
        run = self._runs.get(name)
        if run is None:
            if len(self._runs) == _MOST_RUNS:
                self._runs.clear()
            run = self._runs[name] = _Run(position)
        elif position != run.last:
            run.in_row = run.in_row + 1 if position == run.last + 1 else 1
            run.last = position
        ahead = run.ahead
        if ahead is None or not 0 <= position - ahead.start < len(ahead.keys):
            if run.in_row < _FIRST_KEYS:
                return self.get(current.key_group + state_id + current.key + below)
            self._missed += 1
            run.ahead = None  # as large as what takes its place
            count = min(run.in_row, run.fitting, _MOST_OF_RUN)
            ahead = run.ahead = self._read_together(state_id, below, position, count)
            run.fitting = ahead.fitting(PREFETCH_BYTES // _MOST_RUNS)
        self.reads += 1
        place = position - ahead.start
        write: Write = self._find(ahead.keys[place])
        return ahead.values[place] if write is NOT_WRITTEN else write

    def _read_ahead(self, state_id: bytes, below: bytes, start: int) -> _ReadAhead:
        self._missed += 1
        name = state_id + below  # all state ids are of one length
        count = self._keys_ahead.get(name, _FIRST_KEYS)
        self._ahead.pop(name, None)  # as large as what takes its place
        ahead = self._ahead[name] = self._read_together(state_id, below, start, count)
        self._keys_ahead[name] = min(
            ahead.fitting(PREFETCH_BYTES), count * _TIMES_AS_MANY, PREFETCH_KEYS
        )
        return ahead

    def _read_together(self, state_id: bytes, below: bytes, start: int, count: int) -> _ReadAhead:
        keys = [group + state_id + key + below for group, key in self._keys[start : start + count]]
        return _ReadAhead(start, keys, self._backend.get_many(keys))

    def put(self, key: bytes, value: Write) -> None:
        """Write or, with ``None``, delete an entry that no scan has to see."""
        self._writes.add(key, value)

    def put_many(self, keys: Sequence[bytes], values: Sequence[Write]) -> None:
        """Write or, with ``None``, delete several entries that no scan has to see."""
        self._writes.add_many(keys, values)

    def delete(self, key: bytes) -> None:
        """Delete an entry that no scan has to see."""
        self._writes.add(key, None)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete several entries that no scan has to see."""
        self._writes.add_many(keys, [None] * len(keys))

    def write_below(self, prefix: bytes, key: bytes, value: bytes | None) -> None:
        """Write or, with ``None``, delete an entry that :meth:`scan` of `prefix` must see."""
        self._writes.add_below(prefix, key, value)

    def write_many_below(self, prefix: bytes, keys: Sequence[bytes], value: bytes | None) -> None:
        """Write one value to, or delete, several entries that :meth:`scan` of `prefix` must see."""
        self._writes.add_many_below(prefix, keys, value)

    def write_below_each(
        self, prefixes: Sequence[bytes], keys: Sequence[bytes], value: bytes | None
    ) -> None:
        """Write one value to, or delete, several entries; a scan of its prefix must see each."""
        self._writes.add_below_each(prefixes, keys, value)

    def is_written(self, key: bytes) -> bool:
        """Return whether the epoch has written an entry."""
        return self._find(key) is not NOT_WRITTEN

    def has_any_below(self, prefix: bytes) -> bool:
        """Return whether :meth:`scan` of `prefix` would yield an entry."""
        # The newest write is most likely an entry, and is found without sorting all writes.
        if self._writes.newest_below(prefix) is not None:
            return True
        return self.first_below(prefix) is not None

    def first_below(self, prefix: bytes) -> bytes | None:
        """Return the key of the first entry that :meth:`scan` of `prefix` would yield."""
        if self._writes.is_spilled:
            return next((key for key, _ in self.scan(prefix)), None)
        written = self._writes.first_below(prefix)
        for key, _ in self._backend.scan(prefix):
            if written is not None and key >= written:
                break
            if self._find(key) is NOT_WRITTEN:
                return key
        return written

    def scan(self, prefix: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries below a prefix in key order, this epoch's writes included.

        Writes during the scan may or may not be yielded.

        The scan ends before the key `end`; without it the scan covers the whole prefix.
        """
        for key, value in overlaid(self._backend.scan(prefix), self._writes.scan(prefix, end)):
            if end is not None and key >= end:
                return
            if value is not None:
                yield key, value

    def is_still(self, key: bytes, data: bytes) -> bool:
        """Return whether an entry is as a scan found it: it may have been changed since."""
        return not self.is_written(key) or self.get(key) == data

    def scan_stored(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the backend's own entries from `start` on, without this epoch's writes."""
        return self._backend.scan(start=start)

    def begin_call(self) -> None:
        """Begin a call of the processor that :meth:`undo_call` can undo."""
        assert isinstance(self._writes, UndoableWrites)
        assert self.undo_log is not None
        self.undo_log.begin()
        self._writes.begin()

    def keep_call(self) -> None:
        """End the call and keep its writes."""
        assert isinstance(self._writes, UndoableWrites)
        self._writes.keep()

    def undo_call(self) -> None:
        """End the call as if it had written nothing."""
        assert isinstance(self._writes, UndoableWrites)
        assert self.undo_log is not None
        self.undo_log.undo()
        self._writes.undo()

    def before_barrier(self, write_pending: Callable[[], None]) -> None:
        """Register a callback by which a state hands over the writes that it holds back."""
        self._writes.before_spill(write_pending)

    def hold_back(self, size_bytes: int) -> None:
        """Count the bytes that a state holds back towards the memory limit of the writes."""
        self._writes.hold_back(size_bytes)

    def written_entries(self) -> int:
        """Return the number of the epoch's writes so far, those on disk included."""
        return self._writes.entries

    def changes(self) -> Iterator[Changes]:
        """Return all writes of the epoch in key order, in frames; called once, at the barrier."""
        return self._writes.all_in_order()

    def close(self) -> None:
        """Remove the epoch's writes from the disk."""
        self._writes.close()
