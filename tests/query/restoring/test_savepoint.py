"""Savepoints need no other file, and a query that starts from one does not change it."""

from __future__ import annotations

import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from pyspark_ckpt.savepoint import job as savepoint_job
from pyspark_ckpt.savepoint.job import SavepointJob
from pyspark_ckpt.storage import retrying as retrying_storage
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import (
    OFTEN,
    RETAINED,
    SAVEPOINT_DIR,
    Job,
    await_checkpoint,
    await_progress,
    completed,
    digests,
    drop_local_copies,
    files_below,
    flip_bit,
    until,
)
from tests.query.model import events_of, expected, expected_after, in_order


@pytest.fixture
def job(job: Job) -> Job:
    return job.using({SAVEPOINT_DIR: job.base / "savepoints", **OFTEN})


@pytest.mark.everywhere
def test_self_contained(job: Job) -> None:
    """Scenario 33: a copy of a savepoint restores after all of the original query is gone."""
    job.feed.add(*map(events_of, range(3)))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint()
        (row,) = completed(query, "savepoint")
    path = Path(savepoint.path)
    assert re.fullmatch(rf"savepoint-{query.id[:6]}-[0-9a-z]+", path.name)
    assert path.parent == job.base / "savepoints"
    assert (path / "_metadata").is_file()
    assert (savepoint.epoch, savepoint.query_id) == (2, query.id)
    assert (row.path, row.epoch, row.files) == (savepoint.path, 2, savepoint.files)
    assert savepoint.files == len(files_below(path))
    assert savepoint.size_bytes == sum(f.stat().st_size for f in files_below(path))
    moved = shutil.copytree(path, job.base / "elsewhere" / "copy")
    shutil.rmtree(path.parent)
    shutil.rmtree(job.base / "out")
    job.forget_location()
    drop_local_copies(job.spark)
    job.feed.add(events_of(3))
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=moved)
    assert fork.result() == expected_after(job.feed.rows, 60)


@pytest.mark.everywhere
def test_two_forks_beside_the_original(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 34: two forks and the original run at once without disturbing each other.

    An epoch is committed while the savepoint is taken, and is not in it.
    """
    forks = [job.but(location=f"loc{i}", out=f"out{i}") for i in range(2)]
    with job.running() as query:
        job.feed.add(*map(events_of, range(2)))
        query.processAllAvailable()
        copy = SavepointJob.__call__

        def copy_after_an_epoch(self: SavepointJob, copies: Any) -> Any:
            job.feed.add(events_of(2))
            await_progress(query, 2)
            return copy(self, copies)

        monkeypatch.setattr(SavepointJob, "__call__", copy_after_an_epoch)
        taken = query.triggerSavepoint()
        savepoint = Path(taken.path)
        assert taken.epoch == 1
        before = digests(savepoint)
        with forks[0].running(savepoint) as first, forks[1].running(savepoint) as second:
            job.feed.add(events_of(3))
            for q in (query, first, second):
                q.processAllAvailable()
            assert len({query.id, first.id, second.id}) == 3
    assert digests(savepoint) == before
    assert job.result() == expected(job.feed.rows)
    job.feed.add(events_of(4))
    for fork in forks:
        fork.run()
        assert fork.result() == expected_after(job.feed.rows, 40)
    forks[0].run(restore=savepoint)  # its location has epochs: it continues from there
    assert forks[0].result() == expected_after(job.feed.rows, 40)
    assert digests(savepoint) == before


@pytest.mark.soak
def test_copies_take_all_slots_of_a_query_that_waits(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short copies do; otherwise, or during an epoch, half the slots are left to the query."""
    at_once: list[int] = []
    run = SavepointJob._run

    def counted(self: SavepointJob, copies: Any, progress: Any) -> Any:
        at_once.append(len(copies))
        return run(self, copies, progress)

    monkeypatch.setattr(SavepointJob, "_run", counted)
    busy_at = job.base / "busy"

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.count()
        if epoch == 1:
            busy_at.touch()
            until(lambda: len(at_once) >= 5, "the savepoint beside the epoch")

    job.feed.add(events_of(0))
    query = job.writer().foreachBatch(sink).start()
    try:
        query.processAllAvailable()
        query.triggerSavepoint(format="CANONICAL")
        assert at_once == [2]
        with monkeypatch.context() as patch:
            patch.setattr(savepoint_job, "_QUICK_BYTES", -1)
            query.triggerSavepoint(format="CANONICAL")
        assert at_once == [2, 1, 1]
        job.feed.add(events_of(1))
        until(busy_at.exists, "an epoch is under way")
        query.triggerSavepoint(format="CANONICAL")
        query.processAllAvailable()
        assert at_once == [2, 1, 1, 1, 1]
    finally:
        query.stop()


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "pyspark_ckpt" in thread.name}


@pytest.mark.slow
def test_taken_between_two_epochs(job: Job) -> None:
    """Scenario 31: two at once, of a busy query with frequent checkpoints; each is of one epoch.

    Input and state fit together, in either format; retention ignores savepoints.
    """
    job.feed.add(*map(events_of, range(5)))
    with job.using({RETAINED: 1}).running() as query, ThreadPoolExecutor(2) as pool:
        await_progress(query, 1)
        formats = ["CANONICAL", "native"]
        savepoints = list(pool.map(query.triggerSavepoint, [None, None], formats))
        query.processAllAvailable()
        await_checkpoint(query, 4)
        before = own_threads()
        assert not any("savepoint" in name for name in before)
    assert job.result() == expected(job.feed.rows)
    assert [each.format for each in savepoints] == ["CANONICAL", "NATIVE"]
    for savepoint in savepoints:
        ckpt.location(savepoint.path).verify()
    table = pq.read_table(sorted(Path(savepoints[0].path).glob("shared/*.parquet"))[0])
    groups = [group for group in table["key_group"].to_pylist() if group is not None]
    assert groups == sorted(groups)
    assert set(table["state"].to_pylist()) == {"count", "recent", "tally"}
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=savepoints[1].path)
    assert fork.result() == expected_after(job.feed.rows, (savepoints[1].epoch + 1) * 20)


