"""The entries of some key groups of old subtasks, which follow each other in ranges."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence

from pyspark_ckpt.operator.rescale.entries import Entry
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    OPERATOR_STATE,
    TIME_BYTES,
    TIME_INDEX,
    encode_key_group,
)
from state_backends import Changes

_GROUP_START = len(TIME_INDEX) + TIME_BYTES
_GROUP_END = _GROUP_START + KEY_GROUP_BYTES


class StateOfNoKeyError(Exception):
    """A subtask has operator list, broadcast or raw state, which belongs to no key."""


def key_group_of_timer(stored_key: bytes) -> int:
    """Return the key group of a timer in the order of time."""
    return int.from_bytes(stored_key[_GROUP_START:_GROUP_END], "big")


class StateRange:
    """The part of an old subtask's state that belongs to some key groups.

    `state` yields all entries of the old subtask in key order, without deletes.
    """

    def __init__(self, state: Generator[Changes, None, None], groups: range) -> None:
        self._state = state
        self._groups = groups
        self._start, self._stop = encode_key_group(groups.start), encode_key_group(groups.stop)
        self._held: Changes | None = None

    def keyed(self) -> Iterator[Changes]:
        """Yield the entries that begin with one of the key groups; is called first."""
        for part in self._state:
            end = bisect_left(part.keys, TIME_INDEX)
            start = bisect_left(part.keys, self._start, 0, end)
            stop = bisect_left(part.keys, self._stop, start, end)
            if start < stop:
                yield _slice(part, start, stop)
            if end < len(part):
                self._held = _slice(part, end, len(part))
                return

    def timers(self) -> Iterator[Changes]:
        """Yield the timers of the key groups in the order of time; is called after :meth:`keyed`.

        StateOfNoKeyError is raised if there is state that belongs to no key.
        """
        while (part := self._held) is not None:
            if part.keys[-1] >= OPERATOR_STATE:
                raise StateOfNoKeyError
            chosen = [
                place
                for place, key in enumerate(part.keys)
                if key_group_of_timer(key) in self._groups
            ]
            if chosen:
                yield Changes(
                    [part.keys[place] for place in chosen], [part.values[place] for place in chosen]
                )
            self._held = next(self._state, None)

    def close(self) -> None:
        """Release the files that are read."""
        self._state.close()


def in_key_order(ranges: Sequence[StateRange]) -> Iterator[Entry]:
    """Yield the entries of ranges whose key groups follow each other, in the order of their keys.

    StateOfNoKeyError is raised if there is state that belongs to no key.
    """
    for each in ranges:
        yield from _entries(each.keyed())
    yield from heapq.merge(*[_entries(each.timers()) for each in ranges])


def _entries(parts: Iterator[Changes]) -> Iterator[Entry]:
    for part in parts:
        for key, value in zip(part.keys, part.values, strict=True):
            assert value is not None  # deletes are merged away
            yield key, value


def _slice(part: Changes, start: int, stop: int) -> Changes:
    return Changes(part.keys[start:stop], part.values[start:stop])
