"""Initial state of whole queries: made once, before the first epoch, and complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, OFTEN, Job, newest_checkpoint
from tests.query.model import in_order
from tests.query.stored import entries_of_states, handles_of, metadata_of

KEYS = [f"k{i}" for i in range(12)]  # of both subtasks
OUTPUT = "k string, n long"


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


def test_made_once(job: Job) -> None:
    """A restart, also with another initial state, goes on with what is there."""
    job.feed.add([("k0", 1), ("k3", 1), ("new", 1)])
    first = job.run()
    told = [("k0", 8), ("k3", 301), ("new", 1)]
    assert job.result() == in_order(told)
    # The sink's directory can be read by itself, though it begins with the second epoch.
    files = job.spark.read.parquet(str(job.base / "out"))
    assert in_order(files.collect()) == in_order(told)
    checkpoint = newest_checkpoint(first)
    assert metadata_of(checkpoint).epoch == 1
    assert [handle.subtask for handle in handles_of(checkpoint)] == [0, 1]
    assert numbers(checkpoint) == len(KEYS) + 1
    job.feed.add([("k0", 1), ("k4", 1)])
    job.but(arguments={"initialState": beginning(job, 9999)}).run()
    told += [("k0", 9), ("k4", 401)]
    assert job.result() == in_order(told)
    fork = job.but(location="loc2", out="out2").using({BACKEND: "heap"})
    fork.run(restore=checkpoint)  # its initial state is what it is restored from
    assert fork.result() == in_order(told[3:])
    job.feed.add([("k5", 1)])
    for each in (job, fork):
        each.but(arguments={}).run()  # without one from now on
        assert ("k5", 501) in each.result()


def test_half_made(job: Job) -> None:
    """A query that was killed while the state was made begins anew, and only so."""
    job.location_path.mkdir()
    (job.location_path / "_seeding").touch()
    # Spark had committed the seeding, and its offsets were about to be replaced.
    for name in ("commits/0", "sources/0/0", "pyspark_ckpt/taskowned/segment-0-0-00.chg"):
        (job.location_path / name).parent.mkdir(parents=True, exist_ok=True)
        (job.location_path / name).write_text("half of some")
    job.feed.add([("k1", 1)])
    with pytest.raises(ckpt.RestoreError, match="interrupted"):
        job.but(arguments={}).run()
    query = job.run()
    assert job.result() == [("k1", 101)]
    assert numbers(newest_checkpoint(query)) == len(KEYS)
    assert not (job.location_path / "_seeding").exists()


def test_foreach_batch(job: Job) -> None:
    """The initial state is epoch 0: foreachBatch sees ids from 1 on, without a gap.

    The query reads its source at two places, of which Spark keeps two offsets and one log.
    """
    job = job.but(plan=twice)
    seen: dict[int, list[tuple[Any, ...]]] = {}

    def sink(batch: DataFrame, epoch: int) -> None:
        seen[epoch] = [tuple(row) for row in batch.collect()]

    job.feed.add([("k2", 1)], [("k2", 2)])
    writer = job.writer().foreachBatch(sink).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert seen == {1: [("k2", 202)], 2: [("k2", 206)]}


def test_processor_that_raises(job: Job) -> None:
    """An error in handleInitialState names the key; the next start makes the state anew."""
    bad = job.spark.createDataFrame([("k1", 5), ("bad", None)], "name string, begin long")
    job.feed.add([("k1", 1)])
    with pytest.raises(Exception, match=r"handleInitialState.*bad") as caught:
        job.but(arguments={"initialState": bad.groupBy("name")}).run()
    assert "ProcessorError" in str(caught.value)
    job.run()
    assert job.result() == [("k1", 101)]
