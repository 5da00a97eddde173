"""Tasks that sort the entries of new subtasks and write them as canonical files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.editing.entries.blocks import entries_by_range, in_order
from pyspark_ckpt.editing.entries.encoding import POSITION_BYTES
from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.formats.canonical_file import ArrowEntries, encode_canonical
from pyspark_ckpt.formats.handle import (
    CANONICAL_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
    StateDescriptor,
    encode_handle,
    new_version,
)
from pyspark_ckpt.formats.layout import canonical_path
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.durable.savepoint_copy import CANONICAL_NAME
from pyspark_ckpt.operator.rescale.entries import earliest_timer_ms
from pyspark_ckpt.operator.rescale.tasks import timeout_before
from pyspark_ckpt.operator.state.list import encode_chunk
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_INDEX,
)
from pyspark_ckpt.operator.table.time_to_live import without_stamp
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.values.message_pack import end_of_value

HANDLES_SCHEMA = "handle binary"
_CHUNK_NUMBER_BYTES = 4
_CHUNK_BYTES = 1 << 20
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class WriteEntries:
    """The function given to ``mapInArrow`` over blocks of entries: yields the new handles.

    `first` has the handles of the subtasks before their files are written, by number; the places of
    their states are the ids in the stored keys. `lists` has the ids of the list states whose single
    values become chunks. `token` is part of the names of the files.
    """

    first: tuple[Handle, ...]
    lists: frozenset[int]
    target: str
    token: str

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
            data = self._written(subtask, parts)
        yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], names=["handle"])

    def _written(self, subtask: int, parts: Iterator[ArrowEntries]) -> bytes:
        handle = self.first[subtask]
        where = f"operator {handle.uid!r}, subtask {subtask}"
        entries = _SortedEntries(where, handle.states, self.lists)
        path = canonical_path(subtask, handle.epoch, self.token)
        with closing(encode_canonical(handle, entries.parts(parts))) as content:
            file = open_storage(self.target).write(path, content)
        base = BaseSnapshot(
            version=new_version(handle.epoch),
            epoch=handle.epoch,
            entries=entries.count,
            files=(BaseFile(CANONICAL_NAME, file),),
            format=CANONICAL_FORMAT,
        )
        first_ms = entries.earliest_timer_ms
        timeout_ms = None if first_ms is None else timeout_before(first_ms)
        return encode_handle(msgspec.structs.replace(handle, base=base, timeout_ms=timeout_ms))


class _SortedEntries:
    """Checks and counts the entries of a subtask, given in the order of stored keys."""

    def __init__(
        self, where: str, states: tuple[StateDescriptor, ...], lists: frozenset[int]
    ) -> None:
        self._where = where
        self._states = states
        self._lists = lists
        self._last: bytes | None = None
        self.count = 0
        self.earliest_timer_ms: int | None = None

    def parts(self, given: Iterable[ArrowEntries]) -> Iterator[ArrowEntries]:
        """Yield the entries as they are stored."""
        checked = (self._checked(part) for part in given if len(part))
        for part in _with_chunks(checked, self._lists) if self._lists else checked:
            if len(part):
                self.count += len(part)
                yield part

    def _checked(self, part: ArrowEntries) -> ArrowEntries:
        """Return the entries of a part, timers that are given twice once."""
        keys, values = part.keys, part.values
        same = np.zeros(len(keys), bool)
        same[0] = keys[0].as_py() == self._last
        same[1:] = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        self._last = keys[-1].as_py()
        if same.any():
            for place in np.flatnonzero(same):
                self._check_twice(keys[int(place)].as_py())
            kept = pa.array(~same)
            keys, values = keys.filter(kept), values.filter(kept)
        if self.earliest_timer_ms is None and self._last >= TIME_INDEX:
            times = (earliest_timer_ms(key) for key in keys.to_pylist())
            self.earliest_timer_ms = next((time for time in times if time is not None), None)
        return ArrowEntries(keys, values)

    def _check_twice(self, key: bytes) -> None:
        """Check that an entry that comes twice is a timer, which is the same timer."""
        state_id = key[KEY_GROUP_BYTES]
        if key.startswith(TIME_INDEX) or (key < TIME_INDEX and state_id == MAX_STATES):
            return
        start = KEY_GROUP_BYTES + 1
        if key.startswith(RAW_STATE):
            stream = int.from_bytes(key[KEY_GROUP_BYTES : KEY_GROUP_BYTES + 2], "big")
            raise StateValueError(
                f"{self._where}: raw state would get stream {stream} twice: give one row for each"
            )
        name = self._states[state_id].name if state_id < len(self._states) else "?"
        is_keyed = key < TIME_INDEX
        shown = msgspec.msgpack.decode(key[start : end_of_value(key, start)]) if is_keyed else ()
        of_key = f", of key {str(shown)[:_SHOWN_CHARACTERS]}" if is_keyed else ""
        raise StateValueError(
            f"{self._where}: state {name!r} would get two values at one place{of_key}: "
            f"give one row for each key, map key or position"
        )


def _with_chunks(parts: Iterable[ArrowEntries], lists: frozenset[int]) -> Iterator[ArrowEntries]:
    """Yield the entries with the values of lists gathered into chunks."""
    chunks = _Chunks()
    ids = pa.array(sorted(lists), pa.int64())
    for part in parts:
        is_item = _is_of(part.keys, ids)
        if not is_item.any():
            yield chunks.taken()
            yield part
            continue
        edges = np.flatnonzero(np.diff(is_item)) + 1
        for start, stop in zip([0, *edges], [*edges, len(part)], strict=True):
            keys, values = part.keys[start:stop], part.values[start:stop]
            if is_item[start]:
                yield chunks.added(keys.to_pylist(), values.to_pylist())
            else:
                yield chunks.taken()
                yield ArrowEntries(keys, values)
    yield chunks.taken()


def _is_of(keys: pa.BinaryArray, ids: pa.Array) -> np.ndarray[Any, Any]:
    """Return whether each entry is a key's or a subtask's state of one of these ids."""
    heads = pc.binary_slice(keys, 0, KEY_GROUP_BYTES + 1).to_pylist()
    wanted = frozenset(ids.to_pylist())
    flags = (
        (head < TIME_INDEX or head.startswith(OPERATOR_STATE)) and head[KEY_GROUP_BYTES] in wanted
        for head in heads
    )
    return np.fromiter(flags, bool, len(heads))


class _Chunks:
    """Gathers the values of one list after the other; a list is in memory while it is gathered."""

    def __init__(self) -> None:
        self._prefix: bytes | None = None
        self._items: list[bytes] = []

    def added(self, keys: list[bytes], values: list[bytes]) -> ArrowEntries:
        """Add values in their order; return the entries of the lists that are whole."""
        entries: list[tuple[bytes, bytes]] = []
        for key, value in zip(keys, values, strict=True):
            prefix = key[:-POSITION_BYTES]
            if prefix != self._prefix:
                entries += self._whole()
                self._prefix = prefix
            self._items.append(value)
        return _in_arrow(entries)

    def taken(self) -> ArrowEntries:
        """Return the entries of the last list."""
        return _in_arrow(self._whole())

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


def _in_arrow(entries: list[tuple[bytes, bytes]]) -> ArrowEntries:
    keys = pa.array([key for key, _ in entries], pa.binary())
    return ArrowEntries(keys, pa.array([value for _, value in entries], pa.binary()))
