"""Scenario 14: Spark runs a slow task a second time on another host, and both attempts finish."""

from __future__ import annotations

import os
import random
import re
import secrets
from pathlib import Path

import pytest

from pyspark_ckpt.formats.handle import KEPT_PREDECESSORS
from tests.cluster.cluster import Cluster, environment
from tests.cluster.hosts import two_hosts
from tests.query.stored import handles_of, metadata_of
from tests.recovery.numbered_rows import check_output

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "2s",
}
ROUNDS = 3


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_a_task_and_its_speculative_twin_both_finish(tmp_path: Path, backend: str) -> None:
    """Scenario 14: exact results, one handle per subtask; the loser's segment is deleted.

    Both attempts are held with a segment that is written and not yet named, and then released.
    """
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    with two_hosts(tmp_path, environment(tmp_path)) as master:
        conf = {**SPECULATION, "spark.master": master}
        cluster = Cluster(tmp_path, backend, random.Random(seed), conf=conf)
        with cluster.running():
            cluster.await_executors()
            cluster.await_epoch(cluster.feed())
            cluster.await_checkpoint()
            twins = [twins_that_finish(cluster) for _ in range(ROUNDS)]
            for _ in range(1 + KEPT_PREDECESSORS):
                cluster.await_epoch(cluster.feed())
            cluster.finish()
    check_output(tmp_path / "output", cluster.rows())
    newest = cluster.newest_checkpoint()
    assert [handle.subtask for handle in handles_of(newest, "numbering")] == [0, 1]
    checkpoints = [path.parent for path in tmp_path.glob("location/pyspark_ckpt/chk-*/_metadata")]
    needed = {file.path for path in checkpoints for file in metadata_of(path).files()}
    needed |= metadata_of(newest).kept_files()  # of the versions that an attempt may start from
    left = {path.name for path in tmp_path.glob("location/pyspark_ckpt/taskowned/*")}
    assert {f"taskowned/{name}" for name in left} <= needed
    for pair in twins:
        assert len(pair & left) <= 1, "the segments of both attempts are kept"


def twins_that_finish(cluster: Cluster) -> set[str]:
    """Hold a task and its twin at their barriers, release both; return their segments."""
    cluster.arm("barrier")
    epoch = cluster.feed()
    first = cluster.await_held()
    cluster.await_ended_task()
    cluster.arm("barrier")
    second = cluster.await_held()
    assert first.partition == second.partition
    assert first.executor != second.executor
    cluster.let_go()
    marks = [cluster.marks / f"wrote-{task.worker}" for task in (first, second)]
    cluster.until(lambda: all(mark.exists() for mark in marks), "one of the twins did not write")
    cluster.await_epoch(epoch)
    segments = {segment_of(mark.read_text()) for mark in marks}
    for mark in marks:
        mark.unlink()
    assert len(segments) == 2
    return segments


def segment_of(temporary: str) -> str:
    found = re.fullmatch(r"\.(segment-.*\.chg)\..*\.tmp", temporary)
    assert found is not None
    return found[1]
