"""How many requests a storage has sent, by the kinds that object stores charge for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping


class RequestCounts:
    """Counts the requests of one storage and of those below it, in one process.

    The kinds are ``put``, ``get``, ``head``, ``list`` and ``delete``. A request that the client
    repeats by itself is counted once. Each part of a large file is a ``put``.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, number: int = 1) -> None:
        """Count requests of a kind."""
        with self._guard:
            self._counts[kind] += number

    def so_far(self) -> dict[str, int]:
        """Return the number of requests of each kind that was sent."""
        with self._guard:
            return dict(self._counts)


class RequestMeter:
    """Says how many requests of this process were sent since it was last asked."""

    def __init__(self, so_far: Callable[[], Mapping[str, int]]) -> None:
        self._so_far = so_far
        self._before = so_far()

    def new(self) -> dict[str, int]:
        """Return the requests, by kind, that were sent since the last call."""
        before, self._before = self._before, self._so_far()
        return between(before, self._before)


def between(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the requests that were sent between two counts, without kinds that were not."""
    sent = {kind: number - before.get(kind, 0) for kind, number in now.items()}
    return {kind: number for kind, number in sorted(sent.items()) if number}
