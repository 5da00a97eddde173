"""A query's checkpoints: triggered, expired, failed, notified, retained or discarded."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint import handles
from pyspark_ckpt.spark import state_reader as state_rows
from tests.query.harness import (
    DEADLINE,
    INLINE,
    INTERVAL,
    OFTEN,
    PAUSE,
    RETENTION,
    TIMEOUT,
    TOLERABLE,
    Job,
    await_checkpoint,
    completed,
    drop_local_copies,
    files_below,
    until,
)
from tests.query.model import OUTPUT, Count, Reveal, events_of, expected, expected_after

SELDOM = {INTERVAL: "1h", INLINE: "0b"}


class Heard(ckpt.CheckpointListener):
    """A listener that keeps what it is notified of, and then raises."""

    def __init__(self) -> None:
        self.completed: list[ckpt.results.CompletedCheckpoint] = []
        self.aborted: list[ckpt.results.AbortedCheckpoint] = []

    def onCheckpointCompleted(self, checkpoint: ckpt.results.CompletedCheckpoint) -> None:
        self.completed.append(checkpoint)
        raise RuntimeError("a listener may fail")

    def onCheckpointAborted(self, checkpoint: ckpt.results.AbortedCheckpoint) -> None:
        self.aborted.append(checkpoint)
        raise RuntimeError("a listener may fail")


class Notified(Reveal):
    """Reveal that leaves each id it is notified of as the name of a file."""

    directory: str

    def notifyCheckpointComplete(self, checkpointId: int) -> None:
        (Path(self.directory) / str(checkpointId)).touch()

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)


class Failing(Count):
    """Count that fails on a negative value."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if key[0] == "fail":
            raise ValueError("asked to fail")
        yield from super().handleInputRows(key, rows, timerValues)


class Pipe:
    """A named pipe in place of a file: a reader hangs until the test releases it."""

    def __init__(self, path: Path) -> None:
        self.path, self.content = path, path.read_bytes()
        path.unlink()
        os.mkfifo(path)

    def let_go(self) -> None:
        with self.path.open("wb") as pipe:
            pipe.write(self.content)
        self.path.unlink()
        self.path.write_bytes(self.content)


@contextmanager
def no_free_slot(spark: SparkSession, lock_path: Path) -> Iterator[list[int]]:
    """Yield the ids of the active jobs, while tasks that wait for a lock have all slots."""

    def wait_for_it(_: int) -> None:
        with Path(locked).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    locked = str(lock_path)
    context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
    slots = context.defaultParallelism
    with lock_path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        hog = threading.Thread(
            target=lambda: context.parallelize(range(slots), slots).foreach(wait_for_it)
        )
        hog.start()
        try:
            until(lambda: tasks_at_work(spark) == slots, "no task took the slots")
            yield tracker.getActiveJobsIds()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            hog.join(DEADLINE)
    assert not hog.is_alive()


def tasks_at_work(spark: SparkSession) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def directories(job: Job) -> list[str]:
    return sorted(path.name for path in job.checkpoint_path.glob("chk-*"))


def epoch(job: Job, query: ckpt.CheckpointedQuery, number: int) -> None:
    job.feed.add(events_of(number))
    query.processAllAvailable()


def test_triggered_by_hand_and_listeners_are_notified(job: Job) -> None:
    """triggerCheckpoint returns what it made; listeners and checkpoints() say the same."""
    job, heard = job.using(SELDOM), Heard()
    with job.running() as query:
        query.addCheckpointListener(heard)
        with pytest.raises(
            ckpt.errors.CheckpointAbortedError, match="no committed epoch"
        ) as refused:
            query.triggerCheckpoint()
        assert refused.value.reason is ckpt.results.AbortReason.NO_COMMITTED_EPOCH
        epoch(job, query, 0)
        first = query.triggerCheckpoint()
        assert query.triggerCheckpoint() == first
        epoch(job, query, 1)
        second = query.triggerCheckpoint()
        assert [one.checkpoint_id for one in (first, second)] == [1, 2]
        assert [one.epoch for one in (first, second)] == [0, 1]
        assert heard.completed == [first, second]
        assert heard.aborted == []
        rows = {row.checkpoint_id: row for row in completed(query)}
        for one in (first, second):
            row = rows[one.checkpoint_id]
            assert (row.path, row.epoch) == (one.path, one.epoch)
            assert (row.size_bytes, row.duration_ms) == (one.size_bytes, one.duration_ms)
        assert rows[first.checkpoint_id].new_bytes is None
        assert 0 < rows[second.checkpoint_id].new_bytes < second.size_bytes
        query.removeCheckpointListener(heard)
        epoch(job, query, 2)
    assert len(completed(query)) == 3, "a stopped query gets a last one"
    assert len(heard.completed) == 2
    with pytest.raises(ckpt.errors.CheckpointAbortedError, match="ended") as refused:
        query.triggerCheckpoint()
    assert refused.value.reason is ckpt.results.AbortReason.QUERY_ENDED
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=second.path)
    assert fork.result() == expected_after(job.feed.rows, 40)


