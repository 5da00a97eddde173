"""Where the entries of an old subtask go, and what they are there.

Keyed state and timers go where their key group goes, and most of them as they are: thousands at
once. Entries of a state that has another id or schema now, and keys that get another key group, are
made anew one by one.

State that belongs to a subtask stays with it, or is redistributed: operator lists are dealt out or
given to all, broadcast state is given to all, raw streams go to the new subtask that begins where
their old one did. The items of lists travel one by one, with their places in the old list. The old
subtask stands before the number of a stream, so that streams sort in a fixed order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.modes import ListRedistribution
from pyspark_ckpt.operator.rows.keys import KeyPlaces, subtask_of
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.operator.state.list import decode_chunk
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    KEY_START,
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
    TIME_INDEX,
    encode_key_group,
)
from pyspark_ckpt.operator.table.time_to_live import without_stamp
from pyspark_ckpt.stored.binary_column import BinaryColumn, Numbers
from pyspark_ckpt.stored.blocks import SUBTASK
from pyspark_ckpt.stored.sorted_runs import cut_before
from pyspark_ckpt.stored.unify import StateMove, UnifiedStates
from pyspark_ckpt.values.message_pack import end_of_value

STORED_KEY, VALUE = "stored_key", "value"
ENTRIES_SCHEMA = T.StructType(
    [
        T.StructField(SUBTASK, T.IntegerType()),
        T.StructField(STORED_KEY, T.BinaryType()),
        T.StructField(VALUE, T.BinaryType()),
    ]
)
ARROW_ENTRIES = to_arrow_schema(ENTRIES_SCHEMA)
STREAM_PLACE_BYTES = 4
"""Bytes of the old subtask, before the number of a stream that moves."""

_GROUP_OF_TIMER = len(TIME_INDEX) + TIME_BYTES
_NUMBER = struct.Struct(">I")
_ITEM = struct.Struct(">II")
_END = b"\x83\x00"
"""After all keys that this library writes."""

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Kept:
    """Which entries of an operator are kept.

    `states` has the ids of states as they are numbered now, ``None`` for all. Each key in `erased`
    follows the bytes of its key group. `keyed` says whether anything that belongs to keys is kept.
    """

    states: frozenset[int] | None = None
    timers: bool = True
    raw: bool = True
    erased: frozenset[bytes] = frozenset()
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class Redistribution:
    """How the entries of an operator's old subtasks move; shipped to executors.

    `broadcast_giver` is the old subtask whose broadcast state all new subtasks get. Without one,
    the state of subtasks stays where it is.
    """

    states: UnifiedStates
    parallelism: int
    max_parallelism: int
    broadcast_giver: int | None = None
    kept: Kept = Kept()

    def batches(self, handle: Handle, parts: Iterable[ArrowEntries]) -> Iterator[pa.RecordBatch]:
        """Yield what a subtask's entries, given in key order, become: subtask, key and value."""
        moves = _Moves(self, handle)
        for part in parts:
            yield from moves.of(part)


