"""Completed checkpoints by their directories alone: which count, and what a crash leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints


@pytest.fixture
def completed(storage: Storage) -> CompletedCheckpoints:
    return CompletedCheckpoints(storage)


def test_a_directory_without_metadata_is_no_checkpoint_but_its_id_is_taken(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata, put_file: Callable[..., Path]
) -> None:
    completed.add(3, snapshot)
    put_file("chk-5/something")
    put_file("chk-6/._metadata.1234.tmp")
    assert completed.ids() == [3]
    assert completed.last_id() == 6
    with pytest.raises(CheckpointNotFoundError, match="chk-5"):
        completed.read(5)


@pytest.mark.parametrize("name", ["chk-x", "chk-", "xchk-9", "shared", "chk-9.bak", "chk-09"])
def test_other_directories_do_not_count(
    completed: CompletedCheckpoints,
    snapshot: CheckpointMetadata,
    put_file: Callable[..., Path],
    name: str,
) -> None:
    completed.add(9, snapshot)
    put_file(f"{name}/_metadata")
    assert completed.ids() == [9]
    assert completed.last_id() == 9


def test_a_checkpoint_that_cannot_be_made_durable_does_not_count(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed.add(1, snapshot)

    def broken(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="No space"):
            completed.add(2, snapshot)
    assert completed.ids() == [1]
    completed.add(completed.last_id() + 1, snapshot)
    assert completed.read(completed.ids()[-1]) == snapshot


def test_a_removal_cut_short_leaves_no_half_checkpoint(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed.add(1, snapshot)

    def killed(*args: object, **kwargs: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(InterruptedError):
            completed.remove(1)
    assert Path(completed.path(1)).is_dir()
    assert completed.ids() == []


class Counting(LocalStorage):
    """A storage that ends a driver that tries one name after the other without end."""

    writes = 0

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        self.writes += 1
        assert self.writes < 100, f"it is still looking for an unused name, at {relative}"
        return super().write(relative, chunks)


def test_a_file_in_place_of_the_drivers_directory_ends_the_claim(
    storage: LocalStorage, put_file: Callable[..., Path]
) -> None:
    path = put_file("drivers")
    with pytest.raises(NotADirectoryError, match="move it away") as caught:
        CompletedCheckpoints(Counting(storage.root)).claim()
    assert caught.value.filename == str(path)


def test_what_another_driver_published_is_durable_once_the_store_is_claimed(
    storage: LocalStorage, snapshot: CheckpointMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed before the name was, and older ones go now (simulated seed 32516)."""
    CompletedCheckpoints(storage).add(7, snapshot)
    synced = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", noted)
    CompletedCheckpoints(storage).claim()
    assert storage.root / "chk-7" in synced
