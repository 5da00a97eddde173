"""Restarts in place that copy each state as it is, and need other state stores all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from tests.query.harness import INLINE, INTERVAL, Job, until
from tests.query.restoring.numbered_job import (
    KEYS,
    NUMBERED,
    PARTITIONS,
    Numbered,
    check_numbered,
    epoch_of,
    subtasks_of,
    writer_of,
)
from tests.query.session_conf import session_conf
from tests.query.timed import at, timed_feed


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Numbered, output=NUMBERED).using({INLINE: "0b", INTERVAL: "1h"})


class Reminding(Numbered):
    """The same, and a timer of each key, which is due in the next epoch."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(k=key[0], n=0, what="timer")


def numbers(job: Job) -> range:
    """Return the numbers that every key has, once each."""
    found = sorted((n, key) for key, n, _ in job.result() if n)
    most = len(found) // len(KEYS)
    every = range(1, most + 1)
    assert found == sorted((n, key) for n in every for key in KEYS)
    return every


def timers(job: Job) -> set[str]:
    return {key for key, _, what in job.result() if what == "timer"}


@pytest.mark.slow
def test_a_program_that_has_timers_now(job: Job) -> None:
    """GroupState without a timeout has no place for one."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        query.restartWith(job.but(processor=Reminding, time_mode="ProcessingTime").df)
        for epoch in (1, 2):  # in processing time, Spark never runs out of epochs
            epoch_of(job)
            until(lambda: numbers(job) == range(1, epoch + 2), "there are no more rows")  # noqa: B023
        until(lambda: timers(job) == {*KEYS}, "timers have not fired")
        query.stop()
        assert query.exception() is None


@pytest.mark.slow
def test_an_operator_without_a_row_so_far_gets_other_subtasks(job: Job) -> None:
    job = job.but(plan=lambda job: job.process(ckpt.key_by(job.stream().where("v >= 0"), "k")))
    with session_conf(job.spark, {PARTITIONS: "2"}):
        job.feed.add([(key, -1) for key in KEYS])
        query = writer_of(job).start()
        query.processAllAvailable()
        assert query.rescale(3).parallelism == 3
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 1)
        assert subtasks_of(query) == {0, 1, 2}
        query.stop()
        assert query.exception() is None


@pytest.mark.slow
def test_a_program_with_timers_is_taken_back_at_once(job: Job, tmp_path: Path) -> None:
    """The checkpoint of the last epoch is of before, the state stores are not."""
    feed = timed_feed(tmp_path / "timed")
    job = job.but(feed=feed, watermark="ts")
    with session_conf(job.spark, {PARTITIONS: "2"}):
        feed.add([("a", 1, at(1)), ("b", 2, at(2))])
        query = writer_of(job).start()
        query.processAllAvailable()
        query.restartWith(job.but(time_mode="EventTime").df)
        query.restartWith(job.df)
        feed.add([("a", 3, at(3)), ("b", 4, at(4))])
        query.processAllAvailable()
        assert sorted((key, n) for key, n, _ in job.result()) == [
            (key, n) for key in "ab" for n in (1, 2)
        ]
        query.stop()
        assert query.exception() is None
