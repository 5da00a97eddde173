"""A checkpoints directory elsewhere belongs to its own location, never to a copy or an old one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

import pyspark_ckpt as ckpt
from pyspark_ckpt.restore.location.swap import Swap, swap
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import (
    CHECKPOINT_DIR,
    INLINE,
    RETAINED,
    Job,
    drop_local_copies,
    newest_checkpoint,
    refused,
)
from tests.query.model import events_of, expected, expected_after, in_order

MANY_BASES = {
    "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "1",
}


def elsewhere(job: Job) -> Job:
    """The job with its checkpoints outside of its location, as with an object store."""
    return job.using({CHECKPOINT_DIR: job.base / "checkpoints", INLINE: "0b", **MANY_BASES})


def copied(job: Job, location: str, out: str) -> Job:
    """A copy of the job's location as ``cp -a`` makes it, which writes to its own sink."""
    shutil.copytree(job.location_path, job.base / location)
    return job.but(location=location, out=out)


@pytest.mark.slow
def test_a_copied_location_takes_nothing_from_the_original(job: Job) -> None:
    """The copy is refused, even before the original continues; the advice works."""
    job = elsewhere(job)
    job.feed.add(events_of(0))
    query = job.run()
    before = job.result()
    copy = copied(job, "staging", "staging-out")
    directory = job.base / "checkpoints" / query.id
    with refused(
        ckpt.errors.RestoreError, directory, job.location_path, "restoreFrom", unchanged=job.base
    ):
        copy.run()
    fork = job.but(location="fork", out="fork-out")
    job.feed.add(events_of(1))
    fork.run(restore=newest_checkpoint(query))
    assert in_order([*before, *fork.result()]) == expected(job.feed.rows)
    job.location_path.rename(job.base / "moved")
    moved = job.but(location="moved")
    drop_local_copies(job.spark)
    moved.run()
    assert moved.result() == expected(job.feed.rows)
    copy = copied(moved, job.location, "no-out")
    with refused(ckpt.errors.RestoreError, "moved", unchanged=job.base):
        copy.run()


def test_a_copy_does_not_end_the_run_of_its_original(job: Job) -> None:
    """Spark ends the run that has the id of a query that starts, at whatever location."""
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        newest = query.triggerCheckpoint().path
        copy = copied(job, "copy", "copy-out")
        with pytest.raises(ckpt.errors.RestoreError, match="is a copy of the other") as refusal:
            copy.start()
        assert str(job.location_path) in str(refusal.value)
        fork = job.but(location="fork", out="fork-out")
        job.feed.add(events_of(1))
        fork.run(restore=newest)
        query.processAllAvailable()
    assert job.result() == expected(job.feed.rows)
    assert len(fork.result()) == len(events_of(1))
    job.feed.add(events_of(2))
    copy.run()  # the original has ended
    assert len(copy.result()) == len([*events_of(1), *events_of(2)])


@pytest.mark.soak
def test_copies_of_a_location_without_an_identity(job: Job) -> None:
    """A user has deleted it, and the owner's record: the copy that starts first is the owner."""
    job = elsewhere(job)
    job.feed.add(events_of(0))
    query = job.run()
    (job.location_path / "_identity.json").unlink()
    shutil.rmtree(job.base / "checkpoints" / query.id / "owners")
    copy = copied(job, "staging", "staging-out")
    job.feed.add(events_of(1))
    job.run()
    with refused(ckpt.errors.RestoreError, query.id, unchanged=job.base):
        copy.run()
    assert job.result() == expected(job.feed.rows)


