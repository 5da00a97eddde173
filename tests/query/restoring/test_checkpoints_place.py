"""A location knows where its checkpoints are: another directory is refused, and every advice works.

The state is read from its files at each start, because no executor keeps a copy.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

import pyspark_ckpt as ckpt
from pyspark_ckpt import Location
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.console.data.places import find_places
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import (
    CHECKPOINT_DIR,
    INLINE,
    RETAINED,
    SAVEPOINT_DIR,
    Job,
    completed,
    drop_local_copies,
    newest_checkpoint,
    refused,
)
from tests.query.model import events_of, expected, expected_after, in_order

SETTING = "checkpointing.dir"


def with_files(job: Job) -> Job:
    """The job with a file for the changes of each epoch, so that no state is without its files."""
    return job.using({INLINE: "0b", RETAINED: 10})


def at(job: Job, directory: object) -> Job:
    """The job with its checkpoints below a directory."""
    return job.using({CHECKPOINT_DIR: directory})


def run_exactly(job: Job) -> ckpt.CheckpointedQuery:
    """Run one more epoch from files alone; all output so far is right."""
    drop_local_copies(job.spark)
    job.feed.add(events_of(job.feed.files))
    query = job.run()
    assert job.result() == expected(job.feed.rows)
    return query


def refused_start(job: Job, *mentions: object) -> Any:
    return refused(ckpt.errors.RestoreError, *mentions, unchanged=job.base)


def test_a_start_with_another_directory_is_refused_and_both_ways_out_work(job: Job) -> None:
    """Set later, unset later, moved by hand there and back, and the same directory otherwise."""
    job = with_files(job)
    a, inside = job.base / "a", job.checkpoint_path
    query = run_exactly(job)
    there = a / query.id
    job.feed.add(events_of(1))
    with refused_start(at(job, a), inside, there, f"without spark.ckpt.execution.{SETTING}"):
        at(job, a).run()
    assert not a.exists()
    run_exactly(job)
    a.mkdir()
    inside.rename(there)
    run_exactly(at(job, a))
    with refused_start(job, there, f"{SETTING}={a}", f"move {there} to {inside}"):
        job.run()
    link = job.base / "link"
    link.symlink_to(a)
    for spelling in (f"file://{a.parent}/x/../a/", link):
        run_exactly(at(job, spelling))
    link.unlink()
    there.rename(inside)
    query = run_exactly(job)
    assert len(completed(query)) == job.feed.files - 1  # each run but the first saw the others'


def test_a_location_is_all_that_commands_need(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """Its checkpoints are elsewhere; a copy, and a directory that is gone, are said to be so."""
    elsewhere = job.base / "elsewhere"
    job = at(with_files(job), elsewhere)
    newest = newest_checkpoint(run_exactly(job))
    location = str(job.location_path)
    assert ckpt.location(location).history()["path"].tolist() == [newest]
    assert set(ckpt.location(location).subtask_history()["uid"]) == {"op"}
    assert ckpt.location(location).lineage()["path"].tolist() == [newest]
    with ckpt.location(location).state() as snapshot:
        assert snapshot.path == newest
    captured = ckpt.location(location).capture(range(5, 6))
    assert captured.epochs == [5]
    assert list((Path(newest).parent / "captures").iterdir())
    for words in (["list"], ["history"], ["state"]):
        assert main([*words, location, "--json"]) == 0, words
    assert newest in capsys.readouterr().out
    for root in (job.location_path, job.base):
        (found,) = find_places(LocalStorage(root)).queries
        assert (found.checkpoints.url, found.path) == (str(Path(newest).parent), location)
    shutil.copytree(job.location_path, job.base / "copy")
    for read in (Location.history, Location.state, Location.lineage):
        with pytest.raises(ckpt.errors.CheckpointNotFoundError, match="copy") as caught:
            read(ckpt.location(job.base / "copy"))
        assert str(Path(newest).parent) in str(caught.value)
    elsewhere.rename(job.base / "away")
    for read in (
            Location.history, Location.state, Location.lineage, Location.subtask_history,
        ):  # fmt: skip
        with pytest.raises(ckpt.errors.CheckpointNotFoundError, match="mounted"):
            read(ckpt.location(location))
    gone = find_places(LocalStorage(job.location_path))
    assert not gone.queries
    assert "mounted" in gone.unreadable[0]


@pytest.mark.slow
def test_a_rollback_leaves_a_directory_inside_of_the_location(job: Job) -> None:
    """It is undone, and the location is moved with all that is in it."""
    job = with_files(job)
    job = at(job, job.location_path / "ckpts")
    first = newest_checkpoint(run_exactly(job))
    run_exactly(job)
    location = str(job.location_path)
    back = ckpt.location(location).rollback(Path(first).name)
    again = job.but(out="out2")
    drop_local_copies(job.spark)
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)
    ckpt.location(location).rollback(Path(back.kept).name)
    run_exactly(job)
    job.location_path.rename(job.base / "moved")
    moved = job.but(location="moved")
    with refused_start(moved, job.base / "moved/ckpts"):
        at(moved, job.base / "loc-that-was" / "ckpts").run()
    run_exactly(at(moved, job.base / "moved/ckpts"))
    assert len(ckpt.location(str(job.base / "moved")).history()) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("directory", [".", "pyspark_ckpt/b"])
def test_a_rollback_of_a_location_with_any_directory_in_it(job: Job, directory: str) -> None:
    job = with_files(job)
    job = at(job, job.location_path / directory)
    first = newest_checkpoint(run_exactly(job))
    run_exactly(job)
    back = ckpt.location(str(job.location_path)).rollback(Path(first).name)
    again = job.but(out="out2")
    drop_local_copies(job.spark)
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)
    ckpt.location(str(job.location_path)).rollback(Path(back.kept).name)
    run_exactly(job)


@pytest.mark.slow
def test_a_directory_that_is_gone_is_not_begun_anew(job: Job) -> None:
    """It is put back, or found at another place, or lost for good."""
    a, b = job.base / "a", job.base / "b"
    job = at(with_files(job), a).using({SAVEPOINT_DIR: job.base / "savepoints"})
    with job.running() as query:
        job.feed.add(events_of(0))
        query.processAllAvailable()
        savepoint = query.triggerSavepoint()
    a.rename(b)
    a.mkdir()  # the place to which a disk is mounted
    job.feed.add(events_of(1))
    with refused_start(job, a / query.id, "mount", "savepoint"):
        job.run()
    with refused_start(job, a / query.id, "mount", "checkpoints_directory"):
        ckpt.location(str(job.location_path)).rollback("chk-1")
    with refused_start(job, a / query.id, job.base / "c" / query.id, "gone"):
        at(job, job.base / "c").run()
    with refused_start(job, a / query.id, "gone"):
        job.using({CHECKPOINT_DIR: job.checkpoint_path.parent / "x"}).run()
    a.rmdir()
    b.rename(a)
    newest = newest_checkpoint(run_exactly(job))
    a.rename(b)
    ckpt.location(str(job.location_path)).rollback(Path(newest).name, str(b))
    run_exactly(at(job, b))
    shutil.rmtree(b)
    with refused_start(job, "restoreFrom", "savepoint"):
        at(job, b).run()
    fork = at(job, b).but(location="fork", out="fork-out")
    fork.run(restore=savepoint.path)
    assert fork.result() == expected_after(job.feed.rows, 20)


def test_a_directory_that_is_lost_and_not_needed(job: Job) -> None:
    """All state is in Spark's state store. The error says what to delete, and that is all."""
    job = at(job, job.base / "a")
    run_exactly(job)
    shutil.rmtree(job.base / "a")
    job.feed.add(events_of(1))
    with refused_start(job, "delete _checkpoints and _identity.json"):
        job.run()
    shutil.rmtree(job.location_path / "_checkpoints")
    (job.location_path / "_identity.json").unlink()
    run_exactly(job)


