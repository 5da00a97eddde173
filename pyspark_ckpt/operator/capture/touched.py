"""The state that an epoch works on: entries of the keys that were worked on, and of no key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import FREE
from pyspark_ckpt.operator.table.part_keys import StoredKey
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
    TIME_INDEX,
    TIMERS_ID,
    is_keyed,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.values.message_pack import end_of_value
from state_backends import StateBackend

_AT_ONCE = 10_000
_KEY_START = KEY_GROUP_BYTES + 1

Entry = tuple[bytes, bytes | None]


class NotingTable(StateTable):
    """A table that notes the keys that the epoch works on, in :attr:`touched`."""

    def __init__(self, backend: StateBackend, writes: EpochWrites) -> None:
        self.touched: dict[StoredKey, None] = {}
        super().__init__(backend, writes=writes)

    def begin_part(self, keys: Sequence[StoredKey]) -> None:
        """Continue with another part of the epoch's keys."""
        self.touched.update(dict.fromkeys(keys))
        super().begin_part(keys)


def stored_entries(
    backend: StateBackend, states: Sequence[StateDescriptor], touched: Iterable[StoredKey]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the stored entries of some keys, and all entries that belong to no key.

    The timers in the order of their time are left out, see :func:`times_of`.
    """
    for prefix in (OPERATOR_STATE, RAW_STATE):
        yield from backend.scan(prefix)
    keys = list(touched)
    for number, state in enumerate(states):
        if state.kind == FREE or state.sweeps is not None:
            continue
        kind = kind_of(state)
        if kind.movement is Movement.WITH_KEY:
            state_id = bytes([number])
            is_one = kind.entries is Entries.ONE
            yield from (_single if is_one else _below)(backend, state_id, keys)
    yield from _below(backend, TIMERS_ID, keys)


def _single(
    backend: StateBackend, state_id: bytes, keys: Sequence[StoredKey]
) -> Iterator[tuple[bytes, bytes]]:
    for start in range(0, len(keys), _AT_ONCE):
        stored = [group + state_id + key for group, key in keys[start : start + _AT_ONCE]]
        for each, value in zip(stored, backend.get_many(stored), strict=True):
            if value is not None:
                yield each, value


def _below(
    backend: StateBackend, state_id: bytes, keys: Sequence[StoredKey]
) -> Iterator[tuple[bytes, bytes]]:
    for group, key in keys:
        yield from backend.scan(group + state_id + key)


def is_of(stored_key: bytes, touched: dict[StoredKey, None]) -> bool:
    """Return whether an entry is of one of some keys, or of no key; never of the times index."""
    if is_keyed(stored_key):
        return key_of(stored_key) in touched
    return not stored_key.startswith(TIME_INDEX)


def key_of(stored_key: bytes) -> StoredKey:
    """Return the key of a keyed entry."""
    end = end_of_value(stored_key, _KEY_START)
    return stored_key[:KEY_GROUP_BYTES], stored_key[_KEY_START:end]


def times_of(stored_keys: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the timers among some entries as the index by time has them."""
    for stored in stored_keys:
        if is_keyed(stored) and stored[KEY_GROUP_BYTES:_KEY_START] == TIMERS_ID:
            time, key = stored[-TIME_BYTES:], stored[_KEY_START:-TIME_BYTES]
            yield TIME_INDEX + time + stored[:KEY_GROUP_BYTES] + key