@pytest.mark.soak
def test_a_location_that_is_put_back_does_not_discard_what_came_after(job: Job) -> None:
    """Its checkpoints are of later epochs: refused, and both ways that the message names work."""
    job = elsewhere(job).using({RETAINED: 1})
    job.feed.add(events_of(0))
    job.run()
    shutil.copytree(job.location_path, job.base / "backup")
    job.feed.add(events_of(1))
    newest = newest_checkpoint(job.run())
    before = job.result()
    shutil.rmtree(job.location_path)
    shutil.copytree(job.base / "backup", job.location_path)
    job.feed.add(events_of(2))
    with refused(
        ckpt.errors.RestoreError, "behind", newest, "rollback", "restoreFrom", unchanged=job.base
    ):
        job.run()
    fork = job.but(location="fork", out="fork-out")
    fork.run(restore=newest)
    ckpt.location(str(job.location_path)).rollback(Path(newest).name, str(job.base / "checkpoints"))
    again = job.but(out="out2")
    again.run()
    for way in (fork, again):
        assert in_order([*before, *way.result()]) == expected(job.feed.rows)


@pytest.mark.soak
def test_a_rollback_gives_the_location_another_directory_and_back(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also for an interrupted rollback; a copy of any of its states is refused.

    A copy that was made in the middle of a rollback does not clean up after it.
    """
    job = elsewhere(job).using({RETAINED: 5})
    job.feed.add(events_of(0))
    first = newest_checkpoint(job.run())
    job.feed.add(events_of(1))
    job.run()
    old_copy = copied(job, "old-copy", "old-out")
    root = str(job.base / "checkpoints")
    with monkeypatch.context() as cut_off:
        moves: list[str] = []
        move = LocalStorage.move

        def move_some(storage: LocalStorage, relative: str, target: str) -> None:
            if len(moves) == 4:
                raise KeyboardInterrupt
            moves.append(relative)
            move(storage, relative, target)

        def copy_first(location: LocalStorage, wanted: Swap, check: Any) -> None:
            shutil.copytree(location.root, job.base / "mid-copy")
            swap(location, wanted, check)

        cut_off.setattr("pyspark_ckpt.restarting.rollback.swap", copy_first)
        cut_off.setattr(LocalStorage, "move", move_some)
        with pytest.raises(KeyboardInterrupt):
            ckpt.location(str(job.location_path)).rollback(Path(first).name, root)
    with refused(ckpt.errors.RestoreError, "rollback", unchanged=job.base):
        job.run()
    rolled = ckpt.location(str(job.location_path)).rollback(Path(first).name, root)
    with refused(ckpt.errors.CheckpointNotFoundError, "chk-99", unchanged=job.base / "checkpoints"):
        ckpt.location(str(job.base / "mid-copy")).rollback("chk-99", root)
    with refused(ckpt.errors.RestoreError, "does not own", unchanged=job.base):
        ckpt.location(str(job.base / "old-copy")).rollback(Path(first).name, root)
    new_copy = copied(job, "new-copy", "new-out")
    with refused(ckpt.errors.RestoreError, "new-copy", unchanged=job.base):
        new_copy.run()
    again = job.but(out="out2")
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)
    ckpt.location(str(job.location_path)).rollback(Path(rolled.kept).name, root)
    with refused(ckpt.errors.RestoreError, "old-copy", unchanged=job.base):
        old_copy.run()
    job.feed.add(events_of(2))
    drop_local_copies(job.spark)
    job.run()
    assert job.result() == expected(job.feed.rows)


@pytest.mark.soak
def test_a_start_that_spark_refuses_leaves_the_location_fresh(job: Job) -> None:
    """The query has an id by then; a restore into the location takes another, and its directory."""
    job = elsewhere(job)
    job.feed.add(events_of(0))
    query = job.run()
    fork = job.but(location="fork", out="fork-out")
    with pytest.raises(Py4JJavaError, match="nonsense"):
        fork.writer().format("nonsense").start()
    assert sorted(path.name for path in fork.location_path.iterdir()) == [
        "_checkpoints",
        "_identity.json",
        "metadata",
    ]
    job.feed.add(events_of(1))
    restored = fork.run(restore=newest_checkpoint(query))
    assert fork.result() == expected_after(job.feed.rows, 20)
    directories = {path.name for path in (job.base / "checkpoints").iterdir()}
    assert directories == {query.id, restored.id}
