"""Initial state of whole queries: epoch 0 starts from it, once and complete."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.restore.location import start_location
from tests.query.harness import (
    BACKEND,
    OFTEN,
    Job,
    await_checkpoint,
    newest_checkpoint,
    until,
)
from tests.query.model import in_order
from tests.query.session_conf import session_conf
from tests.query.stored import entries_of_states, handles_of, metadata_of

KEYS = [f"k{i}" for i in range(12)]  # of both subtasks
OUTPUT = "k string, n long"
PARTITIONS = "spark.sql.shuffle.partitions"


class Begun(StatefulProcessor):
    """Add to a number that begins with the initial state."""

    def init(self, handle: Any) -> None:
        self.number = handle.getValueState("number", "n long")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        assert key == (initialState.name,)
        self.number.update(((self.number.get() or (0,))[0] + initialState.begin,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.number.get() or (0,))[0] + sum(row.v for row in rows)
        self.number.update((n,))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        pass


class WithBroadcast(Begun):
    """Take broadcast rows, too."""

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> Iterator[Row]:
        assert list(rows)
        return iter(())


def beginning(job: Job, first: int = 100) -> Any:
    rows = [(k, first * i) for i, k in enumerate(KEYS)] + [(KEYS[0], 7)]
    return job.spark.createDataFrame(rows, "name string, begin long").groupBy("name")


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(processor=Begun, output=OUTPUT).using(OFTEN)
    return job.but(arguments={"initialState": beginning(job)})


def twice(job: Job) -> DataFrame:
    rows = job.stream()
    return job.process(ckpt.key_by(rows.union(rows), "k"))


def numbers(path: str) -> int:
    return len(entries_of_states(path)["number"])


@pytest.mark.slow
def test_made_once(job: Job) -> None:
    """A restart, even with another initial state, continues with the existing state."""
    job.feed.add([("k0", 1), ("k3", 1), ("new", 1)])
    first = job.run()
    emitted = [("k0", 8), ("k3", 301), ("new", 1)]
    assert job.result() == in_order(emitted)
    files = job.spark.read.parquet(str(job.base / "out"))
    assert in_order(files.collect()) == in_order(emitted)
    checkpoint = newest_checkpoint(first)
    assert metadata_of(checkpoint).epoch == 0
    assert [handle.subtask for handle in handles_of(checkpoint)] == [0, 1]
    assert numbers(checkpoint) == len(KEYS) + 1
    job.feed.add([("k0", 1), ("k4", 1)])
    job.but(arguments={"initialState": beginning(job, 9999)}).run()
    emitted += [("k0", 9), ("k4", 401)]
    assert job.result() == in_order(emitted)
    fork = job.but(location="loc2", out="out2").using({BACKEND: "heap"})
    fork.run(restore=checkpoint)  # its initial state is what it is restored from
    assert fork.result() == in_order(emitted[3:])
    job.feed.add([("k5", 1)])
    for each in (job, fork):
        each.but(arguments={}).run()  # without one from now on
        assert ("k5", 501) in each.result()


@pytest.mark.slow
def test_an_interrupted_restore_is_not_replaced(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state would be lost: a start without the path is refused, with an initial state too."""
    job.feed.add([("k1", 1)])
    savepoint = newest_checkpoint(job.run())
    job.feed.add([("k1", 1)])
    fork = job.but(location="loc2", out="out2")
    with monkeypatch.context() as patched:
        patched.setattr(start_location, "seed", cut)
        with pytest.raises(InterruptedError):
            fork.run(restore=savepoint)
    for _ in range(2):
        with pytest.raises(
            ckpt.errors.RestoreError, match="a restore into this location has not ended"
        ):
            fork.run()
    fork.run(restore=savepoint)
    assert fork.result() == [("k1", 102)]


def cut(*arguments: Any, **more: Any) -> None:
    """Stand in for a step, at which the driver dies."""
    raise InterruptedError