def forget_place(job: Job) -> None:
    """Delete the location's record of where its checkpoints are, as a user may do."""
    shutil.rmtree(job.location_path / "_checkpoints", ignore_errors=True)


@pytest.mark.slow
def test_a_location_without_its_record(job: Job) -> None:
    """What is there says where the checkpoints are, also if they were half moved."""
    job = with_files(job)
    a = job.base / "a"
    query = run_exactly(job)
    forget_place(job)
    job.feed.add(events_of(1))
    with refused_start(job, job.checkpoint_path, f"without spark.ckpt.execution.{SETTING}"):
        at(job, a).run()
    run_exactly(job)
    forget_place(job)
    for name in ("drivers", "taskowned"):  # as after a move that was interrupted
        (a / query.id / name).mkdir(parents=True)
    for file in sorted((job.checkpoint_path / "taskowned").iterdir())[::2]:
        file.rename(a / query.id / "taskowned" / file.name)
    job.feed.add(events_of(job.feed.files))
    for each in (job, at(job, a)):
        with refused_start(job, "lacks", "copy shared and taskowned", "segment-"):
            each.run()
    for name in ("shared", "taskowned"):
        shutil.copytree(job.checkpoint_path / name, a / query.id / name, dirs_exist_ok=True)
    run_exactly(at(job, a))
    forget_place(job)
    shutil.rmtree(job.checkpoint_path)
    with refused_start(job, "outside of it", f"{SETTING} that it had"):
        job.run()
    run_exactly(at(job, a))


@pytest.mark.slow
def test_a_copy_of_a_location_is_refused_with_any_directory(job: Job) -> None:
    """With the original's, with none and with another; a fork does what the error says."""
    a = job.base / "a"
    job = at(with_files(job), a)
    query = run_exactly(job)
    before = job.result()
    shutil.copytree(job.location_path, job.base / "copy")
    copy = job.but(location="copy", out="copy-out")
    for directory in (a, None, job.base / "b"):
        options = {key: each for key, each in job.options.items() if key != CHECKPOINT_DIR}
        options |= {} if directory is None else {CHECKPOINT_DIR: directory}
        with refused_start(job, a / query.id, job.location_path, "restoreFrom"):
            copy.but(options=options).run()
    job.feed.add(events_of(1))
    fork = job.but(location="fork", out="fork-out")
    fork.run(restore=newest_checkpoint(query))
    assert in_order([*before, *fork.result()]) == expected(job.feed.rows)


@pytest.mark.slow
def test_a_start_that_spark_refuses_binds_the_location_to_no_directory(job: Job) -> None:
    job = with_files(job)
    for directory in ("a", "b"):
        with pytest.raises(Py4JJavaError, match="nonsense"):
            at(job, job.base / directory).writer().format("nonsense").start()
    run_exactly(job)
    with refused_start(job, job.checkpoint_path):
        at(job, job.base / "b").run()
