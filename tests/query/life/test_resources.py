"""What a query takes of its driver grows neither with its epochs nor with its starts."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.finalizer import ThreadSafeFinalizer

import pyspark_ckpt as ckpt
from tests.query.harness import OFTEN, Job, until
from tests.query.model import Count
from tests.query.session_conf import session_conf

OUTPUT = "k string, n long"
FEW = pytest.param(8, id="few")
PATIENCE_S = 20
"""How long what is no longer used may take to go: the collectors of both languages run by turns."""


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Count, output=OUTPUT)


class Taken:
    """Counts what this process and Spark hold for each other.

    An object of Java that this process holds is never collected by the JVM, with all that belongs
    to it: of a query, the plans of its epochs.
    """

    def __init__(self, job: Job) -> None:
        self._spark = job.spark

    def now(self) -> dict[str, int]:
        gateway = self._spark.sparkContext._gateway
        return {
            "threads": threading.active_count(),
            "open files": len(list(Path("/proc/self/fd").iterdir())),
            "callbacks": len(gateway.gateway_property.pool),
            "objects of Java": len(ThreadSafeFinalizer.finalizers),
            "listeners": len(self._spark._jsparkSession.streams().listListeners()),
            "queries": len(self._spark.streams.active),
        }

    def grown(self, before: dict[str, int], allowed: int) -> dict[str, int]:
        """Return what has grown by more than is allowed, after what is unused had time to go."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            gc.collect()
            self._spark._jvm.java.lang.System.gc()  # it tells which callbacks it has dropped
            now = self.now()
            grown = {name: now[name] - before[name] for name in now}
            grown = {name: more for name, more in grown.items() if more > allowed}
            if not grown or time.monotonic() > deadline:
                return grown
            time.sleep(0.2)


def run_in_function(job: Job) -> None:
    job.feed.add([("a", 1)])
    writer = ckpt.write_stream(job.df()).foreachBatch(lambda df, _: df.collect())
    query = writer.option("checkpointLocation", str(job.location_path)).start()
    query.processAllAvailable()
    query.stop()


def run_in_files(job: Job) -> None:
    job.feed.add([("a", 1)])
    job.run()


@pytest.mark.parametrize(
    "run", [run_in_function, pytest.param(run_in_files, marks=pytest.mark.slow)]
)
@pytest.mark.slow
@pytest.mark.parametrize("starts", [FEW, pytest.param(100, marks=pytest.mark.soak)])
def test_starts(job: Job, run: Callable[[Job], None], starts: int) -> None:
    """Each start once left a thread and a socket, with which the JVM had called back."""
    taken = Taken(job)
    for _ in range(2):
        run(job)
    before = taken.now()
    for _ in range(starts):
        run(job)
    assert taken.grown(before, allowed=starts // 2) == {}


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [FEW, pytest.param(1000, marks=pytest.mark.soak)])
def test_epochs(job: Job, epochs: int) -> None:
    taken = Taken(job)
    with job.using(OFTEN).running() as query:
        job.feed.add([("a", 1)])
        query.processAllAvailable()
        before = taken.now()
        job.feed.add(*[[("a", 1)]] * epochs)
        query.processAllAvailable()
        assert query.lastProgress is not None
        assert query.lastProgress.batchId == epochs
        assert taken.grown(before, allowed=epochs // 2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "epochs", [FEW, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
def test_epochs_of_a_shadow(job: Job, epochs: int) -> None:
    """Each of its epochs is a run of Spark's query in both forks."""
    taken = Taken(job)
    with session_conf(job.spark, {"spark.sql.streaming.minBatchesToRetain": "2000"}):
        with job.running() as query, ckpt.shadow(first_epoch(job, query), job.df) as shadow:
            follow(job, query, shadow, 1)
            before = taken.now()
            for epoch in range(2, epochs + 2):
                follow(job, query, shadow, epoch)
            assert shadow.report.is_equal
            assert taken.grown(before, allowed=epochs // 2) == {}


def first_epoch(job: Job, query: ckpt.CheckpointedQuery) -> ckpt.CheckpointedQuery:
    job.feed.add([("a", 1)])
    query.processAllAvailable()
    return query


def follow(job: Job, query: ckpt.CheckpointedQuery, shadow: ckpt.Shadow, epoch: int) -> None:
    job.feed.add([("a", 1)])
    query.processAllAvailable()
    until(lambda: shadow.report.epochs >= epoch or not shadow.isActive, f"epoch {epoch}")
