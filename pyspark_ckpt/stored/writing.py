"""The tasks that write base snapshots of new subtasks from entries that were shuffled in blocks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.errors import CkptError, IncompatibleStateError, PlanError
from pyspark_ckpt.formats.canonical_file import ArrowEntries, encode_canonical
from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import (
    CANONICAL_FORMAT,
    CHANGES_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
    StateDescriptor,
    decode_handle,
    encode_handle,
    new_version,
)
from pyspark_ckpt.formats.layout import base_path, canonical_path
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.durable.stored_files import CHANGES_NAME
from pyspark_ckpt.operator.state.list import encode_chunk
from pyspark_ckpt.operator.state.operator_states import MAX_STREAMS
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    KEY_START,
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
    TIME_INDEX,
    decode_time,
)
from pyspark_ckpt.operator.table.time_to_live import without_stamp
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stored.binary_column import BinaryColumn, Numbers
from pyspark_ckpt.stored.blocks import entries_by_range, in_order
from pyspark_ckpt.stored.redistribution import STREAM_PLACE_BYTES
from pyspark_ckpt.stored.sorted_runs import cut_before
from pyspark_ckpt.values.message_pack import end_of_value
from state_backends import Changes

HANDLES_SCHEMA = "handle binary"
CANONICAL_NAME = "state.parquet"
POSITION_BYTES = 8
"""An item's stored key ends with so many bytes: the place of the item in its list."""

_FIRST_TIMEOUT_MS = -(1 << 63)
_CHUNK_NUMBER_BYTES = 4
_STREAM_BYTES = 2
_CHUNK_BYTES = 1 << 20
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Twice:
    """What is said if two entries come for one place.

    With `is_one_timer`, a timer that comes twice is one timer, and nothing is said.
    """

    error: type[CkptError]
    advice: str
    is_one_timer: bool = False


TWICE_STORED = Twice(
    IncompatibleStateError,
    "if a migration gives two keys of a map the same new key, correct the migration; otherwise "
    "restore from another checkpoint",
)
"""For entries that are stored already."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where base snapshots are written, and how the entries that come are made whole.

    A savepoint has a `token`, which is part of the names of its canonical files; the directory of a
    query's checkpoints has none. `lists` has the ids of the states whose items come one by one.
    With `renumbers_streams`, the old subtask stands before the number of a raw stream.
    """

    url: str
    twice: Twice
    token: str | None = None
    lists: frozenset[int] = frozenset()
    renumbers_streams: bool = False
    sets_timeouts: bool = True


class WriteBases:
    """The function given to ``mapInArrow`` over blocks of entries: yields the new handles.

    `first` has the handles of the subtasks before their files are written, by number; the places of
    their states are the ids in the stored keys.
    """

    def __init__(self, first: Iterable[Handle], destination: Destination) -> None:
        self._first = {handle.subtask: encode_handle(handle) for handle in first}
        self._destination = destination

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the state of the partition's subtask and yield its handle."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        subtask = first.column(0)[0].as_py()
        root = executor_local_root(subtask)
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-", dir=root) as scratch:
            parts = in_order(entries_by_range(chain([first], batches)), Path(scratch))
            target = open_storage(self._destination.url)
            handle = write_base(
                target, decode_handle(self._first[subtask]), parts, self._destination
            )
        data = pa.array([encode_handle(handle)], pa.binary())
        yield pa.RecordBatch.from_arrays([data], names=["handle"])


def write_base(
    target: Storage, first: Handle, parts: Iterable[ArrowEntries], destination: Destination
) -> Handle:
    """Write the state of a new subtask as a base snapshot, durably, and return its handle.

    `first` is the handle of the subtask without state, and `parts` has its entries in the order of
    stored keys.
    """
    entries = _WholeEntries(first, destination)
    if destination.token is None:
        name, form = CHANGES_NAME, CHANGES_FORMAT
        content = encode_changes(map(ArrowEntries.changes, entries.parts(parts)))
        file = target.write(base_path(first.uid, first.subtask, first.epoch), content)
    else:
        name, form = CANONICAL_NAME, CANONICAL_FORMAT
        path = canonical_path(first.subtask, first.epoch, destination.token)
        with closing(encode_canonical(first, entries.parts(parts))) as canonical:
            file = target.write(path, canonical)
    base = BaseSnapshot(
        version=new_version(first.epoch),
        epoch=first.epoch,
        entries=entries.count,
        files=(BaseFile(name, file),),
        format=form,
    )
    timeout_ms = None
    if destination.sets_timeouts and entries.earliest_timer_ms is not None:
        timeout_ms = timeout_before(entries.earliest_timer_ms)
    return msgspec.structs.replace(
        first,
        base=base,
        timeout_ms=timeout_ms,
        has_state_of_no_key=entries.has_state_of_no_key,
    )


