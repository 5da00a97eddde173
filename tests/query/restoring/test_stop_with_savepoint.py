"""Stopping with a savepoint: the savepoint has exactly what reached the sink, drained or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.descriptor import Drain
from pyspark_ckpt.query import start
from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.query.stopping.drain import LastEpochs
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import (
    BACKEND,
    INTERVAL,
    OFTEN,
    SAVEPOINT_DIR,
    Job,
    await_progress,
    completed,
    files_below,
)
from tests.query.model import events_of, expected, in_order
from tests.query.restoring.numbered_job import Gate
from tests.query.timed import ORIGIN_MS, at, timed_feed

AGES = ckpt.StateTtlConfig(10_000_000, time="event")
PATIENCE_S = 120
KEYS = [f"k{i}" for i in range(8)]  # of both subtasks


@pytest.mark.everywhere
def test_nothing_is_lost_or_repeated_between_two_queries(job: Job) -> None:
    """Scenario 31: a busy query is stopped in the middle; a fork continues where its sink ends."""
    job = job.using({SAVEPOINT_DIR: job.base / "savepoints", **OFTEN})
    job.feed.add(*map(events_of, range(4)))
    query = job.start()
    await_progress(query, 0)
    savepoint = query.stopWithSavepoint()
    assert not query.isActive
    assert query.exception() is None
    assert savepoint.epoch < 3  # else it ended by itself
    written = {int(p.name) for p in (job.base / "out" / "_spark_metadata").glob("[0-9]*")}
    assert max(written) == savepoint.epoch
    again = query.stopWithSavepoint(format="NATIVE")  # of one that has ended
    assert (again.epoch, again.format) == (savepoint.epoch, "NATIVE")
    assert len(files_below(Path(again.path))) > len(files_below(Path(savepoint.path)))
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=again.path)
    assert in_order(job.result() + fork.result()) == expected(job.feed.rows)


def test_a_query_that_ended_before_its_first_epoch(job: Job) -> None:
    query = job.run()
    for save in (query.triggerSavepoint, query.stopWithSavepoint):
        with pytest.raises(
            ckpt.errors.CheckpointAbortedError, match="has ended before its first epoch"
        ):
            save(str(job.base / "sp"))


@pytest.mark.slow
def test_a_stop_that_cannot_save_is_refused(job: Job) -> None:
    """Without a directory, or with an impossible one, the query continues."""
    job.feed.add(events_of(0))
    (job.base / "file").write_text("in the way")
    with job.running() as query:
        query.processAllAvailable()
        with pytest.raises(ckpt.errors.ConfigurationError, match="savepoint-dir"):
            query.stopWithSavepoint()
        with pytest.raises(ckpt.errors.ConfigurationError, match="NATIVE"):
            query.stopWithSavepoint(str(job.base / "sp"), format="other")
        with pytest.raises(OSError, match="file"):
            query.stopWithSavepoint(str(job.base / "file"))
        assert query.isActive
        job.feed.add(events_of(1))
        query.processAllAvailable()
        assert not files_below(job.base / "sp")
    assert job.result() == expected(job.feed.rows)
    with job.running() as again:  # it must not be stopped for an epoch of the first one
        with pytest.raises(ckpt.errors.FencedError):
            query.stopWithSavepoint(str(job.base / "sp"))
        assert again.isActive
        assert not files_below(job.base / "sp")


def test_a_query_that_is_started_again_is_not_fenced_by_its_former_run(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ends the former run, whose last checkpoint is still to come. No new input is there."""
    job = job.using({SAVEPOINT_DIR: job.base / "savepoints", INTERVAL: "1h"})
    job.feed.add(events_of(0))
    first = job.start()
    first.processAllAvailable()
    has_begun = threading.Event()
    real_take_last = CheckpointCoordinator._take_last

    def take_last(self: CheckpointCoordinator) -> None:
        assert has_begun.wait(PATIENCE_S)
        real_take_last(self)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "_take_last", take_last)
        second = job.start()
        has_begun.set()
        first._coordinator.join()
    assert first.exception() is None
    assert second.stopWithSavepoint().epoch == 0
    assert job.result() == expected(job.feed.rows)


