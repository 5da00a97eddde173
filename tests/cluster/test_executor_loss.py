"""Executors die by ``kill -9`` at each phase of an epoch, or stand still past their heartbeat.

Scenarios 18 to 20. Oracle: each key's rows are numbered 1, 2, 3, ... without a gap or a repeat, and
the last states are those of the whole input. Before each kill a checkpoint completes.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import time
from pathlib import Path

import pytest

from pyspark_ckpt.checkpoint.cleaning import garbage_of
from pyspark_ckpt.formats.handle import KEPT_PREDECESSORS
from pyspark_ckpt.storage.open import LocalStorage
from tests.cluster.cluster import Cluster, Task, held_locks, users_of
from tests.query.stored import metadata_of
from tests.recovery.numbered_rows import check_output

PHASES = ("open", "rows", "barrier", "base")


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.mark.soak
@pytest.mark.own_jvm
def test_an_executor_is_killed_in_each_phase(tmp_path: Path, chance: random.Random) -> None:
    """While it opens the state, processes rows, writes a segment or a base snapshot, and after."""
    with Cluster(tmp_path, "rocksdb", chance).running() as cluster:
        _kill_in_each_phase(cluster)
        _end_and_check(cluster)


def _kill_in_each_phase(cluster: Cluster) -> None:
    cluster.await_executors()
    cluster.await_epoch(cluster.feed())
    for phase in PHASES:
        held = _hold(cluster, phase)
        cluster.kill(held)
        print(f"killed while held: {held}")
        cluster.await_epoch(cluster.feed())
    _kill_after_the_task(cluster)


def _hold(cluster: Cluster, phase: str) -> Task:
    """Feed until a task is held at the phase, which not every epoch reaches."""
    cluster.await_checkpoint()
    cluster.arm(phase)
    while not cluster.is_held():
        epoch = cluster.feed()
        cluster.until(
            lambda epoch=epoch: cluster.is_held() or cluster.is_committed(epoch),
            f"epoch {epoch} neither came to {phase} nor to its end",
        )
    return cluster.await_held()


def _kill_after_the_task(cluster: Cluster) -> None:
    """Kill an executor whose task has ended, while the epoch waits for the other task."""
    while True:
        cluster.await_executors()
        held = _hold(cluster, "rows")
        cluster.await_ended_task()
        ended = cluster.task(f"at-{1 - held.partition}")
        if ended.executor != held.executor:
            cluster.kill(ended)
            print(f"killed after its task: {ended}")
        cluster.let_go()
        cluster.await_epoch(cluster.feed())
        if ended in cluster.killed:
            return


def _end_and_check(cluster: Cluster) -> None:
    """Check that no process uses files of dead executors, and that the run leaves nothing.

    Spark gives each executor process its own directory, so no replacement sees a stale copy.
    Spark deletes the directory of a killed executor only when the application ends.
    """
    directories = {dead.local for dead in cluster.killed}
    assert len(directories) == len(cluster.killed)
    for directory in directories:
        assert not users_of(directory)
        assert not held_locks(directory)
    cluster.await_executors()
    cluster.finish()
    check_output(cluster.work / "output", cluster.rows())
    assert not list((cluster.work / "local").rglob("pyspark_ckpt"))
    # Of tasks killed in the last epochs and of uploads that the end cut off; none on most machines.
    left = _unfinished_files(cluster)
    if left:
        checkpoint = cluster.newest_checkpoint()
        storage = LocalStorage(checkpoint.parent)
        overdue = garbage_of(storage, metadata_of(checkpoint), ())
        assert not left & {checkpoint.parent / path for path in overdue}
        _run_past_what_is_kept(cluster)
    assert not left & _unfinished_files(cluster)


def _unfinished_files(cluster: Cluster) -> set[Path]:
    return set((cluster.work / "location" / "pyspark_ckpt").rglob(".*"))


def _run_past_what_is_kept(cluster: Cluster) -> None:
    """Let the query continue until a checkpoint needs nothing of the epochs before."""
    with cluster.running():
        for _ in range(KEPT_PREDECESSORS + 2):
            cluster.await_epoch(cluster.feed())
            cluster.await_checkpoint()
        cluster.await_executors()
        cluster.finish()
    check_output(cluster.work / "output", cluster.rows())


def _digests(cluster: Cluster, partition: int) -> dict[str, str]:
    """Return the digests of what Spark stored of a subtask."""
    directory = cluster.work / "location" / "state" / "0" / str(partition)
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("[0-9]*")
    }


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_twenty_kills_in_a_row(tmp_path: Path, chance: random.Random, backend: str) -> None:
    """No kill waits for the recovery from the one before."""
    with Cluster(tmp_path, backend, chance).running() as cluster:
        cluster.await_executors()
        cluster.await_epoch(cluster.feed())
        cluster.await_checkpoint()
        for _ in range(20):
            cluster.arm(chance.choice(("open", "rows", "barrier")))
            cluster.feed()
            cluster.kill(cluster.await_held())
        cluster.await_epoch(cluster.feed())
        cluster.await_checkpoint()
        _end_and_check(cluster)


def _stand_still(cluster: Cluster) -> Task:
    """Suspend an executor until the driver has lost it, and if possible until its epoch is over.

    Spark kills it ten seconds after it is lost, so there is no waiting for the epoch for longer.
    """
    cluster.await_executors()
    held = _hold(cluster, "barrier")  # its worker needs nothing more of its JVM to write on
    epoch = cluster.epoch
    cluster.suspend(held)
    cluster.await_lost_executor()
    latest = time.monotonic() + 6
    cluster.until(lambda: cluster.is_committed(epoch) or time.monotonic() > latest, "")
    print(f"its epoch was committed without it: {cluster.is_committed(epoch)}")
    return held


@pytest.mark.own_jvm
@pytest.mark.soak
def test_an_executor_that_stands_still_is_fenced(tmp_path: Path, chance: random.Random) -> None:
    """It continues after the driver has given it up: what it wrote does not count.

    The next run starts from what is stored, so it sees what the zombie did to that.
    """
    cluster = Cluster(tmp_path, "rocksdb", chance, heartbeat_timeout="3s")
    with cluster.running():
        cluster.await_executors()
        cluster.await_epoch(cluster.feed())
        for _ in range(12):  # on a busy machine most are killed
            held = _stand_still(cluster)
            states = _digests(cluster, held.partition)
            if cluster.resume(held):
                break
        else:
            pytest.fail("each time the executor was killed before it could continue")
        changed = _digests(cluster, held.partition).items() ^ states.items()
        print(f"Spark's state files that were changed: {changed}")
        zombie = cluster.zombie_segment()
        cluster.finish()
    needed = {file.path for file in metadata_of(cluster.newest_checkpoint()).files()}
    assert f"taskowned/{zombie}" not in needed
    with cluster.running():
        for _ in range(1 + KEPT_PREDECESSORS):
            cluster.await_epoch(cluster.feed())
        cluster.finish()
    check_output(cluster.work / "output", cluster.rows())
    assert not list(cluster.work.rglob(zombie))
