"""Moves the state of an operator's subtasks to another number of subtasks or key groups.

Every entry of an old subtask becomes one or more :class:`Moved` entries, which are sorted by new
subtask and stored key and written as the new subtasks' base snapshots. Keyed state and timers go
where their key group goes. Operator lists are dealt out or given to all, broadcast state is given
to all, raw streams go to the new subtask that begins where their old one did.

Chunks and streams from several old subtasks are numbered anew by :func:`numbered`: until then their
old subtask stands before their old number, so that they sort in a fixed order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from pyspark_ckpt.errors import CorruptFileError, PlanError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.modes import ListRedistribution
from pyspark_ckpt.operator.rescale.unify import StateMove, UnifiedStates
from pyspark_ckpt.operator.rows.keys import subtask_of
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.state.list import decode_chunk, encode_chunk
from pyspark_ckpt.operator.state.operator_states import MAX_STREAMS
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
    TIME_INDEX,
    decode_time,
    is_keyed,
    state_id_of,
)
from pyspark_ckpt.operator.table.time_to_live import without_stamp
from pyspark_ckpt.values.message_pack import end_of_value

Entry = tuple[bytes, bytes]
_NUMBER = struct.Struct(">I")
_STREAM = struct.Struct(">H")
_PLACE = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Moved:
    """An entry on its way to a new subtask.

    `subtask` is ``None`` if the new subtask depends on the key's new key group. Then `head` and
    `tail` are the stored key before and after the key group, which is left out, and `key` is the
    user's encoded key. Else `head` is the whole stored key, and `tail` is empty.
    """

    subtask: int | None
    head: bytes
    tail: bytes
    value: bytes
    key: bytes | None = None


class Redistribution:
    """Moves the entries of one old subtask.

    `gives_broadcast` says whether all new subtasks get the broadcast state of this subtask.
    """

    def __init__(
        self,
        handle: Handle,
        merged: UnifiedStates,
        parallelism: int,
        max_parallelism: int,
        *,
        gives_broadcast: bool,
    ) -> None:
        self._handle = handle
        self._states = merged.states
        self._moves = merged.moves(handle)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._keeps_key_groups = handle.max_parallelism == max_parallelism
        self._gives_broadcast = gives_broadcast

    def moved(self, entries: Iterable[Entry]) -> Iterator[Moved]:
        """Yield what the subtask's entries, given in key order, become."""
        for place, group in groupby(entries, key=_place_of):
            if place == _KEYED:
                for key, value in group:
                    yield from self._keyed(key, value)
            elif place == TIME_INDEX:
                start = len(TIME_INDEX) + TIME_BYTES
                for key, value in group:
                    yield self._by_key_group(key, start, key[start + KEY_GROUP_BYTES :], value)
            elif place == RAW_STATE:
                yield from self._raw(group)
            elif place.startswith(OPERATOR_STATE):
                yield from self._operator_state(place, group)
            else:
                raise CorruptFileError(
                    f"operator {self._handle.uid!r}, subtask {self._handle.subtask}: stored key "
                    f"{place.hex()} is of no known kind; restore from another checkpoint"
                )

    def _keyed(self, stored_key: bytes, value: bytes) -> Iterator[Moved]:
        state_id = state_id_of(stored_key)
        start = KEY_GROUP_BYTES + 1
        if state_id == MAX_STATES:
            end = len(stored_key) - TIME_BYTES
            yield self._by_key_group(stored_key, 0, stored_key[start:end], value)
            return
        move = self._moves.get(state_id)
        if move is None:  # of a deleted state
            return
        end = start
        if move.rewrite is not None or not self._keeps_key_groups:
            end = end_of_value(stored_key, start)
        key, rest = stored_key[start:end], stored_key[end:]
        rest, value = rewritten(move, rest, value)
        head = stored_key[:KEY_GROUP_BYTES] + bytes([move.target_id])
        yield self._by_key_group(head + key + rest, 0, key, value)

    def _by_key_group(self, stored_key: bytes, start: int, key: bytes, value: bytes) -> Moved:
        """Return an entry that goes where the key group goes that its stored key has at `start`."""
        end = start + KEY_GROUP_BYTES
        if not self._keeps_key_groups:
            return Moved(None, stored_key[:start], stored_key[end:], value, key)
        key_group = int.from_bytes(stored_key[start:end], "big")
        subtask = subtask_of(key_group, self._parallelism, self._max_parallelism)
        return Moved(subtask, stored_key, b"", value)

    def _operator_state(self, prefix: bytes, entries: Iterable[Entry]) -> Iterator[Moved]:
        move = self._moves.get(prefix[len(OPERATOR_STATE)])
        if move is None:
            return
        target = self._states[move.target_id]
        new_prefix = OPERATOR_STATE + bytes([move.target_id])
        moved = (rewritten(move, stored_key[len(prefix) :], value) for stored_key, value in entries)
        if kind_of(target).movement is Movement.DEALT_OUT:
            yield from self._list(new_prefix, target, moved)
        elif self._gives_broadcast:
            for rest, value in moved:
                for subtask in range(self._parallelism):
                    yield Moved(subtask, new_prefix + rest, b"", value)

    def _list(
        self, prefix: bytes, state: StateDescriptor, entries: Iterable[Entry]
    ) -> Iterator[Moved]:
        everyone = range(self._parallelism)
        goes_to_all = state.redistribution is ListRedistribution.UNION
        chunks = dict.fromkeys(everyone, 0)
        position = self._handle.subtask  # so that short lists do not all begin at subtask 0
        for rest, value in entries:
            if not rest:  # the number of chunks, which is written again below
                continue
            items = decode_chunk(value)
            for subtask in everyone:
                first = (subtask - position) % self._parallelism
                part = items if goes_to_all else items[first :: len(everyone)]
                if part:
                    number = _PLACE.pack(self._handle.subtask, chunks[subtask])
                    yield Moved(subtask, prefix + number, b"", encode_chunk(part))
                    chunks[subtask] += 1
            position += len(items)
        for subtask, written in chunks.items():
            if written:
                yield Moved(subtask, prefix, b"", _NUMBER.pack(written))

    def _raw(self, entries: Iterable[Entry]) -> Iterator[Moved]:
        old = self._handle.subtask
        subtask = old * self._parallelism // self._handle.parallelism
        for stored_key, value in entries:
            stream_and_chunk = stored_key[len(RAW_STATE) :]
            yield Moved(subtask, RAW_STATE + _NUMBER.pack(old) + stream_and_chunk, b"", value)


