"""Tasks that fail and workers that die are run again, and the result is exact."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row

from tests.query.harness import BACKEND, OFTEN, Job, await_checkpoint
from tests.query.model import Reveal, events_of, expected, in_order

LAST_ATTEMPT = 3


class Faulty(Reveal):
    """Reveal with faults that begin when `armed` is written; each fault leaves a mark."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def init(self, handle: Any) -> None:
        super().init(handle)
        context = TaskContext.get()
        if context is None:  # on the driver, where the states are declared
            self.armed = False
            return
        self.attempt = context.attemptNumber()
        self.epoch = int(context.getLocalProperty("streaming.sql.batchId"))
        self.task = f"{self.epoch}-{context.partitionId()}-{self.attempt}"
        self.armed = (self.marks / "armed").exists() and self.attempt < LAST_ATTEMPT

    def mark(self) -> None:
        (self.marks / self.task).touch()


class RaisesInClose(Faulty):
    """The first attempt of each task fails after all of its work."""

    def close(self) -> None:
        if self.armed and self.attempt == 0:
            self.mark()
            raise RuntimeError("close")


class RaisesAfterRows(Faulty):
    """The first two attempts of each task fail after the first key's rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        if self.armed and self.attempt < 2:
            self.mark()
            raise RuntimeError("after the rows")


class KilledInClose(Faulty):
    """The first attempt of each task is killed, which no handler sees, after all of its work."""

    def close(self) -> None:
        if self.armed and self.attempt == 0:
            self.mark()
            os.kill(os.getpid(), signal.SIGKILL)


class ExitsAtRandom(Faulty):
    """The worker exits before a random row; the first armed attempt always does."""

    def __init__(self, marks: Path, seed: int) -> None:
        super().__init__(marks)
        self.seed = seed

    def init(self, handle: Any) -> None:
        super().init(handle)
        if TaskContext.get() is not None:
            first = not any(self.marks.glob("*-*"))
            self.left = 0 if first else random.Random(f"{self.seed}-{self.task}").randrange(12)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            if self.armed and self.left == 0:
                self.mark()
                os._exit(1)
            self.left -= 1
            yield row


def run_with_faults(job: Job, marks: Path, backend: str, files: int = 2) -> None:
    """Two files in peace and a checkpoint, then the other files with faults."""
    marks.mkdir()
    with job.using({BACKEND: backend, **OFTEN}).running() as query:
        job.feed.add(events_of(0), events_of(1))
        query.processAllAvailable()
        await_checkpoint(query)
        assert not list(marks.iterdir())
        (marks / "armed").touch()
        job.feed.add(*map(events_of, range(2, 2 + files)))
        query.processAllAvailable()
    assert len(list(marks.glob("*-*-0"))) >= 1, "no fault happened"


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("processor", "backend"),
    [
        (RaisesInClose, "rocksdb"),
        (RaisesAfterRows, "heap"),
        (KilledInClose, "rocksdb"),
        pytest.param(KilledInClose, "heap", marks=pytest.mark.soak),
    ],
)
def test_first_attempts_fail_late(job: Job, processor: type[Faulty], backend: str) -> None:
    """Scenario 12: the next attempt does not see what a failed attempt wrote to the state."""
    marks = job.base / "marks"
    run_with_faults(job.but(processor=lambda: processor(marks)), marks, backend)
    assert {p.name.split("-")[0] for p in marks.glob("*-*")} == {"2", "3"}
    assert job.result() == expected(job.feed.rows)


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["rocksdb", pytest.param("heap", marks=pytest.mark.soak)])
def test_workers_exit_at_random(job: Job, backend: str) -> None:
    """Scenario 17: Python workers that exit inside user code do not change the result."""
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"TEST_SEED={seed}")
    marks = job.base / "marks"
    job = job.but(processor=lambda: ExitsAtRandom(marks, seed))
    run_with_faults(job, marks, backend, files=4)
    assert job.result() == expected(job.feed.rows), f"TEST_SEED={seed}"


@pytest.mark.slow
def test_second_action_of_a_batch_fails(job: Job) -> None:
    """Scenario 15: a task that fails as foreachBatch computes the batch again is retried too."""
    marks, collected = job.base / "marks", []

    def sink(batch: DataFrame, epoch: int) -> None:
        count = batch.count()
        rows = batch.collect()
        assert len(rows) == count
        collected.extend(rows)

    job = job.but(processor=lambda: RaisesInClose(marks)).using(OFTEN)
    marks.mkdir()
    (marks / "armed").touch()
    job.feed.add(events_of(0), events_of(1))
    job.writer().foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()
    assert in_order(collected) == expected(job.feed.rows)