class _Moves:
    """Moves the entries of one old subtask."""

    def __init__(self, redistribution: Redistribution, handle: Handle) -> None:
        self._to = redistribution
        self._handle = handle
        self._where = f"operator {handle.uid!r}, subtask {handle.subtask}"
        kept = redistribution.kept
        self._kept = kept
        self._moves = {
            state_id: move
            for state_id, move in redistribution.states.moves(handle).items()
            if kept.states is None or move.target_id in kept.states
        }
        self._erased_groups = {key[:KEY_GROUP_BYTES] for key in kept.erased}
        self._as_they_are = [
            state_id
            for state_id, move in self._moves.items()
            if move.target_id == state_id and move.rewrite is None and not move.stamp
        ]
        if kept.timers:
            self._as_they_are.append(MAX_STATES)
        self._groups = None
        if handle.max_parallelism != redistribution.max_parallelism:
            places = KeyPlaces(struct_type(handle.key_schema), redistribution.max_parallelism)
            self._groups = _NewGroups(places)
        self._items: dict[int, int] = {}

    def of(self, part: ArrowEntries) -> Iterator[pa.RecordBatch]:
        """Yield what some entries become, in any order."""
        keyed, rest = cut_before(part, TIME_INDEX)
        if len(keyed) and self._kept.keyed:
            yield from self._keyed(keyed)
        by_time, rest = cut_before(rest, OPERATOR_STATE)
        if len(by_time):
            yield from self._by_time(by_time)
        of_subtask, rest = cut_before(rest, RAW_STATE)
        if len(of_subtask):
            yield from self._batch(self._of_subtask(of_subtask.pairs()))
        raw, unknown = cut_before(rest, _END)
        if len(raw) and self._kept.raw:
            yield from self._batch(self._raw(raw.pairs()))
        if len(unknown):
            raise self._unknown(unknown.keys[0].as_py())

    def _keyed(self, entries: ArrowEntries) -> Iterator[pa.RecordBatch]:
        keys = BinaryColumn.of(entries.keys)
        if keys.lengths.min() < KEY_START:
            raise self._unknown(keys.value(int(np.argmin(keys.lengths))))
        ids = keys.bytes_at(KEY_GROUP_BYTES)
        groups = keys.numbers(KEY_GROUP_BYTES, from_start=0).astype(np.int64)
        is_same = np.isin(ids, self._as_they_are)
        if self._erased_groups:
            erased = [int.from_bytes(group, "big") for group in self._erased_groups]
            is_same &= ~np.isin(groups, erased)
        if self._groups is not None:
            is_same[:] = False
        if is_same.all():
            yield self._whole(groups, entries)
            return
        if is_same.any():
            yield self._whole(groups[is_same], entries.filter(pa.array(is_same)))
        is_other = ~is_same & np.isin(ids, [*self._moves, *self._as_they_are])
        if is_other.any():
            pairs = entries.filter(pa.array(is_other)).pairs()
            yield from self._batch(self._one_by_one(pairs))

    def _one_by_one(self, entries: Iterable[Entry]) -> Iterator[tuple[int, bytes, bytes]]:
        erased, erased_groups = self._kept.erased, self._erased_groups
        for key, value in entries:
            group, state_id = key[:KEY_GROUP_BYTES], key[KEY_GROUP_BYTES]
            end = end_of_value(key, KEY_START)
            if group in erased_groups and group + key[KEY_START:end] in erased:
                continue
            new_group = self._new_group(group, key[KEY_START:end])
            if state_id == MAX_STATES:
                moved = encode_key_group(new_group) + key[KEY_GROUP_BYTES:], value
            else:
                move = self._moves[state_id]
                rest, value = rewritten(move, key[end:], value)  # noqa: PLW2901
                head = encode_key_group(new_group) + bytes([move.target_id])
                moved = head + key[KEY_START:end] + rest, value
            yield self._subtask(new_group), *moved

    def _by_time(self, entries: ArrowEntries) -> Iterator[pa.RecordBatch]:
        if not (self._kept.timers and self._kept.keyed):
            return
        keys = BinaryColumn.of(entries.keys)
        is_timer = keys.lengths >= _GROUP_OF_TIMER + KEY_GROUP_BYTES
        for place, byte in enumerate(TIME_INDEX):
            is_timer &= keys.bytes_at(place) == byte
        if not is_timer.all():
            raise self._unknown(keys.value(int(np.argmin(is_timer))))
        if self._groups is None and not self._kept.erased:
            groups = keys.numbers(KEY_GROUP_BYTES, from_start=_GROUP_OF_TIMER).astype(np.int64)
            yield self._whole(groups, entries)
            return
        yield from self._batch(self._timers_by_time(entries.pairs()))

    def _timers_by_time(self, entries: Iterable[Entry]) -> Iterator[tuple[int, bytes, bytes]]:
        for key, value in entries:
            if key[_GROUP_OF_TIMER:] in self._kept.erased:
                continue
            of_group = _GROUP_OF_TIMER + KEY_GROUP_BYTES
            group, user_key = key[_GROUP_OF_TIMER:of_group], key[of_group:]
            new_group = self._new_group(group, user_key)
            moved = key[:_GROUP_OF_TIMER] + encode_key_group(new_group) + user_key
            yield self._subtask(new_group), moved, value

    def _of_subtask(self, entries: Iterable[Entry]) -> Iterator[tuple[int, bytes, bytes]]:
        to, own = self._to, self._handle.subtask
        for key, value in entries:
            if len(key) < KEY_START or not key.startswith(OPERATOR_STATE):
                raise self._unknown(key)
            move = self._moves.get(key[len(OPERATOR_STATE)])
            if move is None:
                continue
            prefix = OPERATOR_STATE + bytes([move.target_id])
            rest, value = rewritten(move, key[KEY_START:], value)  # noqa: PLW2901
            if to.broadcast_giver is None:
                yield own, prefix + rest, value
            elif kind_of(to.states.states[move.target_id]).movement is Movement.DEALT_OUT:
                if rest:  # else it is the number of chunks, which are made anew
                    yield from self._list_items(move.target_id, prefix, value)
            elif to.broadcast_giver == own:
                for subtask in range(to.parallelism):
                    yield subtask, prefix + rest, value

    def _list_items(
        self, state_id: int, prefix: bytes, chunk: bytes
    ) -> Iterator[tuple[int, bytes, bytes]]:
        to, own = self._to, self._handle.subtask
        goes_to_all = to.states.states[state_id].redistribution is ListRedistribution.UNION
        place = self._items.get(state_id, 0)
        for item in decode_chunk(chunk):
            key = prefix + _ITEM.pack(own, place)
            # From the own subtask on, so that short lists do not all begin at subtask 0.
            dealt = [(own + place) % to.parallelism]
            for subtask in range(to.parallelism) if goes_to_all else dealt:
                yield subtask, key, item
            place += 1
        self._items[state_id] = place

    def _raw(self, entries: Iterable[Entry]) -> Iterator[tuple[int, bytes, bytes]]:
        to, own = self._to, self._handle.subtask
        goes_on = to.broadcast_giver is None
        subtask = own * to.parallelism // self._handle.parallelism
        for key, value in entries:
            if not key.startswith(RAW_STATE):
                raise self._unknown(key)
            if goes_on:
                yield own, key, value
            else:
                yield subtask, RAW_STATE + _NUMBER.pack(own) + key[len(RAW_STATE) :], value

    def _new_group(self, group: bytes, user_key: bytes) -> int:
        if self._groups is None:
            return int.from_bytes(group, "big")
        return self._groups.of(user_key)

    def _subtask(self, group: int) -> int:
        return subtask_of(group, self._to.parallelism, self._to.max_parallelism)

    def _whole(self, groups: Numbers, entries: ArrowEntries) -> pa.RecordBatch:
        """Return entries that stay as they are, with their subtasks."""
        to = self._to
        subtasks = groups * to.parallelism // to.max_parallelism
        columns = [pa.array(subtasks.astype(np.int32)), entries.keys, entries.values]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_ENTRIES)

    def _batch(self, moved: Iterable[tuple[int, bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        columns: list[Any] = list(zip(*moved, strict=True))
        if columns:
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(columns, ARROW_ENTRIES, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=ARROW_ENTRIES)

    def _unknown(self, key: bytes) -> CorruptFileError:
        return CorruptFileError(
            f"{self._where}: stored key {key[:KEY_GROUP_BYTES].hex()} is of no known kind; restore "
            "from another checkpoint"
        )


class _NewGroups:
    """The new key groups of encoded keys; the entries of a key follow each other."""

    def __init__(self, places: KeyPlaces) -> None:
        self._places = places
        self._last: tuple[bytes, int] = b"", -1

    def of(self, user_key: bytes) -> int:
        if user_key != self._last[0]:
            self._last = user_key, self._places.group_of_stored(user_key)
        return self._last[1]


def rewritten(move: StateMove, rest: bytes, value: bytes) -> Entry:
    """Return the end of an entry's stored key and its value as they are after a move."""
    if move.rewrite is None and not move.stamp:
        return rest, value
    data = without_stamp(value)
    stamp = value[: len(value) - len(data)] or move.stamp
    if move.rewrite is not None:
        rest, data = move.rewrite(rest, data)
    return rest, stamp + data
