"""The time in milliseconds: of the wall clock, and of a clock that never goes back."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the wall clock's milliseconds since 1970, for what users and other hosts see."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds that only grow, for durations and time limits of this process."""
    return time.monotonic_ns() // 1_000_000