@pytest.mark.slow
def test_a_failure_on_the_executors(job: Job) -> None:
    """Scenario 32: a changed file ends the savepoint, not the query."""
    job.feed.add(*map(events_of, range(2)))
    with job.running() as query:
        query.processAllAvailable()
        path = files_below(job.checkpoint_path / "taskowned")[0]
        whole, threads = path.read_bytes(), own_threads()
        flip_bit(path)
        with pytest.raises(ckpt.errors.CorruptFileError, match=path.name):
            query.triggerSavepoint()
        assert list((job.base / "savepoints").iterdir()) == []
        assert own_threads() <= threads
        path.write_bytes(whole)
        job.feed.add(events_of(2))
        query.processAllAvailable()
        savepoint = query.triggerSavepoint()
        shown = ckpt.location(str(job.location_path)).history().query("kind == 'savepoint'")
    assert list(shown.status) == ["aborted", "completed"]
    assert path.name in shown.reason.iloc[0]
    assert job.result() == expected(job.feed.rows)
    ckpt.location(savepoint.path).verify()
    ckpt.location(savepoint.path).dispose()
    assert list((job.base / "savepoints").iterdir()) == []


@pytest.mark.slow
def test_what_a_failed_savepoint_leaves_goes_with_the_next_start(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 32: the savepoint fails, and so does the removal of what was copied."""
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        path = files_below(job.checkpoint_path / "taskowned")[0]
        whole = path.read_bytes()
        flip_bit(path)
        with monkeypatch.context() as failing:
            failing.setattr(retrying_storage, "PAUSES_SECONDS", ())
            failing.setattr(LocalStorage, "delete_directory", lambda *_: None)
            with pytest.raises(ckpt.errors.CorruptFileError, match=path.name):
                query.triggerSavepoint()
        path.write_bytes(whole)
        shown = ckpt.location(str(job.location_path)).history().query("kind == 'savepoint'")
        assert sorted(shown.status) == ["aborted", "begun"]
        assert files_below(job.base / "savepoints")
    job.feed.add(events_of(1))  # a driver that commits an epoch knows that the one before has ended
    with job.running():
        until(lambda: not list((job.base / "savepoints").iterdir()), "something is left")


@pytest.mark.soak
@pytest.mark.everywhere
def test_sink_of_a_fork(job: Job) -> None:
    """A fork may not write into the path of another query; into a new one it can be read back."""
    job.feed.add(*map(events_of, range(2)))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint().path
    job.feed.add(events_of(2))
    before = digests(job.base)
    fork = job.but(location="loc2")
    with pytest.raises(ckpt.errors.RestoreError, match=re.escape(str(job.base / "out"))) as refused:
        fork.run(restore=savepoint)
    assert "another query" in str(refused.value)
    assert "new path" in str(refused.value)
    assert digests(job.base) == before
    fork = fork.but(out="out2")
    writer = ckpt.write_stream(fork.df()).trigger(availableNow=True).restoreFrom(savepoint)
    writer = writer.option("checkpointLocation", str(fork.location_path))
    writer.start(str(job.base / "out2")).awaitTermination()
    assert fork.result() == expected_after(job.feed.rows, 40)
    assert job.spark.read.load(str(job.base / "out2")).count() == 20


@pytest.mark.soak
@pytest.mark.everywhere
def test_a_fork_into_a_table(job: Job) -> None:
    """It is created as Spark does, can be read by its name, and never belongs to another query."""
    job.feed.add(*map(events_of, range(2)))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint().path
    job.feed.add(events_of(2))
    fork, other = job.but(location="loc2"), job.but(location="loc3")
    name = f"fork_{job.base.name}"

    def run(job: Job, table: str) -> None:
        writer = ckpt.write_stream(job.df()).trigger(availableNow=True).restoreFrom(savepoint)
        writer = writer.option("checkpointLocation", str(job.location_path))
        writer.toTable(table, format="parquet", partitionBy="k").awaitTermination()

    def shown() -> list[Any]:
        return in_order(job.spark.table(name).select("k", "n", "state").collect())

    run(fork, f"default.{name}")
    assert shown() == expected_after(job.feed.rows[:60], 40)
    partitions = job.spark.sql(f"SHOW PARTITIONS {name}").schema.names
    assert partitions == ["partition"]
    job.feed.add(events_of(3))
    run(fork, name)  # its location has epochs: it continues from there
    assert shown() == expected_after(job.feed.rows, 40)
    before = digests(job.base)
    with pytest.raises(ckpt.errors.RestoreError, match="new path or table"):
        run(other, name)
    assert digests(job.base) == before
    job.spark.sql(f"DROP TABLE {name}")


@pytest.mark.slow
def test_nothing_to_save_yet(job: Job) -> None:
    """Scenario 31: without a committed epoch a savepoint is refused and leaves nothing."""
    with job.running() as query:
        with pytest.raises(ckpt.errors.CheckpointAbortedError, match="epoch"):
            query.triggerSavepoint()
        assert not files_below(job.base / "savepoints")
        job.feed.add(events_of(0))
        query.processAllAvailable()
        elsewhere = query.triggerSavepoint(str(job.base / "elsewhere"))
        assert Path(elsewhere.path).parent == job.base / "elsewhere"
