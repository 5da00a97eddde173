"""Sessions per key: open ones in a list, one timer for the one that ends first.

A row may come late enough to join two open sessions, so a key can have several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

Session = tuple[int, int, int]
"""First and last event, and how many."""

COLUMNS = ["key", "start_ms", "last_ms", "n"]
_STATE = "start_ms long, last_ms long, n long"


def merged(sessions: Iterable[Session], gap_ms: int) -> list[Session]:
    """Return sessions with those joined that are at most the gap apart, in order of time.

    Exactly the gap joins too, as in Spark's session windows and in Flink's.
    """
    joined: list[Session] = []
    for start, last, n in sorted(sessions):
        if joined and start - joined[-1][1] <= gap_ms:
            before = joined[-1]
            joined[-1] = (before[0], max(before[1], last), before[2] + n)
        else:
            joined.append((start, last, n))
    return joined


class _Sessions(StatefulProcessor):
    """The work of both kinds of processor with the state.

    Parameters
    ----------
    gap_ms
        A session ends this long after its last event.
    """

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._open = handle.getListState("open", _STATE)

    def close(self) -> None:
        pass

    def _add(self, new: Iterable[Session]) -> None:
        before = [tuple(session) for session in self._open.get()]
        after = merged([*before, *new], self._gap_ms)
        self._open.put(after)
        self._set_timer(before, after)

    def _take_closed(self, watermark_ms: int) -> list[Session]:
        before = [tuple(session) for session in self._open.get()]
        closed = [session for session in before if session[1] + self._gap_ms <= watermark_ms]
        left = [session for session in before if session[1] + self._gap_ms > watermark_ms]
        if left:
            self._open.put(left)
            self._handle.registerTimer(left[0][1] + self._gap_ms)
        else:
            self._open.clear()
        return closed

    def _set_timer(self, before: list[Session], after: list[Session]) -> None:
        if before and before[0][1] == after[0][1]:
            return
        if before:
            self._handle.deleteTimer(before[0][1] + self._gap_ms)
        self._handle.registerTimer(after[0][1] + self._gap_ms)


class RowsSessions(_Sessions):
    """Rows in, rows out."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self._add((row.time_ms, row.time_ms, 1) for row in rows)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        for start, last, n in self._take_closed(timerValues.getCurrentWatermarkInMs()):
            yield Row(key=key[0], start_ms=start, last_ms=last, n=n)


class PandasSessions(_Sessions):
    """Frames in, frames out; runs unchanged in PySpark and here."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        self._add((time, time, 1) for frame in rows for time in frame["time_ms"].tolist())
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        closed = self._take_closed(timerValues.getCurrentWatermarkInMs())
        yield pd.DataFrame([(key[0], *session) for session in closed], columns=COLUMNS)
