"""Times and numbers of files as pandas has them: a stored file may have any."""

from __future__ import annotations

from typing import Any

import pandas as pd

_MOST_MS = pd.Timestamp.max.value // 1_000_000
_MOST = 2**63 - 1


def milliseconds_in_range(at_ms: int | None) -> int | None:
    """Return milliseconds since 1970, ``None`` if pandas has no such time: its end in 2262."""
    return at_ms if at_ms is not None and abs(at_ms) <= _MOST_MS else None


def number_in_range(value: int | None) -> int | None:
    """Return a number, ``None`` if it has more than 64 bits."""
    return value if value is not None and abs(value) <= _MOST else None


def utc_time(at_ms: int) -> Any:
    """Return a time in UTC, or ``NaT`` if pandas has no such time."""
    known_ms = milliseconds_in_range(at_ms)
    return pd.NaT if known_ms is None else pd.Timestamp(known_ms, unit="ms", tz="UTC")
