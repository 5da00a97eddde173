"""Sessions of all keys at once, as Arrow tables: what ``session_processors`` does key by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pyspark_ckpt as ckpt

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_STATE = "sessions array<struct<start_ms: bigint, last_ms: bigint, n: bigint>>"
_FIELDS = ["start_ms", "last_ms", "n"]


class ArrowSessions(ckpt.ArrowProcessor):
    """Open sessions of a key in one value, one timer for the one that ends first.

    Parameters
    ----------
    gap_ms
        A session ends this long after its last event.
    """

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._open = handle.getValueState("open", _STATE)

    def close(self) -> None:
        pass

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
        before = _sessions_of(self._open.getMany(keys).column("sessions"))
        times = rows.column("time_ms").to_numpy()
        of_rows = rows.column("key_position").to_numpy()
        new = [of_rows, times, times, np.ones(len(times), np.int64)]
        all_sessions = [np.concatenate(pair) for pair in zip(before, new, strict=True)]
        after = _merged(all_sessions, self._gap_ms)
        self._open.updateMany(keys, _table_of(after, len(keys)))
        self._set_timers(keys, before, after)

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        before = _sessions_of(self._open.getMany(keys).column("sessions"))
        is_closed = before[2] + self._gap_ms <= timerValues.getCurrentWatermarkInMs()
        closed = [column[is_closed] for column in before]
        yield pa.table(
            {
                "key": keys.column("key").take(pa.array(closed[0])),
                **dict(zip(_FIELDS, closed[1:], strict=True)),
            }
        )
        left = [column[~is_closed] for column in before]
        kept, first = np.unique(left[0], return_index=True)
        has_left = np.zeros(len(keys), bool)
        has_left[kept] = True
        self._open.clearMany(keys.filter(pa.array(~has_left)))
        if len(kept):
            its_keys = keys.filter(pa.array(has_left))
            at = np.searchsorted(kept, left[0])
            self._open.updateMany(its_keys, _table_of([at, *left[1:]], len(kept)))
            self._handle.registerTimers(its_keys, pa.array(left[2][first] + self._gap_ms))

    def _set_timers(self, keys: pa.Table, before: list[Numbers], after: list[Numbers]) -> None:
        """Move the timers of keys whose first session ends at another time."""
        _, first = np.unique(after[0], return_index=True)
        ends = after[2][first] + self._gap_ms
        known, first = np.unique(before[0], return_index=True)
        old = np.full(len(keys), -1, np.int64)
        old[known] = before[2][first] + self._gap_ms
        moves = old != ends
        left = moves & (old >= 0)
        self._handle.deleteTimers(keys.filter(pa.array(left)), pa.array(old[left]))
        self._handle.registerTimers(keys.filter(pa.array(moves)), pa.array(ends[moves]))


def _sessions_of(values: pa.ChunkedArray) -> list[Numbers]:
    """Return the key positions, begins, ends and counts of stored sessions."""
    lists = pa.chunked_array(values.chunks, values.type).combine_chunks()
    of_keys = pc.list_parent_indices(lists).to_numpy()
    flat = lists.flatten()
    return [of_keys, *(flat.field(name).to_numpy() for name in _FIELDS)]


def _table_of(sessions: list[Numbers], keys: int) -> pa.Table:
    offsets = np.searchsorted(sessions[0], np.arange(keys + 1)).astype(np.int32)
    structs = pa.StructArray.from_arrays([pa.array(column) for column in sessions[1:]], _FIELDS)
    return pa.table({"sessions": pa.ListArray.from_arrays(pa.array(offsets), structs)})


def _merged(sessions: list[Numbers], gap_ms: int) -> list[Numbers]:
    """Join the sessions of a key that are at most the gap apart; by key and then by time."""
    order = np.lexsort((sessions[1], sessions[0]))
    of_keys, starts, lasts, counts = (column[order] for column in sessions)
    # The newest event so far of the same key: keys are further apart than any two events.
    origin = starts.min()
    apart = (lasts.max() - origin + 1) * of_keys
    newest = np.maximum.accumulate(lasts - origin + apart)
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] - origin + apart[1:] - newest[:-1] > gap_ms
    begins[1:] |= of_keys[1:] != of_keys[:-1]
    first = np.flatnonzero(begins)
    return [
        of_keys[first],
        starts[first],
        np.maximum.reduceat(lasts, first),
        np.add.reduceat(counts, first),
    ]