@pytest.mark.slow
def test_a_step_that_hangs_expires(job: Job) -> None:
    """Scenario 6: a checkpoint is aborted after its timeout; what it does later has no effect."""
    job, heard = job.using(SELDOM).using({TIMEOUT: "6s", TOLERABLE: 1}), Heard()
    with job.running() as query:
        query.addCheckpointListener(heard)
        epoch(job, query, 0)
        before = query.triggerCheckpoint()
        epoch(job, query, 1)
        pipe = Pipe(job.location_path / "sources" / "0" / "1")
        with pytest.raises(ckpt.errors.CheckpointAbortedError, match="expired") as expired:
            query.triggerCheckpoint()
        assert expired.value.reason is ckpt.results.AbortReason.EXPIRED
        assert query.isActive
        (row,) = [row for row in query.checkpoints().collect() if row.status == "aborted"]
        assert (row.kind, row.checkpoint_id, row.epoch, row.path) == ("checkpoint", 2, 1, None)
        assert row.reason.startswith("expired: ")
        assert row.duration_ms >= 6000
        assert [outcome.checkpoint_id for outcome in heard.aborted] == [2]
        pipe.let_go()
        after = query.triggerCheckpoint()
        assert (after.checkpoint_id, after.epoch) == (3, 1)
        assert heard.completed == [before, after]
    assert directories(job) == ["chk-1", "chk-3"]
    assert job.result() == expected(job.feed.rows)