def numbered(entries: Iterable[Entry], states: tuple[StateDescriptor, ...]) -> Iterator[Entry]:
    """Number the chunks and streams of a new subtask's entries, which come in key order."""
    for place, group in groupby(entries, key=_place_of):
        if place == RAW_STATE:
            yield from _numbered_streams(group)
        elif (
            place.startswith(OPERATOR_STATE)
            and kind_of(states[place[len(OPERATOR_STATE)]]).entries is Entries.CHUNKS
        ):
            yield from _numbered_chunks(place, group)
        else:
            yield from group


def earliest_timer_ms(stored_key: bytes) -> int | None:
    """Return the time of a timer in the order of time, ``None`` for another entry."""
    if not stored_key.startswith(TIME_INDEX):
        return None
    start = len(TIME_INDEX)
    return decode_time(stored_key[start : start + TIME_BYTES])


def rewritten(move: StateMove, rest: bytes, value: bytes) -> Entry:
    """Return the end of an entry's stored key and its value as they are after a move."""
    if move.rewrite is None and not move.stamp:
        return rest, value
    data = without_stamp(value)
    stamp = value[: len(value) - len(data)] or move.stamp
    if move.rewrite is not None:
        rest, data = move.rewrite(rest, data)
    return rest, stamp + data


def _numbered_chunks(prefix: bytes, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The numbers of chunks, one from each old subtask, come first; all have the same key."""
    chunks, number = 0, 0
    for stored_key, value in entries:
        if stored_key == prefix:
            chunks += _NUMBER.unpack(value)[0]
            continue
        if number == 0:
            yield prefix, _NUMBER.pack(chunks)
        yield prefix + _NUMBER.pack(number), value
        number += 1


def _numbered_streams(entries: Iterable[Entry]) -> Iterator[Entry]:
    start = len(RAW_STATE)
    end = start + _NUMBER.size + _STREAM.size
    streams = groupby(entries, key=lambda entry: entry[0][start:end])
    for number, (_, chunks) in enumerate(streams):
        if number == MAX_STREAMS:
            raise PlanError(
                f"raw state has more than {MAX_STREAMS} streams for one subtask: use a higher "
                "parallelism"
            )
        for stored_key, value in chunks:
            yield RAW_STATE + _STREAM.pack(number) + stored_key[end:], value


_KEYED = b"\x00\x00"
"""Stands for all keyed state and the timers of keys."""


def _place_of(entry: Entry) -> bytes:
    """Return what kind of entry it is; of operator state, also which one."""
    stored_key = entry[0]
    if is_keyed(stored_key):
        return _KEYED
    if stored_key.startswith(OPERATOR_STATE):
        return stored_key[: len(OPERATOR_STATE) + 1]
    return stored_key[:KEY_GROUP_BYTES]
