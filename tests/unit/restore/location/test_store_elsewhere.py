"""A copy of a location does not use the original's store of completed checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY, store_note_path
from pyspark_ckpt.restore.location.seedings import begin_seeding
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.settings import HighAvailability, Settings
from pyspark_ckpt.storage.open import LocalStorage
from tests.faults.epochs import OPERATORS
from tests.faults.starts import filled

ELSEWHERE = Settings(high_availability_type=HighAvailability.ZOOKEEPER, zookeeper_quorum="zk:2181")
INSIDE = Settings()


def start(root: Path, settings: Settings) -> None:
    """Do what a start does before anything is read or written."""
    location = StartLocation.of(LocalStorage(root), settings, OPERATORS)
    filled(location)


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def copied(root: Path) -> Path:
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    return copy


@pytest.mark.parametrize("settings", [ELSEWHERE, INSIDE])
def test_a_copy_is_refused(tmp_path: Path, settings: Settings) -> None:
    """Also if it is started without the store, whose note it has: it would take that store over."""
    root = tmp_path / "location"
    root.mkdir()
    start(root, ELSEWHERE)
    note = LocalStorage(root / CHECKPOINTS_DIRECTORY)
    note.write(store_note_path(1), [b"{}"])
    copy = copied(root)
    before = files(copy)
    with pytest.raises(RestoreError, match=r"may be a copy of it.*restoreFrom"):
        start(copy, settings)
    assert files(copy) == before
    start(root, ELSEWHERE)
    start(root, INSIDE)


def test_a_copy_with_its_own_store_is_a_query_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "location"
    root.mkdir()
    start(root, INSIDE)
    start(copied(root), INSIDE)
    assert not (root / "_identity.json").exists()


def test_a_location_that_is_moved_keeps_its_store(tmp_path: Path) -> None:
    root = tmp_path / "location"
    root.mkdir()
    start(root, ELSEWHERE)
    moved = root.rename(tmp_path / "moved")
    start(moved, ELSEWHERE)


def test_a_start_that_spark_refused_leaves_a_location_that_can_be_filled(tmp_path: Path) -> None:
    root = tmp_path / "location"
    root.mkdir()
    start(root, ELSEWHERE)
    begin_seeding(LocalStorage(root)).end()
