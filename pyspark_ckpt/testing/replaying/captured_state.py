"""What a capture tells of a subtask's state: entries of the keys that its epochs worked on."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.capture.touched import key_of, times_of
from pyspark_ckpt.operator.quarantine.parked_keys import KEYS_STATE, ParkedKey, comparable
from pyspark_ckpt.operator.schema.report import ROWS_STATE
from pyspark_ckpt.operator.table.catalog import FREE, codec_of
from pyspark_ckpt.operator.table.part_keys import StoredKey
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    TIME_BYTES,
    TIME_INDEX,
    TIMERS_ID,
    decode_time,
    is_keyed,
    state_id_of,
)

Entries = dict[bytes, bytes]


class CapturedState:
    """The state that the query had of the keys that were worked on; operator state under ``None``.

    Epochs may be missing between two that were captured. Of a key that the next one does not work
    on, two things are known all the same: no timer of it is due, because due timers are worked on,
    and it is not parked, because each parked key is kept with the epoch.
    """

    def __init__(self) -> None:
        self._by_key: dict[StoredKey | None, Entries] = defaultdict(dict)
        self._by_time: list[bytes] = []
        """The timers in the order of their time, as a heap; some are no longer there."""
        self._worked_on: tuple[StoredKey, ...] = ()

    def of(self, keys: Iterable[StoredKey | None]) -> Entries:
        """Return the entries of some keys."""
        found: Entries = {}
        for key in keys:
            found |= self._by_key.get(key, {})
        return found

    def begin_epoch(self, before: Mapping[bytes, bytes], touched: Iterable[StoredKey]) -> None:
        """Take the state before an epoch for that of the keys that the epoch works on."""
        self._worked_on = tuple(touched)
        for key in (None, *self._worked_on):
            self._by_key[key] = {}
        self._put(before.items())

    def write(self, writes: Mapping[bytes, bytes | None]) -> None:
        """Apply what the epoch wrote."""
        self._put(writes.items())

    def remove_past(
        self, touched: Container[StoredKey], now_ms: int | None, parking: Parking
    ) -> Entries:
        """Remove, before an epoch, what is over of keys that it does not work on; return it."""
        past: Entries = {}
        for key in self._worked_on:  # these have each parked key of the last epoch
            if key not in touched:
                past |= {
                    place: value for place, value in self._by_key[key].items() if parking.has(place)
                }
        while self._by_time and now_ms is not None and _time_ms(self._by_time[0]) <= now_ms:
            place = _below_key(heapq.heappop(self._by_time))
            key = key_of(place)
            if key not in touched and place in self._by_key.get(key, {}):
                past[place] = self._by_key[key][place]
        for place in past:
            del self._by_key[key_of(place)][place]
        return past

    def keep_groups(self, key_groups: range) -> None:
        """Forget the keys of all other key groups: they are of other subtasks now."""
        for key in list(self._by_key):
            if key is not None and int.from_bytes(key[0], "big") not in key_groups:
                del self._by_key[key]

    def _put(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        for place, value in entries:
            of_key = self._by_key[key_of(place) if is_keyed(place) else None]
            if value is None:
                of_key.pop(place, None)
            else:
                of_key[place] = value
                for by_time in times_of([place]):
                    heapq.heappush(self._by_time, by_time)


class Parking:
    """The two states of the parked keys among the states of an epoch."""

    def __init__(self, states: Sequence[StateDescriptor]) -> None:
        live = {
            state.name: number
            for number, state in enumerate(states)
            if state.kind != FREE and state.sweeps is None
        }
        self._keys_id = live.get(KEYS_STATE)
        self._ids = {live[name] for name in (KEYS_STATE, ROWS_STATE) if name in live}
        self._decode = None
        if self._keys_id is not None:
            self._decode = codec_of(states[self._keys_id], KEYS_STATE).decode

    def has(self, place: bytes) -> bool:
        """Return whether an entry is of a parked key or of its rows."""
        return is_keyed(place) and state_id_of(place) in self._ids

    def is_alike(self, place: bytes, value: bytes | None, other: bytes | None) -> bool:
        """Return whether two values of an entry mean the same.

        The lines of code in the error of a parked key do not count: an equal program may have them
        elsewhere.
        """
        if value == other or value is None or other is None or self._decode is None:
            return value == other
        if not is_keyed(place) or state_id_of(place) != self._keys_id:
            return False
        first, second = (
            comparable(msgspec.structs.asdict(ParkedKey(*self._decode(each))))
            for each in (value, other)
        )
        return first == second


def _time_ms(by_time: bytes) -> int:
    return decode_time(by_time[len(TIME_INDEX) : len(TIME_INDEX) + TIME_BYTES])


def _below_key(by_time: bytes) -> bytes:
    """Return a timer of the index by time as it is stored with its key."""
    time_end = len(TIME_INDEX) + TIME_BYTES
    group_end = time_end + KEY_GROUP_BYTES
    time, group = by_time[len(TIME_INDEX) : time_end], by_time[time_end:group_end]
    return group + TIMERS_ID + by_time[group_end:] + time
