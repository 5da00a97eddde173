"""A copy that is rebuilt takes files from the snapshots of other copies of its executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.formats.handle import BaseSnapshot, Handle
from pyspark_ckpt.operator.durable import stored_files
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.unit.operator.materialized_subtask import ALWAYS, MaterializedSubtask, State


class CountedReads(LocalStorage):
    """A storage that notes which files are read."""

    def __init__(self, storage: Storage) -> None:
        assert isinstance(storage, LocalStorage)
        super().__init__(storage.root)
        self.opened: set[str] = set()

    def open_verified(self, reference: FileReference) -> Any:
        self.opened.add(reference.path)
        return super().open_verified(reference)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The directory of all local copies."""
    return tmp_path / "disk"


@pytest.fixture
def original(disk: Path, storage: Storage, handle: Handle) -> MaterializedSubtask:
    """A subtask of another query, whose base snapshot is also on the disk."""
    directory = disk / "query" / "operator" / "0"
    subtask = MaterializedSubtask(directory, "rocksdb", storage, handle, uploads=None)
    subtask.epoch({b"%05d" % n: b"%020d" % n for n in range(5000)})
    subtask.epoch({b"00001": None}, ALWAYS)
    return subtask


@pytest.fixture
def base(original: MaterializedSubtask) -> BaseSnapshot:
    assert original.handle.base is not None
    return original.handle.base


def large(base: BaseSnapshot) -> set[str]:
    """Return the paths of the files that snapshots share."""
    found = {each.file.path for each in base.files if each.name.endswith(".sst")}
    assert found
    return found


def rebuilt(original: MaterializedSubtask, disk: Path) -> tuple[State, set[str]]:
    """Return the state of a fork of the original on its disk, and what was read of the storage."""
    storage = CountedReads(original.storage)
    place = disk / "fork" / "operator" / "0"
    with open_local_copy(place, "rocksdb", storage, original.handle, disk) as copy:
        return dict(copy.backend.scan()), storage.opened


def test_what_the_query_has_that_a_fork_comes_from_is_not_read_again(
    original: MaterializedSubtask, base: BaseSnapshot, disk: Path
) -> None:
    state, opened = rebuilt(original, disk)
    assert state == original.state
    assert not opened & large(base)
    place = disk / "fork" / "operator" / "0" / "rocksdb"
    assert (
        max(path.stat().st_nlink for path in place.glob("*.sst")) >= 4
    )  # two copies, two snapshots
    original.epoch({b"00002": b"new"})  # neither changes the other
    original.check()


def test_a_changed_file_of_another_copy_is_not_taken(
    original: MaterializedSubtask, base: BaseSnapshot, disk: Path
) -> None:
    for path in original.directory.glob("snapshots/*/files/*"):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(bytes(byte ^ 0x10 for byte in data))
    state, opened = rebuilt(original, disk)
    assert state == original.state
    assert opened >= large(base)


@pytest.mark.parametrize("looks", [False, True])
def test_a_file_of_another_copy_that_goes_meanwhile_is_read_from_the_storage(
    original: MaterializedSubtask,
    base: BaseSnapshot,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    looks: bool,
) -> None:
    """It goes before its digest is taken, or right after that."""
    is_it = stored_files._is

    def gone(path: Path, reference: FileReference) -> bool:
        found = looks and is_it(path, reference)
        if path.is_relative_to(original.directory):
            path.unlink(missing_ok=True)
        return found or (not looks and is_it(path, reference))

    monkeypatch.setattr(stored_files, "_is", gone)
    state, opened = rebuilt(original, disk)
    assert state == original.state
    assert opened >= large(base)
