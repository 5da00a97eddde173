"""What a running query reports about its operators, next to Spark's own progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from tests.query.harness import Job, drop_local_copies
from tests.query.model import Count

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Alarms(Count):
    """Count, with a list of values, a timer per key, and the key forgotten at a negative value."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle
        self.values = handle.getListState("values", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        taken = list(rows)
        yield from super().handleInputRows(key, iter(taken), timerValues)
        self.values.appendList([(row.v,) for row in taken])
        self.handle.registerTimer(10_000_000_000_000)
        if any(row.v < 0 for row in taken):
            self.count.clear()
            self.values.clear()
            self.handle.deleteTimer(10_000_000_000_000)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("provider", [None, ROCKSDB])
def test_of_every_epoch_between_two_looks(job: Job, provider: str | None) -> None:
    """Keys, timers and late rows as a model has them, epoch by epoch, also of idle subtasks."""

    def plan(job: Job) -> DataFrame:
        rows = job.stream().withColumn("at", F.timestamp_seconds(F.abs("v")))
        return job.process(ckpt.key_by(rows.withWatermark("at", "0 seconds"), "k"))

    session = job.spark.newSession()
    if provider is not None:
        session.conf.set(PROVIDER, provider)
    job = job.but(
        spark=session, processor=Alarms, output="k string, n long", plan=plan,
        time_mode="EventTime",
    )  # fmt: skip
    job.feed.add([("early", 1)])
    job.run()  # another run, whose epochs are not this one's
    epochs = [
        [(f"k{n}", 100) for n in range(40)],
        [("k1", 200)],
        [("k1", 300), ("k2", 300)],
        [("k3", -400), ("k4", 5)],  # one is removed, one is late
        [("k1", 500)],
    ]
    with job.running() as query:
        progress = []
        for number, rows in enumerate(epochs):
            job.feed.add(rows)
            query.processAllAvailable()
            if number == 1:
                query.triggerCheckpoint()
            if number in (2, 4):
                progress = query.recentOperatorProgress
        last = query.lastOperatorProgress
        of_spark = {p["batchId"]: p for p in query.recentProgress}
        assert query.recentOperatorProgress == progress
    assert progress[-1:] == last
    with_rows = [each for each in progress if each["numInputRows"]]
    assert [each["numInputRows"] for each in with_rows] == [40, 1, 2, 1, 1]
    first, newest = progress[0]["epoch"], progress[-1]["epoch"]
    assert [each["epoch"] for each in progress] == list(range(first, newest + 1))
    assert progress[0]["epoch"] > 0
    assert [each["numKeys"] for each in with_rows] == [41, 41, 41, 40, 40]
    assert [each["numTimers"] for each in with_rows] == [41, 41, 41, 40, 40]
    assert not any(each["isEstimated"] for each in progress)
    assert sum(each["numRowsDroppedByWatermark"] for each in progress) == 1
    assert all(each["timestamp"] == of_spark[each["epoch"]]["timestamp"] for each in progress)
    assert with_rows[-1]["watermarkLagMs"] > 0
    assert with_rows[0]["lastCheckpointAgeMs"] is None
    assert with_rows[-1]["lastCheckpointAgeMs"] >= 0
    values = [state for state in last[0]["states"] if state["state"] == "values"]
    assert values[0]["numKeys"] == 40
    assert values[0]["numEntries"] > 40  # a header and chunks for each key
    assert values[0]["sizeBytes"] > values[0]["numEntries"]


def test_as_the_processor_worked(job: Job) -> None:
    """Reads, hits, writes and keys of the newest epoch only."""
    job = job.but(processor=Count, output="k string, n long")
    both = [(f"k{n}", n) for n in range(50)]
    job.feed.add(both, both, [("k1", 1), ("k1", 2), ("new", 3)])
    with job.running() as query:
        query.processAllAvailable()
        (progress,) = query.lastOperatorProgress
        spark_progress = query.lastProgress
        drop_local_copies(job.spark)
        job.feed.add([("k1", 1), ("k2", 1), ("k3", 1), ("k4", 1), ("k5", 1), ("k6", 1)])
        query.processAllAvailable()
        (after_loss,) = query.lastOperatorProgress
    assert (progress["numRebuilds"], after_loss["numRebuilds"]) == (0, after_loss["numSubtasks"])
    assert after_loss["numSubtasks"] > 0
    assert progress["operatorName"] == "op"
    assert progress["epoch"] == spark_progress["batchId"] == 2
    assert progress["numInputRows"] == spark_progress["numInputRows"] == 3
    assert progress["numKeysTouched"] == 2
    assert progress["numStateWrites"] == 2
    assert progress["numStateReads"] >= 2 > progress["numCacheHits"]
    assert progress["processTimeMs"] > 0
    assert sum(subtask["changelogBytes"] for subtask in progress["subtasks"]) > 0
