"""A clock for tests."""

from __future__ import annotations


class StillClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms
