"""What a running query tells about its operators, beside Spark's own progress."""

from __future__ import annotations

from tests.query.harness import Job, drop_local_copies
from tests.query.model import Count


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
