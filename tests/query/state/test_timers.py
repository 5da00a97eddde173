"""Timers of whole queries: across stops, restarts and forks each fires once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import (
    BACKEND,
    OFTEN,
    Feed,
    Job,
    await_progress,
    await_rows,
    drop_local_copies,
    newest_checkpoint,
    refused,
)
from tests.query.model import in_order
from tests.query.timed import ORIGIN_MS, at, timed_feed

KEYS = [f"k{i}" for i in range(8)]  # of both subtasks
HOUR_MS = 3_600_000


class Alarm(StatefulProcessor):
    """Set a timer for each row with a value: that many seconds from the origin."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.values = handle.getMapState("values", "at long", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.v is not None:
                at_ms = self.time_ms(row.v, timerValues)
                self.handle.registerTimer(at_ms)
                self.values.updateValue((at_ms,), (row.v,))
            yield Row(k=key[0], what="row", v=row.v)

    def time_ms(self, v: int, times: Any) -> int:
        return ORIGIN_MS + v * 1000

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], what="timer", v=self.values.getValue((at_ms,))[0])
        self.values.removeKey((at_ms,))

    def close(self) -> None:
        pass


class ClockAlarm(Alarm):
    """Set a timer that many milliseconds from now."""

    def time_ms(self, v: int, times: Any) -> int:
        return int(times.getCurrentProcessingTimeInMs()) + v


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return timed_feed(tmp_path / "in")


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(processor=Alarm, output="k string, what string, v long")
    return job.but(time_mode="EventTime", watermark="ts").using(OFTEN)


def of_every_key(what: str, *values: int) -> list[Any]:
    return [(k, what, v) for k in KEYS for v in values]


def tick(second: float) -> list[Any]:
    """Return a row of a key without timers, so that most subtasks have none."""
    return [("tick", None, at(second))]


TICK = ("tick", "row", None)


@pytest.mark.everywhere
def test_event_time(job: Job) -> None:
    """Scenario 30: due after the last data, while the query was down, in a fork."""
    job.feed.add([(k, v, at(0)) for k in KEYS for v in (10, 20, 30)])
    job.run()
    emitted = of_every_key("row", 10, 20, 30)
    assert job.result() == in_order(emitted)
    job.feed.add(tick(10))
    job.run()  # one more epoch follows, without rows, at the watermark that the tick brought
    emitted += [TICK, *of_every_key("timer", 10)]
    assert job.result() == in_order(emitted)
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    assert drop_local_copies(job.spark)
    job.feed.add(tick(25))
    fork = job.but(location="loc2", out="out2").using({BACKEND: "heap"})
    job.run()
    fork.run(restore=savepoint)
    since = [TICK, *of_every_key("timer", 20)]
    assert job.result() == in_order(emitted + since)
    assert fork.result() == in_order(since)
    job.feed.add(tick(30))
    since += [TICK, *of_every_key("timer", 30)]
    for each, expected in ((job, emitted + since), (fork, since)):
        each.run()
        assert each.result() == in_order(expected)


@pytest.mark.slow
def test_stopped_in_the_middle(job: Job) -> None:
    """Scenario 30: stops between and within epochs lose no timer and fire none twice."""
    for i in range(7):
        job.feed.add([(k, 10 * i + 15, at(10 * i)) for k in KEYS])
    for epoch in (1, 4):
        with job.running() as query:
            await_progress(query, epoch)
        assert drop_local_copies(job.spark)
    job.run()
    rows = of_every_key("row", *range(15, 80, 10))
    assert job.result() == in_order(rows + of_every_key("timer", *range(15, 61, 10)))


@pytest.mark.slow
def test_processing_time(job: Job) -> None:
    """With availableNow they fire in epochs that have data, else as soon as they are due."""
    job = job.but(processor=ClockAlarm, time_mode="ProcessingTime", watermark=None)
    job.feed.add([(k, v, at(0)) for k in KEYS for v in (1, HOUR_MS)])
    checkpoint = newest_checkpoint(job.run())
    rows, fired = of_every_key("row", 1, HOUR_MS), of_every_key("timer", 1)
    assert job.result() == in_order(rows)
    job.run()  # ends, as there is no data
    assert job.result() == in_order(rows)
    fork = job.but(location="loc2", out="out2").using({BACKEND: "heap"})
    job.feed.add([("tick", 200, at(0))])
    first, then = [*fired, ("tick", "row", 200)], [("tick", "timer", 200)]
    with fork.running(checkpoint) as query:  # the last one comes without any data
        assert await_rows(query, fork, len(first + then)) == in_order(first + then)
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    job.run()
    assert job.result() == in_order(rows + first)
    job.feed.add(tick(0))
    second = job.but(location="loc3", out="out3").using({BACKEND: "rocksdb"})
    second.run(restore=savepoint)
    assert second.result() == [TICK]  # all that was due had fired before the savepoint
    job.run()
    assert job.result() == in_order([*rows, *first, *then, TICK])