class Alarm(StatefulProcessor):
    """Set a timer for each row, that many seconds from the origin; one of them sets another."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.values = handle.getMapState("values", "at long", "v long", AGES)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield from self.set(key, row.v)

    def set(self, key: Any, v: int) -> Iterator[Row]:
        at_ms = ORIGIN_MS + v * 1000
        self.handle.registerTimer(at_ms)
        self.values.updateValue((at_ms,), (v,))
        yield Row(k=key[0], what="row", v=v)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        assert timerValues.getCurrentWatermarkInMs() >= at_ms
        ((v,),) = [self.values.getValue((at_ms,))]
        self.values.removeKey((at_ms,))
        yield Row(k=key[0], what="timer", v=v)
        if v == 300:
            yield from self.set(key, 40_000_000)

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_a_drain_that_is_cut_is_finished_by_the_next_start(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draining watermark does not outlive the drain: no later row counts as late."""
    job = timed(job)
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    query = job.start()
    query.processAllAvailable()
    with monkeypatch.context() as patched:
        patched.setattr(QueryStart, "_start_spark", cut)
        with pytest.raises(InterruptedError):
            query.stopWithSavepoint(drain=True)
    assert (job.location_path / "_draining").exists()
    with pytest.raises(ckpt.errors.CheckpointAbortedError, match="drain was interrupted"):
        query.triggerSavepoint()
    assert not files_below(job.base / "savepoints")
    job.feed.add([(k, 20, at(5)) for k in KEYS])
    job.run()
    fired = [(k, "timer", 10) for k in KEYS]
    assert job.result() == in_order([(k, "row", v) for k in KEYS for v in (10, 20)] + fired)
    assert not (job.location_path / "_draining").exists()


