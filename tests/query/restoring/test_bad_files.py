"""Missing, cut and changed files are named in an error, and never make the state smaller."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.query.harness import (
    OFTEN,
    SAVEPOINT_DIR,
    TOLERABLE,
    Feed,
    Job,
    await_checkpoint,
    completed,
    drop_local_copies,
    files_below,
    flip_bit,
    gist,
    refused,
)
from tests.query.model import events_of, expected, expected_after


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def wrong_magic(path: Path) -> None:
    path.write_bytes(b"PAR1" + path.read_bytes()[4:])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "empty": empty,
    "truncated": truncate,
    "bit flip": flip_bit,
}


def in_soak(*variants: tuple[Any, ...]) -> list[Any]:
    """Variants of a test that `make test` runs with others."""
    return [pytest.param(*variant, marks=pytest.mark.soak) for variant in variants]


@dataclass(frozen=True)
class Saved:
    """A stopped query of three epochs with a savepoint and a checkpoint, and one more file."""

    job: Job
    savepoint: Path
    checkpoint: Path


@pytest.fixture(scope="module")
def saved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    base = tmp_path_factory.mktemp("saved")
    job = Job(spark, base, Feed(base / "in"), options={SAVEPOINT_DIR: base / "sp", **OFTEN})
    with job.running() as query:
        job.feed.add(*map(events_of, range(3)))
        query.processAllAvailable()
        savepoint = Path(query.triggerSavepoint(format="NATIVE").path)
        checkpoint = Path(await_checkpoint(query, 2).path)
    job.feed.add(events_of(3))
    return Saved(job, savepoint, checkpoint)


@pytest.fixture
def copy(saved: Saved, tmp_path: Path) -> Path:
    """Return a copy of the savepoint that a test may damage."""
    return shutil.copytree(saved.savepoint, tmp_path / saved.savepoint.name)


@pytest.mark.soak_variants
@pytest.mark.parametrize("damage", [*DAMAGES, "wrong magic"])
def test_metadata_of_a_savepoint(saved: Saved, copy: Path, tmp_path: Path, damage: str) -> None:
    """Scenario 7: a damaged _metadata refuses the restore, names the file, and touches nothing."""
    {**DAMAGES, "wrong magic": wrong_magic}[damage](copy / "_metadata")
    fork = saved.job.but(base=tmp_path)
    error = (
        ckpt.errors.CheckpointNotFoundError if damage == "missing" else ckpt.errors.CorruptFileError
    )
    with refused(error, copy, unchanged=tmp_path):
        fork.run(restore=copy)
    assert not fork.location_path.exists()


@pytest.mark.soak
def test_every_part_of_metadata_is_checked(saved: Saved, copy: Path, tmp_path: Path) -> None:
    """No changed byte of _metadata is accepted, whatever it stands for."""
    fork = saved.job.but(base=tmp_path)
    path = copy / "_metadata"
    whole = path.read_bytes()
    for position in sorted({*range(16), *range(16, len(whole), len(whole) // 12), len(whole) - 1}):
        flip_bit(path, position)
        with refused(ckpt.errors.CheckpointError, copy, unchanged=tmp_path):
            fork.start(restore=copy)
        path.write_bytes(whole)


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("directory", "damage"),
    [
        ("shared", "missing"),
        ("shared", "bit flip"),
        ("taskowned", "empty"),
        ("taskowned", "truncated"),
        *in_soak(("shared", "empty"), ("shared", "truncated")),
        *in_soak(("taskowned", "missing"), ("taskowned", "bit flip")),
    ],
)
def test_data_file_of_a_savepoint(
    saved: Saved, copy: Path, tmp_path: Path, directory: str, damage: str
) -> None:
    """Scenario 7: a damaged data file is named and the restore refused; repaired, it works."""
    broken = files_below(copy / directory)[-1]
    DAMAGES[damage](broken)
    fork = saved.job.but(base=tmp_path)
    with refused(ckpt.errors.CorruptFileError, broken.name, unchanged=copy):
        fork.run(restore=copy)
    assert fork.result() == []
    if fork.location_path.exists():  # a seeding was begun: no query may treat the location as empty
        with refused(ckpt.errors.CkptError, fork.location_path, unchanged=fork.location_path):
            fork.run()
    if damage == "empty":
        return
    shutil.copy(saved.savepoint / directory / broken.name, broken)
    fork.run(restore=copy)
    assert fork.result() == expected_after(fork.feed.rows, 60)


def test_paths_that_are_no_savepoint(saved: Saved, tmp_path: Path) -> None:
    """A path that does not exist, or is something else, is not taken for a savepoint."""
    fork = saved.job.but(base=tmp_path)
    (tmp_path / "file").write_text("text")
    for path in ("nowhere/savepoint-1", "file", ""):
        with refused(ckpt.errors.CheckpointNotFoundError, tmp_path / path, unchanged=tmp_path):
            fork.run(restore=tmp_path / path)
    for path in (saved.savepoint.parent, saved.job.location_path, saved.job.checkpoint_path):
        with refused(ckpt.errors.CheckpointNotFoundError, path, unchanged=path):
            fork.run(restore=path)
    assert not fork.location_path.exists()


def failure(job: Job) -> str | None:
    """Run to the end; return the text of the error, if any."""
    try:
        job.run()
    except (ckpt.errors.CkptError, StreamingQueryException) as error:
        print(gist(error))
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("directory", "which", "damage"),
    [
        ("taskowned", 1, "missing"),
        ("taskowned", 0, "bit flip"),
        *in_soak(("taskowned", -1, "truncated"), ("shared", 0, "missing")),
    ],
)
def test_file_under_a_stopped_query(job: Job, directory: str, which: int, damage: str) -> None:
    """Scenario 7: without its local copy a query is right or names the file; repaired, it works."""
    job = job.using(OFTEN)
    job.feed.add(*map(events_of, range(3)))
    with job.running() as query:
        query.processAllAvailable()
        await_checkpoint(query, 2)
    path = files_below(job.checkpoint_path / directory)[which]
    whole = path.read_bytes()
    DAMAGES[damage](path)
    drop_local_copies(job.spark)
    job.feed.add(events_of(3))
    message = failure(job)
    if message is not None:
        assert path.name in message
        assert "restore from another checkpoint" in message
        path.write_bytes(whole)
        job.run()
    assert message is not None or directory != "taskowned"
    assert job.result() == expected(job.feed.rows)


@pytest.mark.soak_variants
@pytest.mark.parametrize("lost", ["newest checkpoint", "all checkpoints", *in_soak(("directory",))])
def test_checkpoints_lost_under_a_stopped_query(job: Job, lost: str) -> None:
    """A query never continues committed epochs with an empty state."""
    job = job.using(OFTEN)
    job.feed.add(*map(events_of, range(2)))
    with job.running() as query:
        query.processAllAvailable()
        await_checkpoint(query, 1)
    aside = job.base / "aside"
    shutil.copytree(job.checkpoint_path, aside)
    if lost == "newest checkpoint":
        newest = max(job.checkpoint_path.glob("chk-*"), key=lambda p: int(p.name[4:]))
        flip_bit(newest / "_metadata")
    elif lost == "all checkpoints":
        for path in job.checkpoint_path.glob("chk-*"):
            shutil.rmtree(path)
    else:
        shutil.rmtree(job.checkpoint_path)
    drop_local_copies(job.spark)
    job.feed.add(events_of(2))
    message = failure(job)
    if message is not None:
        assert str(job.checkpoint_path) in message
        shutil.rmtree(job.checkpoint_path, ignore_errors=True)
        shutil.copytree(aside, job.checkpoint_path)
        job.run()
    assert job.result() == expected(job.feed.rows)


def test_file_under_a_running_query(job: Job) -> None:
    """Scenario 7: checkpoints and savepoints that miss a file abort; the query continues."""
    savepoints = job.base / "savepoints"
    job = job.using({SAVEPOINT_DIR: savepoints, TOLERABLE: 1000, **OFTEN})
    with job.running() as query:
        job.feed.add(*map(events_of, range(3)))
        query.processAllAvailable()
        newest = await_checkpoint(query, 2)
        path = files_below(job.checkpoint_path / "taskowned")[0]  # of the first epoch
        whole = path.read_bytes()
        path.unlink()
        job.feed.add(events_of(3))
        query.processAllAvailable()
        with refused(ckpt.errors.CkptError, path.name, unchanged=savepoints) as caught:
            query.triggerSavepoint()
        assert caught.type in (ckpt.errors.CorruptFileError, ckpt.errors.CheckpointAbortedError)
        path.write_bytes(whole)
        job.feed.add(events_of(4))
        query.processAllAvailable()
        await_checkpoint(query, 4)
        aborted = [r for r in query.checkpoints().collect() if r.status == "aborted"]
    assert job.result() == expected(job.feed.rows)
    assert "savepoint" in {r.kind for r in aborted}
    assert all(path.name in r.reason for r in aborted)
    assert (Path(newest.path) / "_metadata").exists()


@pytest.mark.slow
@pytest.mark.parametrize("which", [*in_soak((0,)), -1], ids=["oldest", "newest"])
def test_metadata_of_a_retained_checkpoint(job: Job, which: int) -> None:
    """Scenario 10: one damaged checkpoint does not hide whole ones and does not stop new ones."""
    job = job.using({SAVEPOINT_DIR: job.base / "savepoints", **OFTEN})
    with job.running() as query:
        for epoch in range(3):
            job.feed.add(events_of(epoch))
            query.processAllAvailable()
            await_checkpoint(query, epoch)
        whole = sorted(r.path for r in completed(query))
    damaged = whole.pop(which)
    flip_bit(Path(damaged) / "_metadata")
    with job.running() as query:
        listed = {r.path for r in completed(query)}
        assert set(whole) <= listed
        assert damaged not in listed
        job.feed.add(events_of(3))
        query.processAllAvailable()
        savepoint = query.triggerSavepoint()
        newest = await_checkpoint(query, 3)
    job.feed.add(events_of(4))
    for source in (savepoint, newest):
        name = Path(source.path).name
        fork = job.but(location=f"loc-{name}", out=f"out-{name}")
        fork.run(restore=source.path)
        assert fork.result() == expected_after(job.feed.rows, 80)
    with refused(ckpt.errors.CkptError, damaged, unchanged=Path(damaged)):
        job.but(location="loc2", out="out2").run(restore=damaged)
