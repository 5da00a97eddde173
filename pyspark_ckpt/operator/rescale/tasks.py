"""Moves state on executors: reads old subtasks, and writes the base snapshots of new ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.change_file import EntryCount, encode_changes
from pyspark_ckpt.formats.handle import (
    BaseFile,
    BaseSnapshot,
    Handle,
    StateDescriptor,
    decode_handle,
    encode_handle,
    new_version,
)
from pyspark_ckpt.formats.layout import base_path
from pyspark_ckpt.gathering import gathered
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.durable.merged_state import merged_state
from pyspark_ckpt.operator.rescale.entries import (
    Entry,
    Moved,
    Redistribution,
    earliest_timer_ms,
    numbered,
)
from pyspark_ckpt.operator.rescale.key_hashing import StoredKeyColumns
from pyspark_ckpt.operator.rescale.unify import UnifiedStates
from pyspark_ckpt.operator.state.kinds import StateKind, kind_of
from pyspark_ckpt.operator.table.writes import in_frames
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.storage.open import Storage, open_storage
from state_backends import Changes

_BATCH_ENTRIES = 8192
_FIRST_TIMEOUT_MS = -(1 << 63)
_BATCH_BYTES = 4 << 20
SUBTASK, HEAD, TAIL, VALUE = "subtask", "head", "tail", "value"
MOVED_FIELDS = [
    T.StructField(SUBTASK, T.IntegerType()),
    T.StructField(HEAD, T.BinaryType()),
    T.StructField(TAIL, T.BinaryType()),
    T.StructField(VALUE, T.BinaryType()),
]
STORED_KEY = "stored_key"
HANDLES_SCHEMA = "handle binary"


@dataclass(frozen=True, slots=True)
class Movement:
    """The state that moves and its target; shipped to executors."""

    handles: tuple[bytes, ...]
    source_root: str
    operator: OperatorDescriptor
    merged: UnifiedStates
    broadcast_giver: int
    has_same_clock: bool


class ReadSubtask:
    """The function given to ``mapInArrow`` over the places of handles: yields moved entries.

    `keys` is ``None`` if the key groups of keys stay.
    """

    def __init__(self, movement: Movement, keys: StoredKeyColumns | None) -> None:
        self._movement = movement
        self._keys = keys
        fields = [] if keys is None else keys.schema.fields
        self.schema = T.StructType([*MOVED_FIELDS, *fields])

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield all entries of the subtasks whose places come in."""
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield from self._subtask(decode_handle(self._movement.handles[place]))

    def _subtask(self, handle: Handle) -> Iterator[pa.RecordBatch]:
        movement = self._movement
        redistribution = Redistribution(
            handle,
            movement.merged,
            movement.operator.parallelism,
            movement.operator.max_parallelism,
            gives_broadcast=handle.subtask == movement.broadcast_giver,
        )
        storage = open_storage(movement.source_root)
        local_root = executor_local_root(handle.subtask)
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-", dir=local_root) as directory:
            state = merged_state(storage, handle, Path(directory))
            all_moved = redistribution.moved(_entries(state))
            for moved in gathered(all_moved, _BATCH_BYTES, _size_bytes, _BATCH_ENTRIES):
                yield self._batch(moved)

    def _batch(self, moved: list[Moved]) -> pa.RecordBatch:
        columns = [
            pa.array([each.subtask for each in moved], pa.int32()),
            pa.array([each.head for each in moved], pa.binary()),
            pa.array([each.tail for each in moved], pa.binary()),
            pa.array([each.value for each in moved], pa.binary()),
        ]
        if self._keys is not None:
            columns += self._keys.arrays([each.key for each in moved])
        return pa.RecordBatch.from_arrays(columns, schema=to_arrow_schema(self.schema))