@pytest.mark.slow
def test_foreach_batch(job: Job) -> None:
    """The rows of epoch 0 come after the initial state, in each action.

    The query reads its source at two places, of which Spark keeps two offsets and one log.
    """
    job = job.but(plan=twice)
    seen: dict[int, list[tuple[Any, ...]]] = {}

    def sink(batch: DataFrame, epoch: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(batch.count).result() == 1
        seen[epoch] = [tuple(row) for row in batch.collect()]

    job.feed.add([("k2", 1)], [("k2", 2)])
    writer = job.writer().foreachBatch(sink).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert seen == {0: [("k2", 202)], 1: [("k2", 206)]}


@pytest.mark.slow
def test_subtasks_without_rows(job: Job) -> None:
    """The first checkpoint has their state, and restores at another parallelism."""
    job.feed.add([(KEYS[0], 1)])
    checkpoint = newest_checkpoint(job.run())
    assert [handle.epoch for handle in handles_of(checkpoint)] == [0, 0]
    assert numbers(checkpoint) == len(KEYS)
    job.feed.add([(key, 1) for key in KEYS])
    with session_conf(job.spark, {PARTITIONS: "5"}):
        wider = job.but(location="wide", out="wide-out")
        query = wider.run(restore=checkpoint)
        assert [handle.parallelism for handle in handles_of(newest_checkpoint(query))] == [5] * 5
    sums = [100 * i + 1 for i in range(len(KEYS))]
    sums[0] += 8
    assert wider.result() == in_order(zip(KEYS, sums, strict=True))


@pytest.mark.slow
def test_leaves_nothing_behind(job: Job) -> None:
    """The first checkpoint deletes what epoch 0 starts from; idle subtasks are not called."""
    job.feed.add([(KEYS[0], 1)])
    with job.running() as query:
        await_checkpoint(query, 0)
        until(lambda: not list(job.checkpoint_path.glob("shared/initial-*")), "it is still there")
        job.feed.add([(KEYS[0], 1)])
        second = await_checkpoint(query, 1)
    assert sorted(handle.epoch for handle in handles_of(second.path)) == [0, 1]


class FailsOnce(Begun):
    """The first attempt of each task of epoch 0 fails after all of its work."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        context = TaskContext.get()
        self.fails = (
            context is not None
            and context.attemptNumber() == 0
            and context.getLocalProperty("streaming.sql.batchId") == "0"
        )

    def close(self) -> None:
        if self.fails:
            raise RuntimeError("the first attempt")


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_tasks_that_fail_in_epoch_0(job: Job, backend: str) -> None:
    job.feed.add([(key, 1) for key in KEYS])
    job = job.but(processor=FailsOnce).using({BACKEND: backend})
    job.run()
    job.feed.add([(KEYS[1], 1)])
    job.run()
    sums = [(key, 100 * i + 1) for i, key in enumerate(KEYS)]
    sums[0] = (KEYS[0], 8)
    assert job.result() == in_order([*sums, (KEYS[1], 102)])


class FailsWithRows(Begun):
    """A processor with an error that a user corrects."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        raise ValueError("not good")


@pytest.mark.soak
def test_restart_before_the_first_commit(job: Job) -> None:
    """The state is made again from the new initial state; a query without one is refused."""
    job.feed.add([(KEYS[2], 1)])
    with pytest.raises(Exception, match="not good"):
        job.but(processor=FailsWithRows).run()
    assert (job.location_path / "offsets" / "0").exists()
    with pytest.raises(ckpt.errors.RestoreError, match="initialState again"):
        job.but(arguments={}).run()
    checkpoint = newest_checkpoint(job.but(arguments={"initialState": beginning(job, 7)}).run())
    assert job.result() == [(KEYS[2], 15)]
    assert numbers(checkpoint) == len(KEYS)


def test_beside_other_operators(job: Job) -> None:
    """One of two operators has an initial state and broadcast rows; one of Spark's follows."""

    def plan(job: Job) -> DataFrame:
        uncounted = job.but(arguments={}, uid="second")
        keyed = ckpt.key_by(job.stream(), "k").connectBroadcast(job.stream())
        counted = job.process(keyed).withColumnRenamed("n", "v")
        return uncounted.process(ckpt.key_by(counted, "k"))

    def deduplicated(job: Job) -> DataFrame:
        return job.process(ckpt.key_by(job.stream(), "k")).dropDuplicates(["k"])

    job.feed.add([(KEYS[3], 1)])
    both = job.but(plan=plan, processor=WithBroadcast)
    both.run()
    job.feed.add([(KEYS[3], 1)])
    both.run()
    assert both.result() == in_order([(KEYS[3], 301), (KEYS[3], 301 + 302)])
    once = job.but(plan=deduplicated, location="once", out="once-out")
    once.run()
    assert [k for k, _ in once.result()] == [KEYS[3]]


@pytest.mark.soak
def test_processor_that_raises(job: Job) -> None:
    """An error in handleInitialState names the key; the next start makes the state again."""
    bad = job.spark.createDataFrame([("k1", 5), ("bad", None)], "name string, begin long")
    job.feed.add([("k1", 1)])
    with pytest.raises(ckpt.errors.ProcessorError, match=r"handleInitialState.*bad"):
        job.but(arguments={"initialState": bad.groupBy("name")}).start()
    job.run()
    assert job.result() == [("k1", 101)]