@pytest.mark.slow
def test_all_available_input_is_awaited_though_epochs_run_all_the_time(job: Job) -> None:
    job = job.but(processor=ClockAlarm, time_mode="ProcessingTime", watermark=None)
    with job.running() as query:
        query.processAllAvailable()  # there is no input, and no epoch has run
        assert query.lastProgress is None or query.lastProgress["numInputRows"] == 0
        for number in range(3):  # files, one per epoch
            job.feed.add(*[[("a", HOUR_MS + number, at(0))]] * 3)
            query.processAllAvailable()
            assert len(job.result()) == 3 * (number + 1)
    query.processAllAvailable()  # it has ended


class Unlucky(ClockAlarm):
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        raise ZeroDivisionError("in a timer")


def await_often(query: ckpt.CheckpointedQuery) -> None:
    """Wait for input until the timer fires: in the epoch of one of the files, or after them."""
    for _ in range(100):
        query.processAllAvailable()


@pytest.mark.slow
def test_a_query_that_fails_ends_the_wait_for_its_input(job: Job) -> None:
    job = job.but(processor=Unlucky, time_mode="ProcessingTime", watermark=None)
    with job.running() as query:
        job.feed.add([("a", 1, at(0))], [("a", HOUR_MS, at(0))])
        with pytest.raises(ckpt.errors.ProcessorError, match="in a timer"):
            await_often(query)


class Chain(Alarm):
    """Set the next timer when one fires, until the watermark is reached, and one after it."""

    STEP: ClassVar = 5

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        (row,) = super().handleExpiredTimer(key, timerValues, expiredTimerInfo)
        at_ms = self.time_ms(row.v + self.STEP, timerValues)
        self.handle.registerTimer(at_ms)
        self.values.updateValue((at_ms,), (row.v + self.STEP,))
        yield row


@pytest.mark.slow
def test_set_while_timers_fire(job: Job) -> None:
    """A timer set by a timer is kept across a restart and fires when it is due."""
    job = job.but(processor=Chain)
    job.feed.add([(k, 5, at(0)) for k in KEYS])
    job.run()
    emitted = of_every_key("row", 5)
    for second in (5, 10):
        job.feed.add(tick(second))
        job.run()
        emitted += [TICK, *of_every_key("timer", second)]
        assert job.result() == in_order(emitted)


@pytest.mark.soak
def test_another_time_mode_is_refused_while_there_are_timers(job: Job) -> None:
    """With timers, nothing starts and nothing is written; without timers, the new clock applies."""
    job = job.but(processor=ClockAlarm, time_mode="ProcessingTime", watermark=None)
    job.feed.add([(k, HOUR_MS, at(0)) for k in KEYS])
    with job.running() as query:
        await_rows(query, job, len(KEYS))
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    fork = job.but(location="loc2", out="out2")
    for mode, watermark in (("EventTime", "ts"), ("None", None)):
        other = fork.but(time_mode=mode, watermark=watermark)
        plan = ckpt.location(savepoint).plan(other.writer())
        assert [row.outcome for row in plan.states if row.state == "(operator)"] == ["refused"]
        words = (f"timeMode ProcessingTime -> {mode}", "drain=True")
        with refused(ckpt.errors.RestoreError, *words, unchanged=job.base):
            other.start(savepoint)

    job = job.but(processor=Alarm, time_mode="ProcessingTime", location="loc3", out="out3")
    with job.running() as query:
        await_rows(query, job, len(KEYS) * 2)  # timers of long ago have fired
        savepoint = query.stopWithSavepoint(str(job.base / "savepoints")).path
    fork = fork.but(processor=Alarm, time_mode="EventTime", watermark="ts")
    assert "timeMode ProcessingTime -> EventTime" in str(
        ckpt.location(savepoint).plan(fork.writer())
    )
    job.feed.add([(k, 10, at(0)) for k in KEYS], tick(20), tick(30))
    fork.run(savepoint)
    emitted = [*of_every_key("row", 10), *of_every_key("timer", 10), TICK, TICK]
    assert fork.result() == in_order(emitted)
