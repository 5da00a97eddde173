"""Sessions: the rows of a key between which no gap is longer than allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.combine.combination import Aggregates
from pyspark_ckpt.operator.modes.processors import ArrowProcessor
from pyspark_ckpt.operator.table.keys import KEY_POSITION, Numbers
from pyspark_ckpt.operators.kept_rows import KeptRows
from pyspark_ckpt.operators.stream_columns import StreamColumns
from pyspark_ckpt.values.given import whole

START, END = "start", "end"
_SESSION = "__ckpt_session"
_INSTANT = pa.timestamp("us", "UTC")
_US_PER_MS = 1_000
_NEVER_MS = np.iinfo(np.int64).min


class Sessions(ArrowProcessor):
    """Emit each session of a key when the watermark has passed its end.

    `time` is the column of event time. A session ends `gap_us` after its last row. A row that comes
    at the end of a session, or before it, belongs to it.
    """

    def __init__(
        self, columns: StreamColumns, time: str, gap_us: int, aggregates: Aggregates
    ) -> None:
        self._columns = columns
        self._time = time
        self._gap_us = gap_us
        self._aggregates = aggregates

    def init(self, handle: Any) -> None:
        """Open the state of the sessions that have not ended."""
        self._handle = handle
        times = [T.StructField(name, T.TimestampType()) for name in (START, END)]
        self._open = KeptRows(handle, "sessions", [*times, *self._aggregates.schema.fields])

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        """Add rows to their sessions; a row may join two."""
        del timerValues
        before = self._open.of(keys)
        rows = rows.filter(rows.column(self._time).is_valid())  # as Spark's sessions
        every = pa.concat_tables([before, self._single(keys, rows).select(self._open.names)])
        after = self._joined(every.sort_by([(KEY_POSITION, "ascending"), (START, "ascending")]))
        self._open.put(keys, after)
        self._move_timers(keys, _earliest_ms(keys, before), _earliest_ms(keys, after))
        yield from ()

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        """Yield the sessions that have ended."""
        del timers
        watermark_us = timerValues.getCurrentWatermarkInMs() * _US_PER_MS
        sessions = self._open.of(keys)
        has_ended = _us(sessions.column(END)) <= watermark_us
        left = sessions.filter(pa.array(~has_ended))
        self._open.put(keys, left)
        self._move_timers(keys, np.full(len(keys), _NEVER_MS), _earliest_ms(keys, left))
        ended = sessions.filter(pa.array(has_ended))
        places = ended.column(KEY_POSITION)
        of_keys = {field.name: keys.column(field.name).take(places) for field in self._columns.keys}
        names = [START, END, *self._aggregates.schema.names]
        yield pa.table({**of_keys, **{name: ended.column(name) for name in names}})

    def close(self) -> None:
        """Close nothing."""

    def _single(self, keys: pa.Table, rows: pa.Table) -> pa.Table:
        """Return a session of each row alone."""
        inputs = self._aggregates.inputs
        given = {KEY_POSITION: rows.column(KEY_POSITION)}
        for name, renamed in inputs.items():
            given[renamed] = (
                rows.column(name)
                if name in rows.column_names
                else keys.column(name).take(rows.column(KEY_POSITION))
            )
        partials = self._aggregates.partials(pa.table(given), [KEY_POSITION])
        starts_us = _us(rows.column(self._time))
        for name, times_us in ((START, starts_us), (END, starts_us + self._gap_us)):
            partials = partials.append_column(name, pa.array(times_us).cast(_INSTANT))
        return partials

    def _joined(self, sessions: pa.Table) -> pa.Table:
        """Return sessions, which are by key and start, without any two that overlap or touch."""
        positions = sessions.column(KEY_POSITION).to_numpy()
        starts, ends = _us(sessions.column(START)), _us(sessions.column(END))
        latest = pd.Series(ends).groupby(positions).cummax().to_numpy()
        begins = np.ones(len(sessions), bool)
        begins[1:] = (positions[1:] != positions[:-1]) | (starts[1:] > latest[:-1])
        first = np.flatnonzero(begins)
        if len(first) == len(sessions):
            return sessions
        last = np.append(first[1:], len(sessions)) - 1
        given = sessions.append_column(_SESSION, pa.array(np.cumsum(begins)))
        merged = self._aggregates.merge(given, [_SESSION])
        columns = {
            START: sessions.column(START).take(first),
            END: pa.array(latest[last]).cast(_INSTANT),
            **{name: merged.column(name) for name in self._aggregates.schema.names},
            KEY_POSITION: positions[first],
        }
        return pa.table(columns)

    def _move_timers(self, keys: pa.Table, old_ms: Numbers, new_ms: Numbers) -> None:
        """Have each key called at the end of its first session, and not at an earlier time."""
        is_moved = old_ms != new_ms
        has_old, has_new = is_moved & (old_ms > _NEVER_MS), is_moved & (new_ms > _NEVER_MS)
        self._handle.deleteTimers(keys.filter(pa.array(has_old)), old_ms[has_old])
        self._handle.registerTimers(keys.filter(pa.array(has_new)), new_ms[has_new])


def _us(column: pa.ChunkedArray) -> Numbers:
    times: Numbers = whole(column).cast(pa.int64()).to_numpy()
    return times


def _earliest_ms(keys: pa.Table, sessions: pa.Table) -> Numbers:
    """Return the end of the first session of each key in milliseconds, rounded up."""
    found = np.full(len(keys), _NEVER_MS)
    positions = sessions.column(KEY_POSITION).to_numpy()
    ends_ms = -(-_us(sessions.column(END)) // _US_PER_MS)
    places = np.searchsorted(keys.column(KEY_POSITION).to_numpy(), positions[::-1])
    found[places] = ends_ms[::-1]  # the first session of a key is written last
    return found
