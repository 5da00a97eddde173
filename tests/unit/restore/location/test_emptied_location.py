"""A location that lost its epochs, and still has its checkpoints, does not begin again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CorruptFileError, RestoreError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY, found_fresh_path, seeding_path
from pyspark_ckpt.restore.location.decision import Refuse
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.storage.open import LocalStorage
from tests.faults.epochs import OPERATORS, Epochs
from tests.faults.starts import looked_at


@pytest.fixture
def location(tmp_path: Path) -> LocalStorage:
    """A location with three committed epochs and a checkpoint of the last one."""
    return made(tmp_path, epochs=3)


def made(directory: Path, epochs: int) -> LocalStorage:
    query = Epochs(LocalStorage(directory / CHECKPOINTS_DIRECTORY), directory)
    for _ in range(epochs):
        query.commit()
    runner = query.runner()
    runner.take(query.committed_epoch, periodic=False)
    runner.close()
    return LocalStorage(directory)


def check(location: LocalStorage, checkpoints_directory: str | None = None) -> None:
    """Raise what refuses a start because it lacks epochs; others have their own tests."""
    decision = looked_at(StartLocation(location, checkpoints_directory, OPERATORS))
    if isinstance(decision, Refuse):
        raise decision.error


def remove(location: LocalStorage, *names: str) -> None:
    for name in names:
        shutil.rmtree(location.root / name)


def test_a_location_without_its_epochs_is_refused(location: LocalStorage) -> None:
    check(location)
    remove(location, "offsets", "commits")
    with pytest.raises(
        RestoreError, match=r"has committed no epoch.*rollback\(.*chk-1.*restoreFrom"
    ):
        check(location)


def test_a_location_without_its_commits_runs_its_last_epoch_again(location: LocalStorage) -> None:
    remove(location, "commits")
    check(location)


def test_a_location_without_its_offsets_is_refused_because_of_them(location: LocalStorage) -> None:
    remove(location, "offsets")
    with pytest.raises(CorruptFileError, match=r"offsets/2 is missing.*rollback\(.*chk-1"):
        check(location)


@pytest.mark.parametrize("gone", [(), ("commits",), ("offsets",), ("offsets", "commits")])
def test_a_location_that_lost_the_id_of_its_query_is_refused(
    location: LocalStorage, gone: tuple[str, ...]
) -> None:
    """With a new id, its epochs and checkpoints would be those of nobody."""
    check(location)
    remove(location, *gone)
    location.delete(["metadata"])
    with pytest.raises(CorruptFileError, match=r"metadata is missing.*rollback\(.*chk-1"):
        check(location)


def test_without_checkpoints_in_it_a_location_without_an_epoch_begins(
    location: LocalStorage,
) -> None:
    location.delete(["metadata"])
    remove(location, CHECKPOINTS_DIRECTORY)
    with pytest.raises(CorruptFileError, match=r"metadata is missing.*no complete checkpoint"):
        check(location, "/elsewhere")
    remove(location, "offsets", "commits")
    check(location, "/elsewhere")


def test_a_location_without_checkpoints_begins(location: LocalStorage) -> None:
    remove(location, "offsets", "commits", CHECKPOINTS_DIRECTORY)
    check(location)


def test_a_location_that_is_half_seeded_is_refused_because_of_that(
    location: LocalStorage,
) -> None:
    remove(location, "offsets", "commits")
    location.write(seeding_path(1), [b"begun\n"])
    location.write(found_fresh_path(1), [b"x"])
    with pytest.raises(RestoreError, match="a restore into this location has not ended"):
        check(location)


def test_two_epochs_that_a_power_loss_took_run_again(tmp_path: Path) -> None:
    location = made(tmp_path, epochs=2)
    remove(location, "offsets", "commits")
    check(location)
