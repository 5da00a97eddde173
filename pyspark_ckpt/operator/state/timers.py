"""Timers: many per key, stored with the key and a second time in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from pyspark_ckpt.errors import StateError, TimeModeError
from pyspark_ckpt.formats.handle import QUARANTINED_TIMERS_MS
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    KEY_START,
    TIME_BYTES,
    TIME_INDEX,
    TIMERS_ID,
    Numbers,
    decode_time,
    encode_time,
    encode_times,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock

_NOTHING = b""

_FIRES_ALL_THE_SAME = b"\x01"
"""What a due timer holds in the order of time between its deletion and its turn to fire.

It lies among the epoch's writes, so that any number of timers has room, and a call that is undone
takes it back. It is gone before the barrier.
"""


@dataclass(frozen=True, slots=True)
class DueTimer:
    """A timer that fires in this epoch."""

    time_ms: int
    key: StoredKey


@dataclass(frozen=True, slots=True)
class _StoredTimers:
    """The stored keys of timers: with their keys, and by time."""

    below_keys: list[bytes]
    by_time: list[bytes]


class Timers:
    """The timers of a subtask in one epoch.

    A timer that is registered while timers fire, and is already due, fires in the next epoch. The
    timers of `quarantined` keys, given as key group and encoded key, do not fire.
    """

    def __init__(self, table: StateTable, clock: EpochClock, where: str) -> None:
        self._table = table
        self._has_no_clock = clock.mode is TimeMode.NONE
        self._where = where
        self._fires_from_ms: int | None = None
        self._last_taken = b""
        self._registered_while_firing: set[bytes] = set()
        self.quarantined: Container[StoredKey] = ()

    def register(self, time_ms: int) -> None:
        """Register a timer for the current key; registering it twice changes nothing."""
        if self._has_no_clock:
            self._refuse("registerTimer")
        of_key, by_time, time = self._stored_keys(time_ms)
        is_due = self._fires_from_ms is not None and time_ms <= self._fires_from_ms
        if is_due and self._table.get(by_time) is None:
            self._note(by_time)
            self._registered_while_firing.add(by_time)
        self._table.write_below(of_key, of_key + time, _NOTHING)
        self._table.write_below(TIME_INDEX, by_time, _NOTHING)

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key, if there is one."""
        if self._has_no_clock:
            self._refuse("deleteTimer")
        of_key, by_time, time = self._stored_keys(time_ms)
        left = _FIRES_ALL_THE_SAME if self._is_to_fire(time_ms, by_time) else None
        self._table.write_below(of_key, of_key + time, None)
        self._table.write_below(TIME_INDEX, by_time, left)
        if by_time in self._registered_while_firing:
            self._note(by_time)
            self._registered_while_firing.discard(by_time)

    def register_many(self, positions: Numbers, times_ms: Numbers) -> None:
        """Register a timer for each of several keys of the part, given by their positions."""
        if self._has_no_clock:
            self._refuse("registerTimers")
        if self._fires_from_ms is not None and (times_ms <= self._fires_from_ms).any():
            self._change_each(self.register, positions, times_ms)
            return
        of_keys = self._table.stored_keys(TIMERS_ID, positions)
        self._write_many(of_keys, _many_stored_keys(of_keys, times_ms), _NOTHING)

    def delete_many(self, positions: Numbers, times_ms: Numbers) -> None:
        """Delete a timer of each of several keys of the part, given by their positions."""
        if self._has_no_clock:
            self._refuse("deleteTimers")
        of_keys = self._table.stored_keys(TIMERS_ID, positions)
        stored = _many_stored_keys(of_keys, times_ms)
        if self._fires_from_ms is not None:
            end, waiting = _after(self._fires_from_ms), self._registered_while_firing
            if any(self._last_taken < key < end or key in waiting for key in stored.by_time):
                self._change_each(self.delete, positions, times_ms)
                return
        self._write_many(of_keys, stored, None)

    def _change_each(
        self, change: Callable[[int], None], positions: Numbers, times_ms: Numbers
    ) -> None:
        current = self._table.current
        before = replace(current)
        try:
            for position, time_ms in zip(positions.tolist(), times_ms.tolist(), strict=True):
                self._table.enter(position)
                change(time_ms)
        finally:
            current.become(before)

    def _write_many(
        self, of_keys: Sequence[bytes], stored: _StoredTimers, value: bytes | None
    ) -> None:
        self._table.write_below_each(of_keys, stored.below_keys, value)
        self._table.write_many_below(TIME_INDEX, stored.by_time, value)

    def of_current_key(self) -> Iterator[int]:
        """Return an iterator over the current key's timers in the order of time."""
        if self._has_no_clock:
            self._refuse("listTimers")
        prefix = self._table.stored_key(TIMERS_ID)
        # Read at once, because the processor may delete timers while it iterates.
        return iter([decode_time(key[len(prefix) :]) for key, _ in self._table.scan(prefix)])

    def take_due(self, now_ms: int, most: int) -> list[DueTimer]:
        """Return the next due timers in the order of time; each is deleted when it has fired.

        The caller repeats the call until the list is empty. Timers that are registered in the
        meantime wait for the next epoch. As in PySpark, a timer that is due at the first call fires
        once, even if an earlier timer of its key deletes it, or deletes it and registers it again.
        If the key is quarantined before that, it fires after the release.

        StateError is raised if a timer that was returned before is still stored, because it would
        fire for ever.
        """
        self._fires_from_ms = now_ms
        due: list[DueTimer] = []
        last_taken = self._last_taken
        for stored_key, left in self._table.scan(TIME_INDEX, _after(now_ms)):
            if stored_key not in self._registered_while_firing:
                timer = _timer(stored_key)
                if self.quarantined and timer.key in self.quarantined:
                    if left == _FIRES_ALL_THE_SAME:  # the key was quarantined after the deletion
                        self.keep(timer)
                    continue
                if stored_key <= last_taken:
                    self._refuse_to_fire_again(timer)
                due.append(timer)
                self._last_taken = stored_key
            if len(due) == most:
                break
        return due

    def keep(self, timer: DueTimer) -> None:
        """Keep a due timer that does not fire now, even if an earlier one has deleted it."""
        key_group, key = timer.key
        of_key, time = key_group + TIMERS_ID + key, encode_time(timer.time_ms)
        self._table.write_below(of_key, of_key + time, _NOTHING)
        self._table.write_below(TIME_INDEX, TIME_INDEX + time + key_group + key, _NOTHING)

    def earliest_ms(self) -> int | None:
        """Return when the next timer of any key is due, ``None`` if there is none.

        If there are some, and all are of quarantined keys, it is :data:`QUARANTINED_TIMERS_MS`.
        """
        first = self._table.first_below(TIME_INDEX)
        if first is None:
            return None
        if not self.quarantined:
            return _timer(first).time_ms
        timers = (_timer(stored_key) for stored_key, _ in self._table.scan(TIME_INDEX))
        found = (timer.time_ms for timer in timers if timer.key not in self.quarantined)
        return next(found, QUARANTINED_TIMERS_MS)

    def _is_to_fire(self, time_ms: int, by_time: bytes) -> bool:
        """Return whether timers fire and a timer has not had its turn yet."""
        return (
            self._fires_from_ms is not None
            and time_ms <= self._fires_from_ms
            and by_time > self._last_taken
            and by_time not in self._registered_while_firing
            and self._table.get(by_time) is not None
        )

    def _note(self, by_time: bytes) -> None:
        """Note how to take back a change of the timers that wait for the next epoch."""
        log, waiting = self._table.undo_log, self._registered_while_firing
        if log is not None:
            log.add(partial(waiting.add if by_time in waiting else waiting.discard, by_time))

    def _stored_keys(self, time_ms: int) -> tuple[bytes, bytes, bytes]:
        """Return the prefix of the key's timers, the timer's key by time, and its encoded time."""
        of_key = self._table.stored_key(TIMERS_ID)
        current = self._table.current
        assert current.key_group is not None  # stored_key checks it
        time = encode_time(time_ms)
        return of_key, TIME_INDEX + time + current.key_group + current.key, time

    def _refuse_to_fire_again(self, timer: DueTimer) -> NoReturn:
        raise StateError(
            f"{self._where}: the timer of {timer.time_ms} ms of the key with the stored bytes "
            f"{timer.key[1].hex()} is due for the second time in one epoch. Nothing of this "
            "epoch was committed. This is a bug of the library: report it"
        )

    def _refuse(self, method: str) -> NoReturn:
        raise TimeModeError(
            f"{self._where}: {method} needs a clock, the operator has timeMode='None': give it "
            "'ProcessingTime' or 'EventTime'",
            "UNSUPPORTED_OPERATION",
        )


def _many_stored_keys(of_keys: Sequence[bytes], times_ms: Numbers) -> _StoredTimers:
    times = encode_times(times_ms)
    return _StoredTimers(
        [of_key + time for of_key, time in zip(of_keys, times, strict=True)],
        [
            TIME_INDEX + time + of_key[:KEY_GROUP_BYTES] + of_key[KEY_START:]
            for of_key, time in zip(of_keys, times, strict=True)
        ],
    )


def _after(time_ms: int) -> bytes:
    """Return a stored key after all timers of a time and before all later timers."""
    return TIME_INDEX + encode_time(time_ms) + b"\xff" * KEY_GROUP_BYTES


def _timer(stored_key: bytes) -> DueTimer:
    time_end = len(TIME_INDEX) + TIME_BYTES
    group_end = time_end + KEY_GROUP_BYTES
    return DueTimer(
        decode_time(stored_key[len(TIME_INDEX) : time_end]),
        (stored_key[time_end:group_end], stored_key[group_end:]),
    )
