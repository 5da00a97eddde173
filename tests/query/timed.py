"""Input with event time, in seconds from an origin."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa

from tests.query.harness import Feed

ORIGIN = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
ORIGIN_MS = int(ORIGIN.timestamp() * 1000)
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def at(seconds: float) -> dt.datetime:
    return ORIGIN + dt.timedelta(seconds=seconds)


def timed_feed(path: Path) -> Feed:
    """Return a feed of rows (k, v, ts)."""
    return Feed(path, SCHEMA, "k string, v long, ts timestamp")
