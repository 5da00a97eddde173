"""Completed checkpoints: a directory is one exactly when it has its ``_metadata``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.checkpoint.completed_checkpoints import CompletedCheckpoints
from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata
from pyspark_ckpt.on_disk.storage import Storage


@pytest.fixture
def completed(storage: Storage) -> CompletedCheckpoints:
    return CompletedCheckpoints(storage)


def test_a_new_query_has_none_and_starts_with_one(completed: CompletedCheckpoints) -> None:
    assert completed.ids() == []
    assert completed.last_id() == 0


def test_ids_are_in_the_order_of_numbers(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata
) -> None:
    for number in (10, 2, 9, 100):
        completed.add(number, snapshot)
    assert completed.ids() == [2, 9, 10, 100]
    assert completed.last_id() == 100


def test_what_was_added_is_read_back(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata, storage: Storage
) -> None:
    numbered = msgspec.structs.replace(snapshot, checkpoint_id=7)
    completed.add(7, numbered)
    assert completed.read(7) == numbered
    assert completed.path(7) == str(storage.root / "chk-7")
    assert storage.list("chk-7") == ["_metadata"]


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


def test_an_id_is_completed_once_only(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata
) -> None:
    completed.add(1, snapshot)
    other = msgspec.structs.replace(snapshot, epoch=99)
    with pytest.raises(FileExistsError):
        completed.add(1, other)
    assert completed.read(1) == snapshot


def test_a_checkpoint_that_cannot_be_made_durable_is_none(
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


def test_a_removed_checkpoint_is_gone_and_the_others_stay(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata, put_file: Callable[..., Path]
) -> None:
    for number in (1, 2, 3):
        completed.add(number, snapshot)
    put_file("chk-2/more/files")
    completed.remove(2)
    completed.remove(2)
    assert completed.ids() == [1, 3]
    assert not Path(completed.path(2)).exists()
    assert completed.read(1) == completed.read(3) == snapshot
    assert completed.last_id() == 3


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


def test_a_damaged_checkpoint_is_listed_and_says_so_when_it_is_read(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata
) -> None:
    completed.add(1, snapshot)
    path = Path(completed.path(1)) / "_metadata"
    path.write_bytes(path.read_bytes()[:-1])
    assert completed.ids() == [1]
    with pytest.raises(CorruptFileError, match=str(path)):
        completed.read(1)


def test_an_id_can_be_reserved_once_and_is_no_checkpoint_yet(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata
) -> None:
    completed.reserve(4)
    assert (completed.ids(), completed.used_ids(), completed.last_id()) == ([], [4], 4)
    assert not completed.is_complete(4)
    with pytest.raises(FileExistsError):
        completed.reserve(4)
    completed.add(4, snapshot)
    assert completed.is_complete(4)


def test_all_can_be_removed_but_the_highest_id(
    completed: CompletedCheckpoints, snapshot: CheckpointMetadata
) -> None:
    for number in (1, 2):
        completed.add(number, snapshot)
    completed.reserve(3)
    for _ in range(2):
        completed.remove_all()
        assert (completed.ids(), completed.used_ids(), completed.last_id()) == ([], [3], 3)
