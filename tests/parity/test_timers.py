"""Timers in event time and in processing time, and the late rows that go with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming import StreamingQuery

from tests.parity.engines import ENDS, PARTITIONS, Both, wait_until
from tests.parity.timed import INPUT, OUTPUT, PandasTimers, Timers, at
from tests.query.harness import Feed

pytestmark = pytest.mark.slow

HOUR = 3_600_000


def emitted(rows: list[Row], key: str) -> list[str]:
    """What happened to a key, in order."""
    return [row.what for row in sorted(rows, key=lambda r: r.calls) if row.k == key]


class EventTimers(Timers):
    ON_EXPIRY: ClassVar = {
        "two": "again later 7000",
        "three": "register twenty 20000; delete ten 10000",
    }


class PandasEventTimers(EventTimers, PandasTimers):
    pass


EVENTS: list[list[tuple[Any, ...]]] = [
    [
        ("a", 0, at(0), "register two 2000; register ten 10000; register two 2000"),
        ("a", 1, at(0), "register three 3000; delete three 3000; delete unknown 99"),
        ("a", 2, at(-1), "register three 3000; register before -5000"),
        ("b", 0, at(0), "register five 5000; register four 4000; register edge 10000"),
        ("c", 0, at(0), "register after 10001"),
        ("d", 0, at(0), "register gone 5000; delete gone 5000"),
        (None, 0, at(0), "register null 6000"),
    ],
    [("z", 0, at(10), "")],
    [("z", 1, at(9), ""), ("y", 0, at(10), "")],  # late from the next epoch on
    [
        ("a", 3, at(9.5), "register late 1"),
        ("a", 4, at(10), "register late 1"),
        ("a", 5, at(10.001), "register due 1; register now 10000"),
        ("only late", 0, at(0), "register late 1"),
        ("no time", 0, None, ""),
    ],
    [("z", 2, at(17), "")],  # an epoch without rows follows
]


@pytest.mark.parametrize("processor", [EventTimers, PandasEventTimers])
def test_event_time(both: Callable[..., Both], processor: type[Timers]) -> None:
    """Timers fire at the watermark, in order, also without rows; late rows are dropped."""
    pandas = issubclass(processor, PandasTimers)
    program = both(
        INPUT,
        *EVENTS,
        processor=processor,
        output=OUTPUT,
        time_mode="EventTime",
        pandas=pandas,
        watermark="ts",
    )
    rows = program.same()
    assert emitted(rows, "a")[3:6] == ["timer before", "timer two", "timer three"]
    assert {"row 5", "timer due", "timer now", "timer later"} < set(emitted(rows, "a"))
    assert {"row 3", "row 4", "timer twenty"}.isdisjoint(emitted(rows, "a"))
    assert emitted(rows, "b") == ["row 0", "timer four", "timer five", "timer edge"]
    assert emitted(rows, "c") == ["row 0", "timer after"]
    assert emitted(rows, "d") == ["row 0"]
    assert emitted(rows, "z") == ["row 0", "row 1", "row 2"]
    assert not emitted(rows, "only late")
    assert emitted(rows, "no time")


class ClockTimers(Timers):
    EVENT_TIME = False
    ON_EXPIRY: ClassVar = {
        "tick": "again tick 1",
        "soon": f"register next {2 * HOUR}; delete far {HOUR}",
    }


class PandasClockTimers(ClockTimers, PandasTimers):
    pass


@pytest.mark.soak
@pytest.mark.parametrize("processor", [ClockTimers, PandasClockTimers])
def test_processing_time(both: Callable[..., Both], processor: type[Timers]) -> None:
    """A due timer fires once, in the next epoch, with and without rows of the key."""
    files = [
        [
            ("a", 0, at(0), f"register past -1000; register now 0; register far {HOUR}"),
            ("a", 1, at(0), "register soon 1; register soon 1; register sooner 0"),
            ("b", 0, at(0), "register tick 1"),
            ("c", 0, at(0), "register gone 1; delete gone 1"),
            (None, 0, at(0), "register null 1"),
        ],
        [("z", 0, at(0), "")],
        [("z", 1, at(-9), ""), ("a", 2, at(-9), f"delete next {2 * HOUR}; register last 3")],
        [("z", 2, at(0), "")],
    ]
    program = both(
        INPUT,
        *files,
        processor=processor,
        output=OUTPUT,
        time_mode="ProcessingTime",
        pandas=issubclass(processor, PandasTimers),
        conf=ENDS,
    )
    rows = program.same()
    fired = ["row 0", "row 1", "timer past", "timer sooner", "timer soon", "row 2", "timer last"]
    assert emitted(rows, "a") == fired
    assert emitted(rows, "b") == ["row 0", *["timer tick"] * 3]
    assert emitted(rows, "c") == ["row 0"]
    assert emitted(rows, "z") == ["row 0", "row 1", "row 2"]


@pytest.mark.soak
def test_processing_time_without_rows(both: Callable[..., Both]) -> None:
    """A timer fires though no more rows come."""

    def steps(feed: Feed, query: StreamingQuery, count: Callable[[], int]) -> None:
        feed.add([(key, 0, at(0), "register soon 1") for key in "abc"])
        wait_until(query, lambda: count() >= 6, "all timers have fired")

    program = both(
        INPUT, processor=ClockTimers, output=OUTPUT, time_mode="ProcessingTime", steps=steps
    )
    rows = program.same()
    assert {key: emitted(rows, key) for key in "abc"} == {k: ["row 0", "timer soon"] for k in "abc"}


class Numbered(Timers):
    """Number all firings of the subtask in this epoch."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.fired = 0

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        self.fired += 1
        (name,) = self.names.getValue((expiredTimerInfo.getExpiryTimeInMs(),))
        yield Row(k=key[0], what=f"timer {name}", calls=self.fired, timers=None, watermark=None)


