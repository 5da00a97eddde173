"""Removes the entries of deleted states and expired entries, a range of the keys per epoch.

An id is free when none of the state's entries is stored. Only the places where such entries lie are
looked at: a range in each key group, and a range of operator state. So the cost does not depend on
what other states hold.

The epoch that deletes a state removes what is stored. The next one looks again, because what the
first one wrote was not stored yet, and frees the id. If there are many entries, each epoch
continues at the key group where the last one stopped. An epoch that needs an id removes what is
left of a deleted state, if that is not much, or if all ids are taken. So ids do not run out.

How far it came is in ``StateDescriptor.sweeps``: ``1 + n`` says that the key groups below ``n``
have no entry, and 0 that the state was just deleted.

The range grows with the writes of the epoch. So the sweep keeps up with a growing state, and no
epoch reads all state. Flink's heap backend cleans up incrementally in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import FREE_PLACE, is_deleted
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    KEY_START,
    MAX_STATES,
    OPERATOR_STATE,
    encode_key_group,
    is_keyed,
    state_id_of,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import TimeToLive
from pyspark_ckpt.values.message_pack import end_of_value

_Place = tuple[int, bytes | None]
"""The key group that a pass has come to, and the stored key of an entry that it found there."""

_SHARES = 4
"""A deleted state gets such a part of an epoch's removals before another one gets more."""

_KEY_GROUPS = 1 << 15
"""Key groups that a stored key can have."""

LEAST_ENTRIES = 1_000
ENTRIES_PER_WRITE = 2


