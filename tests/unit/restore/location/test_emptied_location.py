"""A location that lost its epochs, and still has its checkpoints, does not begin again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CorruptFileError, RestoreError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY, found_fresh_path, seeding_path
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.storage.open import LocalStorage
from tests.faults.epochs import OPERATORS, Epochs


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
    StartLocation(location, checkpoints_directory, OPERATORS).check_not_emptied()


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


@pytest.mark.parametrize("gone", ["offsets", "commits"])
def test_a_location_with_some_of_its_epochs_is_not_refused_here(
    location: LocalStorage, gone: str
) -> None:
    remove(location, gone)
    check(location)


@pytest.mark.parametrize("gone", [(), ("commits",), ("offsets",), ("offsets", "commits")])
def test_a_location_that_lost_the_id_of_its_query_is_refused(
    location: LocalStorage, gone: tuple[str, ...]
) -> None:
    """With a new id, its epochs and checkpoints would be those of nobody."""
    start = StartLocation(location, None, OPERATORS)
    start.check_metadata()
    remove(location, *gone)
    location.delete(["metadata"])
    with pytest.raises(CorruptFileError, match=r"metadata is missing.*rollback\(.*chk-1"):
        start.check_metadata()


def test_without_checkpoints_in_it_a_location_without_an_epoch_begins(
    location: LocalStorage,
) -> None:
    start = StartLocation(location, "/elsewhere", OPERATORS)
    location.delete(["metadata"])
    remove(location, CHECKPOINTS_DIRECTORY)
    with pytest.raises(CorruptFileError, match=r"metadata is missing.*no complete checkpoint"):
        start.check_metadata()
    remove(location, "offsets", "commits")
    start.check_metadata()


def test_a_location_without_checkpoints_begins(location: LocalStorage) -> None:
    remove(location, "offsets", "commits", CHECKPOINTS_DIRECTORY)
    check(location)


def test_a_location_that_is_half_seeded_is_not_refused_here(location: LocalStorage) -> None:
    remove(location, "offsets", "commits")
    location.write(seeding_path(1), [b"begun\n"])
    location.write(found_fresh_path(1), [b"x"])
    check(location)


def test_two_epochs_that_a_power_loss_took_run_again(tmp_path: Path) -> None:
    location = made(tmp_path, epochs=2)
    remove(location, "offsets", "commits")
    check(location)