@pytest.mark.soak
def test_order_across_keys(both: Callable[..., Both]) -> None:
    """Timers of all keys of a subtask fire in the order of their times."""
    times = {key: (i * 37 % 23 + 1, i * 29 % 23 + 24) for i, key in enumerate("abcdefgh")}
    first = [
        (key, 0, at(0), f"register {key}{y} {y}; register {key}{x} {x}")
        for key, (x, y) in times.items()
    ]
    program = both(
        INPUT,
        first,
        [("z", 0, at(10), "")],
        processor=Numbered,
        output=OUTPUT,
        time_mode="EventTime",
        watermark="ts",
        conf={PARTITIONS: "1"},
    )
    rows = [row for row in program.same() if row.what.startswith("timer")]
    expected = sorted((at_ms, key) for key, pair in times.items() for at_ms in pair)
    fired = [row.what for row in sorted(rows, key=lambda r: r.calls)]
    assert fired == [f"timer {key}{at_ms}" for at_ms, key in expected]


class Meddling(Timers):
    ON_EXPIRY: ClassVar = {
        "deletes": "delete deleted 2000",
        "adds": "register added 500",
        "renews": "delete renews 1000; register renews 1000",
    }


CHANGES: dict[str, tuple[str, list[str]]] = {
    # the set of due timers is fixed before the first timer of an epoch fires
    "a": ("register deletes 1000; register deleted 2000", ["timer deletes", "timer deleted"]),
    # what is added and already due waits for the next epoch
    "b": ("register adds 1000; register other 2000", ["timer adds", "timer other", "timer added"]),
    # a timer is deleted after it fired, even if it was registered again
    "c": ("register renews 1000", ["timer renews"]),
}


@pytest.mark.soak
def test_changing_timers_while_they_fire(both: Callable[..., Both]) -> None:
    """A handler that registers or deletes timers which are due in the same epoch."""
    program = both(
        INPUT,
        [(key, 0, at(0), commands) for key, (commands, _) in CHANGES.items()],
        [("z", 0, at(10), "")],
        [("z", 1, at(10), "")],
        [("z", 2, at(11), "")],
        processor=Meddling,
        output=OUTPUT,
        time_mode="EventTime",
        watermark="ts",
    )
    rows = program.same()
    for key, (_, expected) in CHANGES.items():
        assert emitted(rows, key) == ["row 0", *expected]


class KeyTold(Timers):
    """Emit the key as the processor gets it."""

    def step(self, key: Any, what: str, commands: str, times: Any) -> Row:
        super().step(key, what, commands, times)
        return Row(k=None, what=what.split()[0], calls=0, timers=repr(key), watermark=None)


@pytest.mark.slow
def test_key_of_a_fired_timer(both: Callable[..., Both]) -> None:
    """A timer has its key: of several columns, of any type, also null.

    Timestamps are left out: PySpark shows them without a zone here, and with one in rows.
    """
    ddl = f"{INPUT}, n int, day date, dec decimal(9,2), raw binary, d double"
    values: list[tuple[Any, ...]] = [
        (1, dt.date(2024, 2, 29), Decimal("1.5"), b"\x00", -0.5),
        (None,) * 5,
    ]
    files = [[("a", i, at(0), "register past -1", *rest) for i, rest in enumerate(values)]]
    program = both(
        ddl,
        *files,
        [(None, 0, at(0), "", *values[0])],
        processor=KeyTold,
        output=OUTPUT,
        keys=("k", "n", "day", "dec", "raw", "d"),
        time_mode="ProcessingTime",
        conf=ENDS,
    )
    rows = program.same()
    assert sorted(row.what for row in rows) == ["row", "row", "row", "timer", "timer"]


class NoTimers(Timers):
    """Emit rows and times only."""

    def step(self, key: Any, what: str, commands: str, times: Any) -> Row:
        watermark = times.getCurrentWatermarkInMs()
        known = times.getCurrentProcessingTimeInMs() > 0
        return Row(k=key[0], what=what, calls=0, timers=str(known), watermark=watermark)


@pytest.mark.soak
@pytest.mark.parametrize(
    "time_mode", [pytest.param("None", marks=pytest.mark.soak), "ProcessingTime"]
)
def test_no_row_is_late(both: Callable[..., Both], time_mode: str) -> None:
    """Rows are dropped in event time only; the other modes show times as PySpark does."""
    files = [[("a", epoch, at(seconds), "")] for epoch, seconds in enumerate([100, 200, 1, 1])]
    program = both(
        INPUT,
        *files,
        processor=NoTimers,
        output=OUTPUT,
        time_mode=time_mode,
        watermark="ts",
        conf=ENDS,
    )
    rows = program.same()
    assert [row.what for row in rows] == ["row 0", "row 1", "row 2", "row 3"]
    assert {row.timers for row in rows} == {str(time_mode != "None")}


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("engine", ["pyspark", "ckpt"])
def test_no_timers_without_a_time_mode(both: Callable[..., Both], engine: str) -> None:
    """With timeMode None a timer is an error."""
    files = [[("a", 0, at(0), "register soon 1")]]
    with pytest.raises(StreamingQueryException):
        both(INPUT, *files, processor=ClockTimers, output=OUTPUT).run(engine)
