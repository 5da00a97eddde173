"""Removes expired entries in a range of the stored keys per epoch, and those of deleted states.

The range grows with the writes of the epoch. So the sweep keeps up with a growing state, and no
epoch reads all state. Flink's heap backend cleans up incrementally in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, kind_of
from pyspark_ckpt.operator.state.removal import remove_deleted
from pyspark_ckpt.operator.table.stored_keys import (
    MAX_STATES,
    OPERATOR_STATE,
    is_keyed,
    state_id_of,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import TimeToLive

LEAST_ENTRIES = 1_000
ENTRIES_PER_WRITE = 2


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
