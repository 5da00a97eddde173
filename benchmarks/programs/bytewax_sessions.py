"""Sessions in event time in Bytewax: its own session windows, folded."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import bytewax.operators as op
from bytewax.operators import KeyedStream
from bytewax.operators.windowing import EventClock, SessionWindower, fold_window
from bytewax_job import Job

_NOW = datetime.now(timezone.utc)
"""Stands still, so that only rows move the watermark, however long the job takes."""

_Session = tuple[int, int, int]
"""First and last event, and how many."""


def _sessions(arguments: dict[str, Any], rows: KeyedStream[int]) -> KeyedStream[Any]:
    windows = fold_window(
        "sessions",
        rows,
        EventClock(
            _time,
            wait_for_system_duration=timedelta(milliseconds=arguments["out_of_order_ms"]),
            now_getter=lambda: _NOW,
            to_system_utc=lambda _: None,  # sessions of another year do not end by themselves
        ),
        SessionWindower(timedelta(milliseconds=arguments["gap_ms"])),
        lambda: None,
        _with_event,
        _merged,
        ordered=False,
    )
    return op.map_value("sessions without ids", windows.down, lambda found: found[1])


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc)


def _with_event(session: _Session | None, time_ms: int) -> _Session:
    return _merged(session, (time_ms, time_ms, 1))


def _merged(one: _Session | None, other: _Session | None) -> _Session | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1]), one[2] + other[2]


if __name__ == "__main__":
    Job(__file__, "time_ms", ["start_ms", "last_ms", "n"], _sessions, in_order=True).run()
