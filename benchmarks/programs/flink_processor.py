"""PyFlink's DataStream with a keyed process function, in thread mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flink_job import Request, run
from pyflink.common import Row, Types
from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor
from pyflink.table import StreamTableEnvironment

_COUNTED = Types.ROW_NAMED(["key", "n", "total"], [Types.LONG()] * 3)
_SESSION = Types.ROW_NAMED(["key", "start_ms", "last_ms", "n"], [Types.LONG()] * 4)


class Count(KeyedProcessFunction):
    """A running count and sum; a row out per row in."""

    def open(self, runtime_context: RuntimeContext) -> None:
        state = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._state = runtime_context.get_state(ValueStateDescriptor("count", state))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Row]:
        n, total = self._state.value() or (0, 0)
        n, total = n + 1, total + value[1]
        self._state.update((n, total))
        yield Row(value[0], n, total)


class Sessions(KeyedProcessFunction):
    """Open sessions in a list, one timer for the one that ends first, as in the other programs."""

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms

    def open(self, runtime_context: RuntimeContext) -> None:
        session = Types.TUPLE([Types.LONG()] * 3)
        self._open = runtime_context.get_list_state(ListStateDescriptor("open", session))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Row]:
        before = [tuple(session) for session in self._open.get() or ()]
        after = self._merged([*before, (value[1], value[1], 1)])
        self._open.update(after)
        if not before or before[0][1] != after[0][1]:
            if before:
                ctx.timer_service().delete_event_time_timer(before[0][1] + self._gap_ms)
            ctx.timer_service().register_event_time_timer(after[0][1] + self._gap_ms)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Row]:
        left = []
        for start, last, n in [tuple(session) for session in self._open.get() or ()]:
            if last + self._gap_ms <= timestamp:
                yield Row(ctx.get_current_key(), start, last, n)
            else:
                left.append((start, last, n))
        if left:
            self._open.update(left)
            ctx.timer_service().register_event_time_timer(left[0][1] + self._gap_ms)
        else:
            self._open.clear()

    def _merged(self, sessions: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        joined: list[tuple[int, int, int]] = []
        for start, last, n in sorted(sessions):
            if joined and start - joined[-1][1] <= self._gap_ms:
                before = joined[-1]
                joined[-1] = (before[0], max(before[1], last), before[2] + n)
            else:
                joined.append((start, last, n))
        return joined


def _counts(tables: StreamTableEnvironment) -> DataStream:
    rows = tables.to_data_stream(tables.from_path("input"))
    return rows.key_by(lambda row: row[0], Types.LONG()).process(Count(), _COUNTED)


def _sessions(tables: StreamTableEnvironment, gap_ms: int) -> DataStream:
    rows = tables.to_data_stream(tables.from_path("input"))
    return rows.key_by(lambda row: row[0], Types.LONG()).process(Sessions(gap_ms), _SESSION)


def main() -> None:
    """Run what the command line asks for."""
    request = Request.read()
    if request.arguments["processor"] == "count":
        columns = "k BIGINT, v BIGINT"
        run(request, columns, _counts, ["key", "n", "total"], in_order=False)
        return
    gap_ms, late_ms = request.arguments["gap_ms"], request.arguments["out_of_order_ms"]
    columns = (
        "k BIGINT, ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3), "
        f"WATERMARK FOR ts AS ts - INTERVAL '{late_ms // 60_000}' MINUTE"
    )
    names = ["key", "start_ms", "last_ms", "n"]
    run(request, columns, lambda tables: _sessions(tables, gap_ms), names, in_order=True)


if __name__ == "__main__":
    main()