class WriteSubtask:
    """The function given to ``mapInArrow`` over sorted entries: yields the new handles.

    `checkpoints_directory` includes the subdirectory of the new query.
    """

    def __init__(
        self, movement: Movement, query_id: str, checkpoints_directory: str, epoch: int
    ) -> None:
        self._movement = movement
        self._query_id = query_id
        self._checkpoints_directory = checkpoints_directory
        self._epoch = epoch

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write each subtask's state and yield its handle, whose files are durable."""
        storage = open_storage(self._checkpoints_directory)
        for subtask, group in groupby(_rows(batches), key=itemgetter(0)):
            entries = ((key, value) for _, key, value in group)
            handle = write_subtask(
                storage,
                self._movement.operator.first_handle(self._query_id, subtask, self._epoch),
                self._movement.merged.states,
                entries,
                has_same_clock=self._movement.has_same_clock,
            )
            yield pa.RecordBatch.from_arrays(
                [pa.array([encode_handle(handle)], pa.binary())], names=["handle"]
            )


def write_subtask(
    storage: Storage,
    first: Handle,
    states: tuple[StateDescriptor, ...],
    entries: Iterable[Entry],
    *,
    has_same_clock: bool,
) -> Handle:
    """Write the state of a new subtask as a base snapshot, durably, and return its handle.

    `entries` come in the order of stored keys. `first` is the handle of the subtask without state.
    """
    where = f"operator {first.uid!r}, subtask {first.subtask}"
    counted = _Counted(numbered(entries, states), where)
    reference = storage.write(
        base_path(first.uid, first.subtask, first.epoch), encode_changes(counted.frames())
    )
    base = BaseSnapshot(
        version=new_version(first.epoch),
        epoch=first.epoch,
        entries=counted.entries,
        files=(BaseFile("state.chg", reference),),
    )
    timeout_ms = None
    if counted.earliest_timer_ms is not None and has_same_clock:
        timeout_ms = timeout_before(counted.earliest_timer_ms)
    return msgspec.structs.replace(first, states=states, base=base, timeout_ms=timeout_ms)


def timeout_before(timer_ms: int) -> int:
    """Return the timeout of a subtask by its first timer, as at a barrier.

    Spark calls when its clock has passed the timeout, and a timer is due before.
    """
    return max(timer_ms, _FIRST_TIMEOUT_MS + 1) - 1


def newest_of(handles: Iterable[Handle]) -> Handle:
    """Return the handle whose broadcast state all new subtasks get.

    It is that of the last epoch. Of several, it is the first one that has the broadcast states: an
    edit gives a subtask that had no epoch none of them.
    """
    return min(
        handles, key=lambda handle: (-handle.epoch, -_broadcast_states(handle), handle.subtask)
    )


def _broadcast_states(handle: Handle) -> int:
    return sum(
        state.sweeps is None and kind_of(state) is StateKind.BROADCAST for state in handle.states
    )


class _Counted:
    """Counts entries on their way, and finds the first timer."""

    def __init__(self, entries: Iterator[Entry], where: str) -> None:
        self._all = entries
        self._where = where
        self._count = EntryCount()
        self.earliest_timer_ms: int | None = None

    @property
    def entries(self) -> int:
        return self._count.entries

    def frames(self) -> Iterator[Changes]:
        return self._count.through(in_frames(self._check_each()))

    def _check_each(self) -> Iterator[Entry]:
        previous: bytes | None = None
        for key, value in self._all:
            if key == previous:
                raise IncompatibleStateError(
                    f"{self._where}: two entries would get the stored key {key.hex()}: if a "
                    "migration gives two keys of a map the same new key, correct the migration; "
                    "otherwise restore from another checkpoint"
                )
            previous = key
            if self.earliest_timer_ms is None:
                self.earliest_timer_ms = earliest_timer_ms(key)
            yield key, value


def _entries(state: Iterator[Changes]) -> Iterator[Entry]:
    for part in state:
        for key, value in zip(part.keys, part.values, strict=True):
            assert value is not None  # deletes are merged away
            yield key, value


def _size_bytes(moved: Moved) -> int:
    return len(moved.head) + len(moved.tail) + len(moved.value)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes, bytes]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
