"""Counts a subtask's keys, timers and bytes: all of them while they are few, else a sample.

A write does not show whether its key is new, and a look-up costs more than the write. So the
entries of some whole key groups are counted at the barrier. Keys are spread over key groups by
their hash, so that the part stands for the whole. What the epoch wrote is counted with them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from pyspark_ckpt.formats.handle import Handle, StateCount, StateCounts, StateDescriptor
from pyspark_ckpt.operator.rows.keys import key_groups_of
from pyspark_ckpt.operator.state.kinds import Entries, kind_of
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    KEY_START,
    MAX_STATES,
    encode_key_group,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.values.message_pack import end_of_value
from state_backends import Changes

ENOUGH_ENTRIES = 1_000
"""After so many entries, no further key group is begun."""

MOST_ENTRIES = 50_000
"""A key group with more entries is not counted: it would take too much time and memory."""

COST_SHARE = 200
"""Counting takes at most one part in so many of the time."""

FEW_ENTRIES = 500
"""Up to so many entries are counted in every epoch, so they are exact; it takes about 1 ms."""


def is_due(counts: StateCounts | None, now_ms: int) -> bool:
    """Return whether it is time to count again."""
    if counts is None or now_ms < counts.counted_at_ms:
        return True
    entries = counts.timers + sum(state.entries for state in counts.states)
    if counts.groups == counts.of_groups and entries <= FEW_ENTRIES:
        return True
    return 1000 * (now_ms - counts.counted_at_ms) >= COST_SHARE * counts.took_us


class StateCounting:
    """Counts the state that an epoch leaves; made before its changes are read."""

    def __init__(self, table: StateTable, handle: Handle) -> None:
        began = time.monotonic_ns()
        groups = key_groups_of(handle.subtask, handle.parallelism, handle.max_parallelism)
        self._groups = groups
        self._start = encode_key_group(groups.start)
        self._end = encode_key_group(groups.stop)
        self._sizes: dict[bytes, int] | None = {}
        self._read_stored(table)
        self._took_ns = time.monotonic_ns() - began

    def through(self, changes: Iterable[Changes]) -> Iterator[Changes]:
        """Yield an epoch's changes, which are in key order, and count them."""
        for part in changes:
            began = time.monotonic_ns()
            self._add(part)
            self._took_ns += time.monotonic_ns() - began
            yield part

    def counts(self, states: Sequence[StateDescriptor], epoch: int, now_ms: int) -> StateCounts:
        """Return what was counted; called after all changes have been read.

        `states` are in the order of their ids.
        """
        began = time.monotonic_ns()
        sizes, timers, rows = self._sizes, 0, []
        groups = 0
        if sizes is not None:
            groups = int.from_bytes(self._end, "big") - self._groups.start
            by_state: dict[int, list[bytes]] = {}
            for key in sizes:
                by_state.setdefault(key[KEY_GROUP_BYTES], []).append(key)
            timers = len(by_state.pop(MAX_STATES, ()))
            rows = [
                _count(state, by_state.get(number, []), sizes)
                for number, state in enumerate(states)
                if state.sweeps is None
            ]
        took_ns = self._took_ns + time.monotonic_ns() - began
        return StateCounts(
            epoch=epoch,
            counted_at_ms=now_ms,
            took_us=took_ns // 1000,
            groups=groups,
            of_groups=len(self._groups),
            timers=timers,
            states=tuple(rows),
        )

    def _read_stored(self, table: StateTable) -> None:
        group = b""
        sizes: dict[bytes, int] = {}
        with closing(table.scan_stored(self._start)) as entries:  # type: ignore[type-var]
            for key, value in entries:
                if key >= self._end:
                    break
                if key[:KEY_GROUP_BYTES] != group:
                    group = key[:KEY_GROUP_BYTES]
                    if len(sizes) >= ENOUGH_ENTRIES:
                        self._end = group
                        break
                sizes[key] = len(key) + len(value)
                if len(sizes) > MOST_ENTRIES:
                    self._sizes = None
                    return
        self._sizes = sizes

    def _add(self, part: Changes) -> None:
        sizes = self._sizes
        if sizes is None:
            return
        first, last = bisect_left(part.keys, self._start), bisect_left(part.keys, self._end)
        for position in range(first, last):
            key, value = part.keys[position], part.values[position]
            if value is None:
                sizes.pop(key, None)
            else:
                sizes[key] = len(key) + len(value)
        if last > first and len(sizes) > MOST_ENTRIES:
            self._give_up_groups_from(part.keys[last - 1][:KEY_GROUP_BYTES])

    def _give_up_groups_from(self, group: bytes) -> None:
        """Count only the key groups before one, because it and later ones are not complete yet."""
        if group == self._start:
            self._sizes = None
            return
        assert self._sizes is not None
        self._end = group
        self._sizes = {key: size for key, size in self._sizes.items() if key < group}


def _count(state: StateDescriptor, entries: list[bytes], sizes: dict[bytes, int]) -> StateCount:
    keys = len(entries)
    if kind_of(state).entries is not Entries.ONE:
        keys = len({key[:2] + key[KEY_START : end_of_value(key, KEY_START)] for key in entries})
    size_bytes = sum(map(sizes.__getitem__, entries))
    return StateCount(name=state.name, keys=keys, entries=len(entries), size_bytes=size_bytes)
