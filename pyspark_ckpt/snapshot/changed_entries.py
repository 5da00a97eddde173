"""The entries that differ between two snapshots of an operator, by what they are, not where.

Where both sides number their states and key groups in one way, entries are compared as they are
stored, without those that both share. Otherwise all entries are compared, in memory.

Timers and raw state are compared as entries of :data:`TIMERS` and :data:`RAW`. Entries of a deleted
state stay stored until a sweep removes them, but belong to no state. Where a subtask has such
entries, and the other side a state with their id, all entries of that state are read: each was
added or removed.

A subtask that was idle may have other schemas than the newest one. Its values are rewritten as if
they moved to it, so that one history of schemas reads all values of a side. Of broadcast state, of
which every subtask has a copy, that of the newest subtask counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.operator.table.catalog import is_beginning, is_deleted
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES, OPERATOR_STATE, RAW_STATE, is_keyed
from pyspark_ckpt.snapshot.reader import StoredOperator
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stored.comparison import Change, changes_between
from pyspark_ckpt.stored.redistribution import rewritten
from pyspark_ckpt.stored.state import StoredState
from pyspark_ckpt.stored.unify import newest_of
from pyspark_ckpt.values.message_pack import end_of_value

HEAD_BYTES = 3
"""Bytes before the user's key: the key group, and the id of the state."""

TIMERS, RAW = "\0timers", "\0raw"
"""What the places of timers and raw state have in place of a state's name, which has no null byte.
"""


class Place(NamedTuple):
    """Where an entry is, whatever the numbers of its key group and state: `key` is the rest.

    `state` is a name, :data:`TIMERS` or :data:`RAW`. `subtask` is ``None`` for keyed and broadcast
    state, which belong to no subtask.
    """

    state: str
    subtask: int | None
    key: bytes


@dataclass(frozen=True, slots=True)
class Side:
    """One operator of one snapshot."""

    storage: Storage
    operator: StoredOperator | None

    @property
    def handles(self) -> dict[int, Handle]:
        """The handles by subtask."""
        handles = () if self.operator is None else self.operator.handles
        return {handle.subtask: handle for handle in handles}

    def stored(self, handle: Handle | None) -> StoredState | None:
        """Return the state of one of its subtasks, ``None`` if it has none."""
        return None if handle is None else StoredState(self.storage, handle)

    @property
    def newest_subtask(self) -> int | None:
        """The subtask whose copy of broadcast state counts, ``None`` if there is no subtask."""
        handles = self.handles.values()
        return newest_of(handles).subtask if handles else None

    def entries(self) -> Iterator[tuple[Place, bytes]]:
        """Yield all entries of states, timers and raw state."""
        newest = self.newest_subtask
        for handle in self.handles.values():
            copied = _Places(handle).copied
            for place, value in self.entries_of(handle):
                if place.state not in copied or handle.subtask == newest:
                    yield place, value

    def copies(self) -> dict[Place, bytes]:
        """Return the entries of broadcast states."""
        newest = self.newest_subtask
        if newest is None:
            return {}
        handle = self.handles[newest]
        if not (copied := _Places(handle).copied):
            return {}
        return {place: value for place, value in self.entries_of(handle) if place.state in copied}

    def entries_of(self, handle: Handle) -> Iterator[tuple[Place, bytes]]:
        """Yield all entries of one of its subtasks."""
        places, moved = _Places(handle), _Moved(self, handle)
        for part in StoredState(self.storage, handle).scan():
            for key, value in part.pairs():
                place = places.of(key)
                if place is not None:
                    yield place, moved.value(key, value)


class _Places:
    """Where the entries of a subtask are."""

    def __init__(self, *handles: Handle | None) -> None:
        found = [handle for handle in handles if handle is not None]
        self._subtask = found[0].subtask
        self._names: dict[int, str] = {}
        for handle in found:
            self._names |= state_names(handle)
        self.copied = {
            state.name
            for handle in found
            for state in handle.states
            if state.sweeps is None and kind_of(state).movement is Movement.COPIED
        }

    def of(self, key: bytes) -> Place | None:
        """Return the place of a stored key, ``None`` if it belongs to no state."""
        place = place_of(key, self._subtask, self._names)
        if place is not None and place.state in self.copied:
            return place._replace(subtask=None)
        return place


class _Moved:
    """The values of a subtask as the schemas of its operator's newest subtask read them."""

    def __init__(self, side: Side, handle: Handle | None) -> None:
        moves = (
            {} if side.operator is None or handle is None else side.operator.states.moves(handle)
        )
        self._moves = {number: move for number, move in moves.items() if move.rewrite or move.stamp}

    @property
    def rewrites(self) -> bool:
        """Whether any value changes."""
        return bool(self._moves)

    def value(self, key: bytes, value: bytes) -> bytes:
        """Return the value of a stored key."""
        if not self._moves or not (is_keyed(key) or key.startswith(OPERATOR_STATE)):
            return value
        move = self._moves.get(key[HEAD_BYTES - 1])
        if move is None:
            return value
        end = end_of_value(key, HEAD_BYTES) if is_keyed(key) else HEAD_BYTES
        return rewritten(move, key[end:], value)[1]

    def change(self, key: bytes, value: bytes | None) -> bytes | None:
        """Return the value of a stored key that may have none."""
        return None if value is None else self.value(key, value)


