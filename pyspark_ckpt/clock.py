"""The time in milliseconds: of the wall clock, of a clock that never goes back, and of texts."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import numpy as np


def now_ms() -> int:
    """Return the wall clock's milliseconds since 1970, for what users and other hosts see."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds that only grow, for durations and time limits of this process."""
    return time.monotonic_ns() // 1_000_000


def utc_text(at_ms: int) -> str:
    """Return a time in UTC, to the second; a number if Python has no such time."""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms after 1970"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def ms_of_text(time_in_utc: str) -> int:
    """Return the milliseconds since 1970 of a time as Spark's progress has it.

    A watermark may be of any year, such as ``+57982-06-12T00:00:00.000Z``, if a program took
    milliseconds for seconds; Python's times end with the year 9999.
    """
    plain = time_in_utc.removesuffix("Z").removeprefix("+")
    return int(np.datetime64(plain, "ms").astype(np.int64))
