"""A promotion while others restart or promote the query: each finds what was done before it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.start import QueryStart
from tests.query.harness import INLINE, INTERVAL, SAVEPOINT_DIR, Job
from tests.query.restoring.numbered_job import (
    NUMBERED,
    PARTITIONS,
    PATIENCE_S,
    Gate,
    Mended,
    Numbered,
    check_numbered,
    epoch_of,
    subtasks_of,
    writer_of,
)
from tests.query.session_conf import session_conf

IGNORED = ["output.what"]
pytestmark = pytest.mark.soak


class Third(Numbered):
    what = "c"


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(processor=Numbered, output=NUMBERED)
    return job.using({INLINE: "0b", INTERVAL: "1h", SAVEPOINT_DIR: str(job.base / "savepoints")})


def gated(job: Job, gate: Gate, calls: int = 0) -> Any:
    """Return the job's program, which waits at the gate when it is built, but for first calls."""
    built = 0

    def build() -> DataFrame:
        nonlocal built
        built += 1
        if built > calls:
            gate.wait()
        return job.df()

    return build


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a promotion is about to restart the query."""
    asks, real = threading.Event(), ckpt.Shadow.stop

    def stop(self: ckpt.Shadow) -> None:
        real(self)
        asks.set()

    monkeypatch.setattr(ckpt.Shadow, "stop", stop)
    return asks


def test_a_shadow_is_no_proof_beside_another_program(job: Job, asks: threading.Event) -> None:
    """The query gets another program while the promotion waits for its turn: that stays."""
    building = Gate()
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        shadow = ckpt.shadow(query, job.but(processor=Mended).df, ignore=IGNORED)
        restart = pool.submit(query.restartWith, gated(job.but(processor=Third), building))
        building.await_arrival()
        promotion = pool.submit(shadow.promote, None, True)
        assert asks.wait(PATIENCE_S)
        building.open()
        restart.result(PATIENCE_S)
        with pytest.raises(ckpt.errors.ConfigurationError, match="restarted with another program"):
            promotion.result(PATIENCE_S)
        epoch_of(job)
        query.processAllAvailable()
        assert {what for _, n, what in job.result() if n == 2} == {"c"}
        shadow.discard()
        query.stop()


def test_a_promotion_that_fails_leaves_the_subtasks_of_the_rescale_before_it(
    job: Job, monkeypatch: pytest.MonkeyPatch, asks: threading.Event
) -> None:
    building, runs = Gate(), []
    real = QueryStart.run

    def run(self: QueryStart, *arguments: Any) -> Any:
        runs.append(self)
        if len(runs) == 3:
            msg = "the candidate does not start"
            raise OSError(msg)
        return real(self, *arguments)

    monkeypatch.setattr(QueryStart, "run", run)
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = writer_of(job, gated(job, building, calls=2)).start()
        query.processAllAvailable()
        shadow = ckpt.shadow(query, job.but(processor=Mended).df, ignore=IGNORED)
        rescale = pool.submit(query.rescale, 3)
        building.await_arrival()
        promotion = pool.submit(shadow.promote, None, True)
        assert asks.wait(PATIENCE_S)
        building.open()
        rescale.result(PATIENCE_S)
        with pytest.raises(OSError, match="does not start"):
            promotion.result(PATIENCE_S)
        epoch_of(job)
        query.processAllAvailable()
        assert subtasks_of(query) == {0, 1, 2}
        check_numbered(job, 2)
        shadow.discard()
        query.stop()


def test_a_shadow_is_promoted_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    restarting = Gate()
    real = CheckpointedQuery._restart

    def restart(self: CheckpointedQuery, *arguments: Any) -> Any:
        restarting.wait()
        return real(self, *arguments)

    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        shadow = ckpt.shadow(query, job.but(processor=Mended).df, ignore=IGNORED)
        monkeypatch.setattr(CheckpointedQuery, "_restart", restart)
        first = pool.submit(shadow.promote, None, True)
        restarting.await_arrival()
        second = pool.submit(shadow.promote, None, True)
        restarting.open()
        assert first.result(PATIENCE_S).restart.reason == "promote"
        with pytest.raises(ckpt.errors.ConfigurationError, match="was promoted or discarded"):
            second.result(PATIENCE_S)
        assert [each.reason for each in query._coordinator.restarts] == ["promote"]
        query.stop()


def test_a_restart_does_not_wait_for_a_requested_promotion_that_waits_for_it(
    job: Job, asks: threading.Event
) -> None:
    """The request is claimed, and its thread waits for the turn: the restart has that."""
    building = Gate()
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = writer_of(job, gated(job, building, calls=2)).start()
        query.processAllAvailable()
        ckpt.shadow(query, job.but(processor=Mended).df, ignore=IGNORED)
        restart = pool.submit(query.rescale, 3)
        building.await_arrival()
        arguments = ["promote", str(job.location_path), "--accept-differences"]
        promotion = pool.submit(main, [*arguments, "--timeout", str(PATIENCE_S)])
        assert asks.wait(PATIENCE_S)
        building.open()
        restart.result(PATIENCE_S)  # the time limit of a checkpoint is five times that
        assert promotion.result(PATIENCE_S) == 0
        assert [each.reason for each in query._coordinator.restarts] == ["rescale(3)", "promote"]
        query.stop()