def changed_entries(old: Side, new: Side) -> dict[Place, Change]:
    """Return the entries of states, timers and raw state that differ, by their places."""
    if not is_same_layout(old, new):
        return _differences(dict(old.entries()), dict(new.entries()))
    found: dict[Place, Change] = {}
    newest = old.newest_subtask, new.newest_subtask
    for subtask in sorted(old.handles.keys() | new.handles.keys()):
        first, second = old.handles.get(subtask), new.handles.get(subtask)
        places = _Places(first, second)
        moved, moved_later = _Moved(old, first), _Moved(new, second)
        removed, added = _deleted_in(second, first), _deleted_in(first, second)
        is_moved = moved.rewrites or moved_later.rewrites
        for key, stored in changes_between(old.stored(first), new.stored(second)):
            place, change = places.of(key), stored
            if is_moved:
                change = Change(moved.change(key, stored.old), moved_later.change(key, stored.new))
            if place is None or place.state in removed or place.state in added:
                continue
            if place.state in places.copied and newest != (subtask, subtask):
                continue  # the copy of the newest subtask counts
            if change.old != change.new:
                found[place] = change
        found |= {place: Change(value, None) for place, value in _of_states(old, first, removed)}
        found |= {place: Change(None, value) for place, value in _of_states(new, second, added)}
    if newest[0] != newest[1]:
        found |= _differences(old.copies(), new.copies())
    return found


def _differences(
    before: Mapping[Place, bytes], after: Mapping[Place, bytes]
) -> dict[Place, Change]:
    return {
        place: Change(before.get(place), after.get(place))
        for place in before.keys() | after.keys()
        if before.get(place) != after.get(place)
    }


def _deleted_in(handle: Handle | None, other: Handle | None) -> set[str]:
    """Return the states of another handle whose ids a deleted state has in this one."""
    if handle is None or other is None:
        return set()
    deleted = {number for number, state in enumerate(handle.states) if is_deleted(state)}
    return {name for number, name in state_names(other).items() if number in deleted}


def _of_states(
    side: Side, handle: Handle | None, names: Container[str]
) -> Iterator[tuple[Place, bytes]]:
    """Yield all entries of some states of a subtask."""
    if handle is None or not names:
        return iter(())
    return (each for each in side.entries_of(handle) if each[0].state in names)


def is_same_layout(old: Side, new: Side) -> bool:
    """Return whether equal entries have equal stored keys in the same subtask."""
    if old.operator is None or new.operator is None:
        return False
    first, second = old.operator.metadata, new.operator.metadata
    if (first.parallelism, first.max_parallelism) != (second.parallelism, second.max_parallelism):
        return False
    for subtask in old.handles.keys() & new.handles.keys():
        names, later = state_names(old.handles[subtask]), state_names(new.handles[subtask])
        if any(names[number] != later[number] for number in names.keys() & later.keys()):
            return False
        if {*names.values()} & {*later.values()} != {
            names[number] for number in names.keys() & later.keys()
        }:
            return False
        if not all(
            are_related(old.handles[subtask].states[number], new.handles[subtask].states[number])
            for number in names.keys() & later.keys()
        ):
            return False
    return True


def are_related(one: StateDescriptor, other: StateDescriptor) -> bool:
    """Return whether equal stored values are equal."""
    before = (*one.earlier_schemas, one.value_schema)
    after = (*other.earlier_schemas, other.value_schema)
    return is_beginning(before, after) or is_beginning(after, before)


def state_names(handle: Handle) -> dict[int, str]:
    """Return the names of a subtask's states by their ids, without deleted states."""
    return {
        number: state.name for number, state in enumerate(handle.states) if state.sweeps is None
    }


def place_of(key: bytes, subtask: int, names: dict[int, str]) -> Place | None:
    """Return the place of a stored key in a subtask, ``None`` if it belongs to no state."""
    if is_keyed(key):
        number = key[HEAD_BYTES - 1]
        keyed = TIMERS if number == MAX_STATES else names.get(number)
        return None if keyed is None else Place(keyed, None, key[HEAD_BYTES:])
    if key.startswith(OPERATOR_STATE):
        name = names.get(key[HEAD_BYTES - 1])
        return None if name is None else Place(name, subtask, key[HEAD_BYTES:])
    if key.startswith(RAW_STATE):
        return Place(RAW, subtask, key[len(RAW_STATE) :])
    return None  # the timers in the order of their time
