"""Tasks that read the entries of an operator which an edit keeps, as they are stored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.editing.entries.encoding import ENTRIES_SCHEMA
from pyspark_ckpt.formats.handle import Handle, decode_handle
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.durable.merged_state import merged_state
from pyspark_ckpt.operator.rescale.entries import rewritten
from pyspark_ckpt.operator.rescale.unify import StateMove, UnifiedStates
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
    TIME_INDEX,
    is_keyed,
)
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.values.message_pack import end_of_value
from state_backends import Changes

_ID_END = KEY_GROUP_BYTES + 1
_TIMER_HEAD = len(TIME_INDEX) + TIME_BYTES
_SCHEMA = to_arrow_schema(ENTRIES_SCHEMA)
_Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class KeptEntries:
    """Which stored entries of an operator are kept; shipped to executors.

    The ids of the kept entries are those of `unified`. Each key in `erased` follows the bytes of
    its key group. `keyed` says whether anything that belongs to keys is kept.
    """

    unified: UnifiedStates
    states: frozenset[int]
    timers: bool = True
    raw: bool = True
    erased: frozenset[bytes] = frozenset()
    keyed: bool = True

    def of(self, handle: Handle, state: Iterator[Changes]) -> Iterator[list[_Entry]]:
        """Yield the kept entries of a subtask's whole state."""
        moves = self.unified.moves(handle)
        groups = {key[:KEY_GROUP_BYTES] for key in self.erased}
        for part in state:
            kept: list[_Entry] = []
            for key, value in zip(part.keys, part.values, strict=True):
                entry = self._kept(key, value or b"", moves, groups)
                if entry is not None:
                    kept.append(entry)
            if kept:
                yield kept

    def _kept(
        self, key: bytes, value: bytes, moves: dict[int, StateMove], groups: set[bytes]
    ) -> _Entry | None:
        if is_keyed(key):
            return self._kept_of_key(key, value, moves, groups)
        if key.startswith(TIME_INDEX):
            is_kept = self.timers and self.keyed and key[_TIMER_HEAD:] not in self.erased
            return (key, value) if is_kept else None
        if key.startswith(RAW_STATE):
            return (key, value) if self.raw else None
        return self._moved(key, _ID_END, value, moves.get(key[len(OPERATOR_STATE)]))

    def _kept_of_key(
        self, key: bytes, value: bytes, moves: dict[int, StateMove], groups: set[bytes]
    ) -> _Entry | None:
        if not self.keyed:
            return None
        state_id = key[KEY_GROUP_BYTES]
        is_timer = state_id == MAX_STATES
        move = None if is_timer else moves.get(state_id)
        if (is_timer and not self.timers) or (not is_timer and move is None):
            return None
        end = _ID_END
        group = key[:KEY_GROUP_BYTES]
        if group in groups or (move is not None and move.rewrite is not None):
            end = end_of_value(key, _ID_END)
            if group + key[_ID_END:end] in self.erased:
                return None
        return (key, value) if is_timer else self._moved(key, end, value, move)

    def _moved(self, key: bytes, end: int, value: bytes, move: StateMove | None) -> _Entry | None:
        """Return an entry under the id that its state has now, ``None`` if it is not kept."""
        if move is None or move.target_id not in self.states:
            return None
        rest, value = rewritten(move, key[end:], value)
        return key[:KEY_GROUP_BYTES] + bytes([move.target_id]) + key[_ID_END:end] + rest, value


class ReadEntries:
    """The function given to ``mapInArrow`` over the places of handles: yields kept entries."""

    def __init__(self, handles: tuple[bytes, ...], source: str, kept: KeptEntries) -> None:
        self._handles = handles
        self._source = source
        self._kept = kept

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the kept entries of the subtasks whose places come in."""
        storage = open_storage(self._source)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                handle = decode_handle(self._handles[place])
                root = executor_local_root(handle.subtask)
                with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-", dir=root) as directory:
                    state = merged_state(storage, handle, Path(directory))
                    for entries in self._kept.of(handle, state):
                        yield _batch(handle.subtask, entries)


def _batch(subtask: int, entries: list[_Entry]) -> pa.RecordBatch:
    subtasks: np.ndarray[Any, Any] = np.full(len(entries), subtask, np.int32)
    columns = [
        pa.array(subtasks, pa.int32()),
        pa.array([key for key, _ in entries], pa.binary()),
        pa.array([value for _, value in entries], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
