"""The times of an edit's entries: milliseconds of 64 bits inside, Spark's timestamps outside.

A timer may be due, and a time to live may end, in any millisecond of 64 bits. Spark's timestamps
are microseconds of 64 bits, so they end with the year 294247: a time beyond it is shown as the last
of them. Rows that no user sees keep the milliseconds. An entry that expires has the time at which
it was written there, from which its end follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_ckpt.editing.table_columns import TableColumns
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.snapshot.columns import LAST_TIMESTAMP_MS, MAX_LONG

BEYOND = -1
"""In place of the time of writing: the entry expires after :data:`LAST_TIMESTAMP_MS`."""


@dataclass(frozen=True, slots=True)
class Times:
    """When rows without a time count as written, by the time that a state ages in."""

    processing_ms: int
    watermark_ms: int

    def of(self, state: StateDescriptor) -> int | None:
        """Return when an entry of a state counts as written, ``None`` if it has no time."""
        if state.ttl is None:
            return None
        if state.ttl.time is TtlTime.PROCESSING_TIME:
            return self.processing_ms
        return self.watermark_ms or None  # as in an initial state before the first watermark


def as_written(state: StateDescriptor) -> StateDescriptor:
    """Return a state whose table has the time of writing for that of expiry."""
    if state.ttl is None:
        return state
    return msgspec.structs.replace(state, ttl=msgspec.structs.replace(state.ttl, duration_ms=0))


def stored_times(
    rows: DataFrame, columns: TableColumns, state: StateDescriptor | None, *, in_ms: bool
) -> DataFrame:
    """Return rows with stored times in place of those that are given.

    `state` is ``None`` for timers.
    """
    name = columns.fires_at or columns.expires_at
    if name is None or name not in rows.columns:
        return rows
    time = F.col(name)
    in_ms_of_time = time if in_ms else F.unix_millis(time)
    is_last, is_first = (time == _timestamp(end) for end in (MAX_LONG, -MAX_LONG - 1))
    if columns.fires_at is not None:
        found = in_ms_of_time
        if not in_ms:
            found = F.when(is_last, _long(MAX_LONG)).when(is_first, _long(-MAX_LONG - 1))
            found = found.otherwise(in_ms_of_time)
    else:
        duration = _long(_duration_ms(state))
        found = F.when(in_ms_of_time > duration, in_ms_of_time - duration)
        found = found.when(time.isNotNull(), _long(0))
        if not in_ms:
            found = F.when(is_last, _long(BEYOND)).otherwise(found)
    return rows.withColumn(name, found)


def shown_times(rows: DataFrame, columns: TableColumns, state: StateDescriptor | None) -> DataFrame:
    """Return rows with timestamps in place of stored times, as :func:`stored_times` takes them."""
    name = columns.fires_at or columns.expires_at
    if name is None or name not in rows.columns:
        return rows
    time = F.col(name)
    if columns.fires_at is not None:
        found = F.when(time > LAST_TIMESTAMP_MS, _timestamp(MAX_LONG))
        found = found.when(time < -LAST_TIMESTAMP_MS, _timestamp(-MAX_LONG - 1))
        return rows.withColumn(name, found.otherwise(F.timestamp_millis(time)))
    duration_ms = _duration_ms(state)
    is_beyond = (time == BEYOND) | (time > LAST_TIMESTAMP_MS - duration_ms)
    found = F.when(is_beyond, _timestamp(MAX_LONG))
    if duration_ms < LAST_TIMESTAMP_MS:
        found = found.otherwise(F.timestamp_millis(time + _long(duration_ms)))
    return rows.withColumn(name, found.cast("timestamp"))


def written_beyond_ms(duration_ms: int, now_ms: int) -> int:
    """Return when an entry counts as written that expires beyond :data:`LAST_TIMESTAMP_MS`."""
    return max(now_ms, LAST_TIMESTAMP_MS - duration_ms + 1)


def _duration_ms(state: StateDescriptor | None) -> int:
    ttl = None if state is None else state.ttl
    return 0 if ttl is None else min(ttl.duration_ms, MAX_LONG)


def _long(number: int) -> Column:
    return F.lit(number).cast("long")


def _timestamp(micros: int) -> Column:
    return F.timestamp_micros(_long(micros))
