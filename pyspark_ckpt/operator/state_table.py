"""One epoch's view of a subtask's state: the backend below, this epoch's writes on top.

Stored keys are ``key group (2 bytes) | state id (1 byte) | key | rest``, so that a key group is one
range of the store and moves between subtasks as such. Keys are MessagePack, whose values end where
they say they end: no stored key is a prefix of another key's entries by accident.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from state_backends import Changes, StateBackend

PREFETCH_KEYS = 16_384
"""Keys read ahead at once; bounds the memory that read-ahead takes."""

MAX_STATES = 255
_KEY_GROUP = struct.Struct(">H")


@dataclass(slots=True)
class CurrentKey:
    """The key that the processor is working on, with its place among the epoch's keys."""

    key_group: bytes = b""
    key: bytes = b""
    position: int = 0


class StateTable:
    """Reads through and buffers writes until the barrier.

    Parameters
    ----------
    backend
        The subtask's backend, at the version the epoch starts from; it is not written to.
    keys
        ``(key group, encoded key)`` of every key of the epoch, in the order of processing.
    """

    def __init__(self, backend: StateBackend, keys: Sequence[tuple[bytes, bytes]]) -> None:
        self.current = CurrentKey()
        self._backend = backend
        self._keys = keys
        self._writes: dict[bytes, bytes | None] = {}
        self._written_below: dict[bytes, dict[bytes, bytes | None]] = {}
        self._before_barrier: list[Callable[[], None]] = []
        self._prefetched: dict[bytes, tuple[range, dict[bytes, bytes | None]]] = {}

    def stored_key(self, state_id: bytes) -> bytes:
        """Return the stored key of a state for the current key."""
        return self.current.key_group + state_id + self.current.key

    def get(self, key: bytes) -> bytes | None:
        """Return one entry."""
        if key in self._writes:
            return self._writes[key]
        return self._backend.get_many([key])[0]

    def get_prefetched(self, state_id: bytes) -> bytes | None:
        """Return a state's entry of the current key, read together with those of the next keys."""
        key = self.stored_key(state_id)
        if key in self._writes:
            return self._writes[key]
        position = self.current.position
        window, values = self._prefetched.get(state_id, (range(0), {}))
        if position not in window:
            window = range(position, min(position + PREFETCH_KEYS, len(self._keys)))
            wanted = [
                group + state_id + key for group, key in self._keys[window.start : window.stop]
            ]
            values = dict(zip(wanted, self._backend.get_many(wanted), strict=True))
            self._prefetched[state_id] = (window, values)
        return values[key]

    def put(self, key: bytes, value: bytes) -> None:
        """Write an entry that no scan looks for."""
        self._writes[key] = value

    def delete(self, key: bytes) -> None:
        """Delete an entry that no scan looks for."""
        self._writes[key] = None

    def write_below(self, prefix: bytes, key: bytes, value: bytes | None) -> None:
        """Write or, with ``None``, delete an entry that :meth:`scan` of `prefix` must see."""
        self._writes[key] = value
        self._written_below.setdefault(prefix, {})[key] = value

    def has_any_below(self, prefix: bytes) -> bool:
        """Tell whether :meth:`scan` of `prefix` would yield an entry."""
        written = self._written_below.get(prefix, {})
        # The newest write is the likeliest to be an entry, and found without sorting them all.
        if written and next(reversed(written.values())) is not None:
            return True
        return next(self.scan(prefix), None) is not None

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries below a prefix in key order, this epoch's writes included.

        What is written while the scan runs may or may not be seen.
        """
        written = sorted(self._written_below.get(prefix, {}).items())
        following = iter(written)
        pending = next(following, None)
        for key, value in self._backend.scan(prefix):
            while pending is not None and pending[0] < key:
                if pending[1] is not None:
                    yield pending[0], pending[1]
                pending = next(following, None)
            if pending is not None and pending[0] == key:
                if pending[1] is not None:
                    yield key, pending[1]
                pending = next(following, None)
            else:
                yield key, value
        while pending is not None:
            if pending[1] is not None:
                yield pending[0], pending[1]
            pending = next(following, None)

    def before_barrier(self, write_pending: Callable[[], None]) -> None:
        """Register what a state calls to hand over the writes it still holds back."""
        self._before_barrier.append(write_pending)

    def changes(self) -> Changes:
        """Return all writes of the epoch in key order; called once, at the barrier."""
        for write_pending in self._before_barrier:
            write_pending()
        keys = sorted(self._writes)
        return Changes(keys, [self._writes[key] for key in keys])


def encode_key_group(key_group: int) -> bytes:
    """Return the two bytes that stored keys of a key group start with."""
    return _KEY_GROUP.pack(key_group)