def timeout_before(timer_ms: int) -> int:
    """Return the timeout of a subtask by its first timer, as at a barrier.

    Spark calls when its clock has passed the timeout, and a timer is due before.
    """
    return max(timer_ms, _FIRST_TIMEOUT_MS + 1) - 1


class _WholeEntries:
    """Makes the entries of a subtask, given in the order of stored keys, as they are stored."""

    def __init__(self, first: Handle, destination: Destination) -> None:
        self._where = f"operator {first.uid!r}, subtask {first.subtask}"
        self._states: tuple[StateDescriptor, ...] = first.states
        self._destination = destination
        self._last: bytes | None = None
        self.count = 0
        self.earliest_timer_ms: int | None = None
        self.has_state_of_no_key = False

    def parts(self, given: Iterable[ArrowEntries]) -> Iterator[ArrowEntries]:
        """Yield the entries as they are stored, and count them."""
        parts: Iterator[ArrowEntries] = (self._checked(part) for part in given if len(part))
        if self._destination.lists:
            parts = _with_chunks(parts, sorted(self._destination.lists))
        if self._destination.renumbers_streams:
            parts = _with_numbered_streams(parts)
        for part in parts:
            if len(part):
                self.count += len(part)
                yield part

    def _checked(self, part: ArrowEntries) -> ArrowEntries:
        """Return the entries of a part, each once."""
        keys = part.keys
        same = np.zeros(len(keys), bool)
        same[0] = keys[0].as_py() == self._last
        same[1:] = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        self._last = keys[-1].as_py()
        self.has_state_of_no_key = self._last >= OPERATOR_STATE
        if same.any():
            for place in np.flatnonzero(same):
                self._check_twice(keys[int(place)].as_py())
            part = part.filter(pa.array(~same))
        if self.earliest_timer_ms is None and self._last >= TIME_INDEX:
            _, from_timers = cut_before(part, TIME_INDEX)
            if len(from_timers):
                self.earliest_timer_ms = earliest_timer_ms(from_timers.keys[0].as_py())
        return part

    def _check_twice(self, key: bytes) -> None:
        """Check that an entry may come twice: a timer may where timers are given."""
        state_id = key[KEY_GROUP_BYTES]
        twice = self._destination.twice
        if key.startswith(TIME_INDEX) or (key < TIME_INDEX and state_id == MAX_STATES):
            if twice.is_one_timer:
                return
            raise twice.error(f"{self._where}: a timer would be there twice: {twice.advice}")
        start = KEY_START
        if key.startswith(RAW_STATE):
            start = len(RAW_STATE)
            if self._destination.renumbers_streams:
                start += STREAM_PLACE_BYTES
            stream = int.from_bytes(key[start : start + _STREAM_BYTES], "big")
            raise twice.error(
                f"{self._where}: raw state would get stream {stream} twice: {twice.advice}"
            )
        name = self._states[state_id].name if state_id < len(self._states) else "?"
        is_keyed = key < TIME_INDEX
        shown = msgspec.msgpack.decode(key[start : end_of_value(key, start)]) if is_keyed else ()
        of_key = f", of key {str(shown)[:_SHOWN_CHARACTERS]}" if is_keyed else ""
        raise twice.error(
            f"{self._where}: state {name!r} would get two values at one place{of_key}: "
            f"{twice.advice}"
        )


def earliest_timer_ms(stored_key: bytes) -> int | None:
    """Return the time of a timer in the order of time, ``None`` for another entry."""
    if not stored_key.startswith(TIME_INDEX):
        return None
    start = len(TIME_INDEX)
    return decode_time(stored_key[start : start + TIME_BYTES])