def remove_deleted(
    table: StateTable, states: tuple[StateDescriptor, ...], most: int
) -> tuple[tuple[StateDescriptor, ...], int]:
    """Remove entries of deleted states, and free the ids of states that have none left.

    Called at the barrier, on an executor; the removals are writes of the epoch.

    `states` are in the order of their ids, and `most` limits how many entries and key groups are
    looked at. The result is the states after this epoch and the number of removed entries.
    """
    passes = {
        state_id: _Pass(_places(table, state_id, state), table)
        for state_id, state in enumerate(states)
        if is_deleted(state)
    }
    left = most
    # At first a share for each, so that a large state does not keep the ids of small ones taken.
    for share in (max(most // _SHARES, 1), most):
        for one in passes.values():
            left -= one.run(min(share, left))
    after = tuple(
        _after_pass(state, passes[state_id]) if state_id in passes else state
        for state_id, state in enumerate(states)
    )
    return after, sum(one.removed for one in passes.values())


def remove_at_once(
    table: StateTable, state_id: int, state: StateDescriptor, most: int | None
) -> bool:
    """Remove all entries of a deleted state before the first row, so that its id can be used.

    The scans of the state that gets the id see the removals.

    Returns whether the state has no entry any more; if it still has entries, nothing was removed.
    `most` limits how many entries and key groups are looked at; ``None`` stands for all.
    """
    places = _places(table, state_id, state)
    if most is not None:
        some = list(islice(places, most + 1))
        if len(some) > most:
            return False
        places = iter(some)
    for _, key in places:
        if key is not None:
            below = key[: end_of_value(key, KEY_START)] if is_keyed(key) else key[:KEY_START]
            table.write_below(below, key, None)
    return True


def is_keyed_state(state: StateDescriptor) -> bool:
    """Return whether a state is known to be keyed, so that no ``init`` can write to it."""
    return _movement(state) is Movement.WITH_KEY


def _movement(state: StateDescriptor) -> Movement | None:
    try:
        return kind_of(state).movement
    except IncompatibleStateError:  # of a later version
        return None


class _Pass:
    """Removes the entries of a deleted state, a few at a time, from where the last pass stopped."""

    def __init__(self, places: Iterator[_Place], table: StateTable) -> None:
        self.stopped_at: int | None = None
        self.removed = 0
        self.is_whole = False
        self._table = table
        self._places = places

    def run(self, most: int) -> int:
        """Look at so many places at most, and return how many there were."""
        for looked in range(most):
            place = next(self._places, None)
            if place is None:
                self.is_whole = True
                return looked
            self.stopped_at, key = place
            if key is not None:
                self._table.delete(key)
                self.removed += 1
        return most


def _after_pass(state: StateDescriptor, one: _Pass) -> StateDescriptor:
    if state.sweeps == 0:
        return msgspec.structs.replace(state, sweeps=1)
    if one.is_whole:
        return FREE_PLACE
    return (
        state
        if one.stopped_at is None
        else msgspec.structs.replace(state, sweeps=1 + one.stopped_at)
    )


def _places(table: StateTable, state_id: int, state: StateDescriptor) -> Iterator[_Place]:
    """Yield where a deleted state may have entries, from where the last pass stopped."""
    movement, group = _movement(state), max((state.sweeps or 0) - 1, 0)
    if movement is not Movement.WITH_KEY:
        prefix = OPERATOR_STATE + bytes([state_id])
        for key, _ in table.scan_stored(prefix):
            if not key.startswith(prefix):
                break
            yield group, key
    if movement in (Movement.WITH_KEY, None):
        yield from _of_keys(table, state_id, group)


def _of_keys(table: StateTable, state_id: int, group: int) -> Iterator[_Place]:
    while group < _KEY_GROUPS:
        prefix = encode_key_group(group) + bytes([state_id])
        next_key = None
        for key, _ in table.scan_stored(prefix):
            if not key.startswith(prefix):
                next_key = key
                break
            yield group, key
        if next_key is None or not is_keyed(next_key):
            return
        # Key groups without any entry are passed over.
        group = int.from_bytes(next_key[:KEY_GROUP_BYTES], "big")
        group += state_id_of(next_key) > state_id
        yield group, None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Where the next epoch's sweep begins, and the states after this epoch.

    `removed` counts the removed entries.
    """

    sweep_from: bytes
    states: tuple[StateDescriptor, ...]
    removed: int = 0


class _Removals:
    """Deletes entries and counts them."""

    def __init__(self, table: StateTable, count: int) -> None:
        self._table = table
        self.count = count

    def delete(self, key: bytes) -> None:
        self._table.delete(key)
        self.count += 1


def sweep(
    table: StateTable,
    states: tuple[StateDescriptor, ...],
    aging: Mapping[int, TimeToLive],
    sweep_from: bytes,
) -> Sweep:
    """Remove expired entries from the next range of stored keys, and those of deleted states.

    Called at the barrier, on an executor; the removals are writes of the epoch.

    It is called after all writes of the epoch. `states` are in the order of their ids, and
    `sweep_from` is where the last epoch's sweep ended.
    """
    budget = LEAST_ENTRIES + ENTRIES_PER_WRITE * table.written_entries()
    states, removed = remove_deleted(table, states, budget)
    if not aging:
        return Sweep(b"", states, removed)
    # The first entry of a chunked state leads to the others, whose times may differ.
    chunked = {
        state_id
        for state_id, state in enumerate(states)
        if state.sweeps is None and kind_of(state).entries is Entries.CHUNKS
    }
    removals = _Removals(table, removed)
    head = b""  # the first entry of an expired list, which is removed after the entries below it
    for key, value in table.scan_stored(sweep_from):
        if head and not key.startswith(head):
            removals.delete(head)
            head = b""
        if budget == 0:
            return Sweep(head or key, states, removals.count)
        budget -= 1
        state_id = _state_id(key)
        ages = aging.get(state_id)
        if ages is None or not ages.is_expired(value) or table.is_written(key):
            head = b""
        elif state_id in chunked and not head:
            head = key
        else:
            removals.delete(key)
    if head:
        removals.delete(head)
    return Sweep(b"", states, removals.count)


def _state_id(key: bytes) -> int:
    if is_keyed(key):
        return state_id_of(key)
    return key[len(OPERATOR_STATE)] if key.startswith(OPERATOR_STATE) else MAX_STATES