@pytest.mark.soak
def test_spark_jobs_that_hang_are_cancelled(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 6: an expired checkpoint's jobs are cancelled; the thread keeps its properties."""
    # A checkpoint of many subtasks has a job if Spark's store writes no changes that can be read.
    monkeypatch.setattr(handles, "_has_changes", lambda *_: False)
    monkeypatch.setattr(state_rows, "FEW_PARTITIONS", 0)
    job = job.using(SELDOM).using({TIMEOUT: "3s", TOLERABLE: 1})
    context, tracker = job.spark.sparkContext, job.spark.sparkContext.statusTracker()
    savepoints = job.base / "savepoints"
    savepoints.mkdir()
    with job.running() as query:
        epoch(job, query, 0)
        names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
        context.setJobGroup("mine", "of mine")
        context.addJobTag("my-tag")
        try:
            with no_free_slot(job.spark, job.base / "lock") as others:
                with pytest.raises(ckpt.errors.CheckpointAbortedError, match="expired") as expired:
                    query.triggerCheckpoint()
                assert expired.value.reason is ckpt.results.AbortReason.EXPIRED
                until(lambda: tracker.getActiveJobsIds() == others, "a checkpoint's job continues")
                with pytest.raises(ckpt.errors.CheckpointAbortedError, match="expired") as expired:
                    query.triggerSavepoint(str(savepoints))
                assert expired.value.reason is ckpt.results.AbortReason.EXPIRED
                until(lambda: tracker.getActiveJobsIds() == others, "a savepoint's job continues")
                assert list(savepoints.iterdir()) == []
            savepoint = query.triggerSavepoint(str(savepoints))
            properties = {name: context.getLocalProperty(name) for name in names}
            assert list(properties.values()) == ["mine", "of mine", "false"]
            assert set(context.getJobTags()) == {"my-tag"}
        finally:
            for name in names:
                context.setLocalProperty(name, None)
            context.removeJobTag("my-tag")
        assert query.triggerCheckpoint().epoch == savepoint.epoch == 0
    aborted = [row for row in query.checkpoints().collect() if row.status == "aborted"]
    assert {(row.kind, row.reason.partition(":")[0]) for row in aborted} == {
        ("checkpoint", "expired"),
        ("savepoint", "expired"),
    }


def test_too_many_failures_stop_the_query(job: Job) -> None:
    """Scenario 3: one failure is tolerated, two in a row are not; a success resets the count."""
    job = job.using(SELDOM).using({TOLERABLE: 1})
    with job.running() as query:
        epoch(job, query, 0)
        first = query.triggerCheckpoint()
        damaged = files_below(job.checkpoint_path / "taskowned")[0]
        whole = damaged.read_bytes()

        def fails(number: int) -> None:
            epoch(job, query, number)
            damaged.write_bytes(whole[:-1])
            with pytest.raises(ckpt.errors.CheckpointAbortedError, match=damaged.name) as failed:
                query.triggerCheckpoint()
            assert failed.value.reason is ckpt.results.AbortReason.CORRUPT_FILE
            damaged.write_bytes(whole)

        fails(1)
        assert query.triggerCheckpoint().checkpoint_id == 3
        fails(2)
        assert query.isActive
        assert query.exception() is None
        fails(3)
        assert not query.isActive
        with pytest.raises(ckpt.errors.FailedCheckpointsError) as stopped:
            query.awaitTermination(DEADLINE)
        for mention in (query.id, TOLERABLE, damaged.name, "corrupt"):
            assert mention in str(stopped.value).lower()
        assert query.exception() is stopped.value
        with pytest.raises(ckpt.errors.FailedCheckpointsError):
            query.processAllAvailable()
    assert [row.checkpoint_id for row in completed(query)] == [1, 3]
    assert Path(first.path).exists()
    drop_local_copies(job.spark)
    job.run()
    assert job.result() == expected(job.feed.rows)


def test_no_failure_is_tolerated_if_the_setting_says_so(job: Job) -> None:
    """A periodic checkpoint that cannot be written stops the query too, and says where."""
    job = job.using(OFTEN).using({TOLERABLE: 0})
    with job.running() as query:
        job.checkpoint_path.mkdir(exist_ok=True)
        blocked = job.checkpoint_path / "chk-1"
        blocked.write_text("a file where a directory should be")
        job.feed.add(events_of(0))
        with pytest.raises(ckpt.errors.FailedCheckpointsError, match=re.escape(str(blocked))):
            query.awaitTermination(DEADLINE)
    blocked.unlink()
    job.run()
    assert job.result() == expected(job.feed.rows)


def test_the_pause_holds_back_periodic_checkpoints_only(job: Job) -> None:
    """Scenario 6: due every 100 ms, a pause of an hour: one periodic checkpoint, others by hand."""
    job = job.using({INTERVAL: "100ms", PAUSE: "1h"})
    with job.running() as query:
        epoch(job, query, 0)
        await_checkpoint(query, 0)
        for number in (1, 2):
            epoch(job, query, number)
            assert query.triggerCheckpoint().epoch == number
    assert [row.epoch for row in completed(query)] == [0, 1, 2]


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("retention", "after_stop", "after_failure"),
    [
        ("RETAIN_ON_CANCELLATION", True, True),
        ("DELETE_ON_CANCELLATION", False, True),
        ("NO_EXTERNALIZED_CHECKPOINTS", False, False),
    ],
)
def test_what_stays_when_a_query_ends(
    job: Job, retention: str, after_stop: bool, after_failure: bool
) -> None:
    """After a stop or failure, checkpoints stay or are deleted; state stays, and ids continue."""
    job = (
        job.using(SELDOM)
        .using({RETENTION: retention})
        .but(processor=Failing, output="k string, n long")
    )
    with job.running() as query:
        epoch(job, query, 0)
        first = query.triggerCheckpoint()
        epoch(job, query, 1)
    assert [row.checkpoint_id for row in completed(query)] == [1, 2] * after_stop
    assert Path(first.path).joinpath("_metadata").exists() == after_stop
    drop_local_copies(job.spark)
    query = job.start()
    epoch(job, query, 2)
    second = query.triggerCheckpoint()
    assert second.checkpoint_id == 3
    job.feed.add([("fail", -1)])
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert bool(completed(query)) == after_failure
    assert Path(second.path).joinpath("_metadata").exists() == after_failure


def test_ids_after_a_crash(job: Job) -> None:
    """An id that left only a directory is not used again; the directory is removed in time."""
    job = job.using(SELDOM)
    with job.running() as query:
        epoch(job, query, 0)
        assert query.triggerCheckpoint().checkpoint_id == 1
    (job.checkpoint_path / "chk-5").mkdir()
    (job.checkpoint_path / "chk-5" / "._metadata.0123abcd.tmp").write_bytes(b"half")
    with job.running() as query:
        epoch(job, query, 1)
        assert directories(job) == ["chk-1", "chk-5"]
        assert query.triggerCheckpoint().checkpoint_id == 6
        assert directories(job) == ["chk-1", "chk-6"]
    assert [row.checkpoint_id for row in completed(query)] == [1, 6]


@pytest.mark.slow
def test_processors_are_notified_at_the_next_epoch(job: Job) -> None:
    """They are notified of the newest completed checkpoint, and only of existing ones."""
    notes = job.base / "notes"
    notes.mkdir()
    job = job.using(SELDOM).but(processor=lambda: Notified(notes), output=OUTPUT)
    with job.running() as query:
        epoch(job, query, 0)
        epoch(job, query, 1)
        assert files_below(notes) == []
        assert query.triggerCheckpoint().checkpoint_id == 1
        assert files_below(notes) == []
        epoch(job, query, 2)
        assert [path.name for path in files_below(notes)] == ["1"]
        assert query.triggerCheckpoint().checkpoint_id == 2
        epoch(job, query, 3)
        assert [path.name for path in files_below(notes)] == ["1", "2"]
    assert job.result() == expected(job.feed.rows)
