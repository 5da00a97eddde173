"""A query that failed raises an error of the library in all waiting callers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from tests.query.harness import OFTEN, SAVEPOINT_DIR, Job, files_below
from tests.query.model import Count
from tests.query.restoring.test_stop_with_savepoint import KEYS, Alarm
from tests.query.timed import at, timed_feed


class Failing(Count):
    """A processor that raises what looks like an error of the library."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if key[0] == "fail":
            raise ValueError("first\npyspark_ckpt.errors.FencedError: forged")
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.mark.slow
def test_a_processor_that_raises_is_a_processor_error(job: Job) -> None:
    """It is Spark's exception too; text of the user does not decide its class."""
    job = job.but(processor=Failing, output="k string, n long")
    job.feed.add([("fail", 1)])
    query = job.start()
    with pytest.raises(ckpt.errors.ProcessorError, match=r"key \('fail',\)") as failed:
        query.awaitTermination()
    with pytest.raises(ckpt.errors.ProcessorError, match="forged") as again:
        query.processAllAvailable()
    for error in (failed.value, again.value, query.exception()):
        assert isinstance(error, StreamingQueryException)
        assert isinstance(error, ckpt.errors.ProcessorError)
        assert not isinstance(error, ckpt.errors.FencedError)
        assert "__ckpt_" not in str(error)
    with pytest.raises(
        ckpt.errors.CheckpointAbortedError, match=r"has failed.*ProcessorError"
    ) as refused:
        query.triggerSavepoint(str(job.base / "savepoints"))
    assert refused.value.reason is ckpt.results.AbortReason.QUERY_ENDED
    assert "try again" not in str(refused.value)
    query.stop()


class Jammed(Alarm):
    """A processor whose timers cannot fire."""

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        raise ValueError("jammed")
        yield


@pytest.mark.soak
def test_a_drain_that_fails_raises_in_all_waiting_callers(job: Job) -> None:
    """The program that waits for the query does not end as a success."""
    job = job.but(feed=timed_feed(job.base / "timed"), processor=Jammed)
    job = job.but(output="k string, what string, v long", time_mode="EventTime", watermark="ts")
    job = job.using({SAVEPOINT_DIR: job.base / "savepoints", **OFTEN})
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    query = job.start()
    query.processAllAvailable()
    waited: list[BaseException] = []

    def wait() -> None:
        try:
            query.awaitTermination()
        except BaseException as exc:
            waited.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with pytest.raises(ckpt.errors.ProcessorError, match="jammed"):
        query.stopWithSavepoint(drain=True)
    waiting.join()
    (failure,) = waited
    assert isinstance(failure, ckpt.errors.FailedCheckpointsError)
    for part in ("savepoint was not made", "jammed", "handleExpiredTimer"):
        assert part in str(failure)
    assert query.exception() is failure
    assert not files_below(job.base / "savepoints")