@pytest.mark.slow
def test_a_drain_that_two_drivers_finish(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ends it while the second starts Spark, which finds new input: no epoch drains it.

    The second has fenced the first before.
    """
    job = timed(job)
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    query = job.start()
    query.processAllAvailable()
    with monkeypatch.context() as patched:
        patched.setattr(QueryStart, "_start_spark", cut)
        with pytest.raises(InterruptedError):
            query.stopWithSavepoint(drain=True)
    query._coordinator.lease.check()
    real_run, ran = LastEpochs._run_epoch, []

    def run(self: LastEpochs, drain: Drain | None) -> None:
        ran.append(drain)
        with pytest.raises(ckpt.errors.FencedError):
            query._coordinator.lease.check()
        real_run(self, drain)  # of the first driver
        assert self.finish_last_step()
        job.feed.add([(k, 20, at(5)) for k in KEYS])
        real_run(self, drain)

    with monkeypatch.context() as patched:
        patched.setattr(LastEpochs, "_run_epoch", run)
        job.run()
    assert len(ran) == 1
    fired = [(k, "timer", 10) for k in KEYS]
    assert job.result() == in_order([(k, "row", v) for k in KEYS for v in (10, 20)] + fired)
    assert not list(job.location_path.glob("_drain*"))


@pytest.mark.slow
def test_a_drain_that_begins_while_another_driver_starts(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has found no drain, and fences the first only now: it finishes the drain."""
    job = timed(job)
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    query = job.start()
    query.processAllAvailable()
    real, drained = QueryStart._fill, []

    def drains(self: QueryStart, *arguments: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(QueryStart, "_start_spark", cut)
            with pytest.raises(InterruptedError):
                query.stopWithSavepoint(drain=True)
        job.feed.add([(k, 20, at(5)) for k in KEYS])
        drained.append(query)
        real(self, *arguments)

    monkeypatch.setattr(QueryStart, "alone", lambda _: nullcontext())  # as in two processes
    monkeypatch.setattr(QueryStart, "_fill", drains)
    job.run()
    assert drained
    fired = [(k, "timer", 10) for k in KEYS]
    assert job.result() == in_order([(k, "row", v) for k in KEYS for v in (10, 20)] + fired)
    assert not list(job.location_path.glob("_drain*"))


@pytest.mark.slow
def test_a_start_of_the_same_process_waits_for_a_drain(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fence the driver that drains, and run the same epoch at the same time."""
    job = timed(job)
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    query = job.start()
    query.processAllAvailable()
    real_run, gate = LastEpochs._run_epoch, Gate()

    def gated(self: LastEpochs, drain: Drain | None) -> None:
        gate.wait()
        real_run(self, drain)

    monkeypatch.setattr(LastEpochs, "_run_epoch", gated)
    with ThreadPoolExecutor(2) as pool:
        saving = pool.submit(query.stopWithSavepoint, drain=True)
        gate.await_arrival()
        starting = pool.submit(job.start)
        wait([starting], timeout=2)  # it must not fence before this
        gate.open()
        saving.result(PATIENCE_S)
        starting.result(PATIENCE_S).stop()
    fired = [(k, "timer", 10) for k in KEYS]
    assert job.result() == in_order([(k, "row", 10) for k in KEYS] + fired)


@pytest.mark.parametrize("lost", ["offsets", "commits"])
def test_a_drain_that_is_cut_while_a_file_of_spark_is_away(
    job: Job, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The driver dies while it gives Spark's logs the true watermark: a file is written anew."""
    job = timed(job)
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    query = job.start()
    query.processAllAvailable()
    real_replace = LocalStorage.replace

    def replace(self: LocalStorage, relative: str, content: bytes) -> None:
        directory, _, epoch = relative.rpartition("/")
        has_run = lost == "commits" or (job.location_path / "commits" / epoch).exists()
        if directory == lost and has_run:
            self.delete([relative])  # as elsewhere than on this machine
            raise InterruptedError
        real_replace(self, relative, content)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "replace", replace)
        with pytest.raises(InterruptedError):
            query.stopWithSavepoint(drain=True)
    assert len(list(job.location_path.glob("commits/[0-9]*"))) != len(
        list(job.location_path.glob("offsets/[0-9]*"))
    )
    monkeypatch.setattr(LastEpochs, "_run_epoch", cut)  # the epoch is not run again
    job.feed.add([(k, 20, at(5)) for k in KEYS])
    job.run()
    fired = [(k, "timer", 10) for k in KEYS]
    assert job.result() == in_order([(k, "row", v) for k in KEYS for v in (10, 20)] + fired)
    assert not list(job.location_path.glob("_drain*"))


@pytest.mark.slow
@pytest.mark.parametrize("drain", [False, True])
def test_a_drain_that_is_interrupted_is_finished_by_another_stop(
    job: Job, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    """The savepoint has the true watermark: no later row is late for a fork."""
    job = timed(job)
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    query = job.start()
    query.processAllAvailable()
    with monkeypatch.context() as patched:
        patched.setattr(start, "library_errors", interrupt)  # around the wait for its last epoch
        with pytest.raises(KeyboardInterrupt):
            query.stopWithSavepoint(drain=True)
    assert job.spark.streams.active == []
    savepoint = query.stopWithSavepoint(drain=drain)
    fired = [(k, "timer", 10) for k in KEYS]
    assert job.result() == in_order([(k, "row", 10) for k in KEYS] + fired)
    job.feed.add([(k, 20, at(5)) for k in KEYS])
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=savepoint.path)
    assert fork.result() == in_order([(k, "row", 20) for k in KEYS])


def interrupt(*arguments: Any, **more: Any) -> None:
    """Stand in for a wait that the user interrupts."""
    raise KeyboardInterrupt


def cut(*arguments: Any, **more: Any) -> None:
    """Stand in for a step, at which the driver dies."""
    raise InterruptedError


def timed(job: Job) -> Job:
    job = job.but(feed=timed_feed(job.base / "timed"), processor=Alarm)
    job = job.but(output="k string, what string, v long", time_mode="EventTime", watermark="ts")
    return job.using({SAVEPOINT_DIR: job.base / "savepoints", **OFTEN})


@pytest.mark.slow
@pytest.mark.everywhere
def test_a_stop_that_fails_before_it_stops_leaves_the_query_as_it_was(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not failed, and takes its last checkpoint when it ends."""

    def out_of_reach(_: CheckpointTaker) -> None:
        msg = "store: connection reset"
        raise OSError(msg)

    job = job.using({SAVEPOINT_DIR: job.base / "savepoints", INTERVAL: "1h"})
    job.feed.add(events_of(0))
    query = job.start()
    query.processAllAvailable()
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointTaker, "take_back_if_fenced", out_of_reach)
        with pytest.raises(OSError, match="connection reset"):
            query.stopWithSavepoint()
    assert query.isActive
    assert query.exception() is None
    job.feed.add(events_of(1))
    query.processAllAvailable()
    query.stop()
    assert max(row.epoch for row in completed(query)) == 1
    assert job.result() == expected(job.feed.rows)


def test_drain(job: Job) -> None:
    """Every event-time timer fires, far ones and those set by timers, before the savepoint.

    State does not expire by it, and later rows are not late for the query or for a fork.
    """
    job = timed(job)
    job.feed.add([(k, v, at(0)) for k in KEYS for v in (10, 300)])
    rows = [(k, "row", v) for k in KEYS for v in (10, 300)]
    query = job.start()
    query.processAllAvailable()
    savepoint = query.stopWithSavepoint(drain=True)
    fired = [(k, "timer", v) for k in KEYS for v in (10, 300, 40_000_000)]
    emitted = rows + fired + [(k, "row", 40_000_000) for k in KEYS]
    assert job.result() == in_order(emitted)
    assert not (job.location_path / "_draining").exists()
    job.feed.add([(k, 20, at(5)) for k in KEYS])
    fork = job.but(location="loc2", out="out2").using({BACKEND: "heap"})
    fork.run(restore=savepoint.path)
    assert fork.result() == in_order([(k, "row", 20) for k in KEYS])
    job.run()
    assert job.result() == in_order(emitted + [(k, "row", 20) for k in KEYS])


def test_a_drain_is_into_the_sink_that_the_query_was_started_with(job: Job) -> None:
    """Not into what its writer was given since; also at a location that Spark does not know."""
    job = timed(job)
    job.feed.add([(k, 10, at(0)) for k in KEYS])
    seen: list[Row] = []
    of_another: list[Row] = []
    writer = ckpt.write_stream(job.df()).foreachBatch(lambda df, _: seen.extend(df.collect()))
    query = writer.start()
    query.processAllAvailable()
    writer.foreachBatch(lambda df, _: of_another.extend(df.collect()))
    query.stopWithSavepoint(str(job.base / "savepoints"), drain=True)
    assert of_another == []
    assert in_order(seen) == in_order([(k, what, 10) for k in KEYS for what in ("row", "timer")])