def _with_chunks(parts: Iterable[ArrowEntries], lists: list[int]) -> Iterator[ArrowEntries]:
    """Yield the entries with the items of lists gathered into chunks."""
    chunks = _Chunks()
    for part in parts:
        is_item = _is_of(part, lists)
        if not is_item.any():
            yield chunks.taken()
            yield part
            continue
        edges = np.flatnonzero(np.diff(is_item)) + 1
        for start, stop in zip([0, *edges], [*edges, len(part)], strict=True):
            if is_item[start]:
                yield chunks.added(part[start:stop])
            else:
                yield chunks.taken()
                yield part[start:stop]
    yield chunks.taken()


def _is_of(part: ArrowEntries, lists: list[int]) -> Numbers:
    """Return whether each entry is a key's or a subtask's state of one of these ids."""
    keys = BinaryColumn.of(part.keys)
    first, second = keys.bytes_at(0), keys.bytes_at(1)
    of_subtask = (first == OPERATOR_STATE[0]) & (second == OPERATOR_STATE[1])
    found: Numbers = ((first < TIME_INDEX[0]) | of_subtask) & np.isin(keys.bytes_at(2), lists)
    return found


class _Chunks:
    """Gathers the items of one list after the other; a list is in memory while it is gathered."""

    def __init__(self) -> None:
        self._prefix: bytes | None = None
        self._items: list[bytes] = []

    def added(self, items: ArrowEntries) -> ArrowEntries:
        """Add items in their order; return the entries of the lists that are whole."""
        entries: list[tuple[bytes, bytes]] = []
        for key, value in items.pairs():
            prefix = key[:-POSITION_BYTES]
            if prefix != self._prefix:
                entries += self._whole()
                self._prefix = prefix
            self._items.append(value)
        return _entries(entries)

    def taken(self) -> ArrowEntries:
        """Return the entries of the last list."""
        return _entries(self._whole())

    def _whole(self) -> list[tuple[bytes, bytes]]:
        """Return the entries of the list: the number of its chunks, then the chunks.

        As the state writes them: a chunk has one time, and the number has the latest.
        """
        prefix, items = self._prefix, self._items
        self._prefix, self._items = None, []
        if prefix is None:
            return []
        chunks: list[tuple[bytes, list[bytes]]] = []
        size_bytes = 0
        for item in items:
            data = without_stamp(item)
            stamp = item[: len(item) - len(data)]
            size_bytes += len(data)
            if not chunks or chunks[-1][0] != stamp or size_bytes > _CHUNK_BYTES:
                chunks.append((stamp, []))
                size_bytes = len(data)
            chunks[-1][1].append(data)
        latest = max(stamp for stamp, _ in chunks)
        numbers = [number.to_bytes(_CHUNK_NUMBER_BYTES, "big") for number in range(len(chunks) + 1)]
        return [
            (prefix, latest + numbers[-1]),
            *(
                (prefix + number, stamp + encode_chunk(data))
                for number, (stamp, data) in zip(numbers, chunks, strict=False)
            ),
        ]


def _with_numbered_streams(parts: Iterable[ArrowEntries]) -> Iterator[ArrowEntries]:
    """Yield the entries with raw streams numbered from 0; the last entries are those of streams."""
    place_end = len(RAW_STATE) + STREAM_PLACE_BYTES + _STREAM_BYTES
    numbers: dict[bytes, int] = {}
    for part in parts:
        others, raw = cut_before(part, RAW_STATE)
        yield others
        entries = []
        for place, chunks in groupby(raw.pairs(), key=lambda entry: entry[0][:place_end]):
            number = numbers.setdefault(place, len(numbers))
            if number == MAX_STREAMS:
                raise PlanError(
                    f"raw state has more than {MAX_STREAMS} streams for one subtask: use a higher "
                    "parallelism"
                )
            head = RAW_STATE + number.to_bytes(_STREAM_BYTES, "big")
            entries += [(head + key[place_end:], value) for key, value in chunks]
        yield _entries(entries)


def _entries(pairs: list[tuple[bytes, bytes]]) -> ArrowEntries:
    return ArrowEntries.of(Changes([key for key, _ in pairs], [value for _, value in pairs]))
