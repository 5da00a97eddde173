"""Disposing and verifying: exactly the savepoint's own files, all of them."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError, UnsafePathError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, SourceLog
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.history.verification import verify
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from tests.unit.restore.tampered import tampered

FILES = ["shared/base", "shared/log", "taskowned/segment"]


@pytest.fixture
def savepoint(storage: Storage, snapshot: CheckpointMetadata, tmp_path: Path) -> Savepoint:
    return write_savepoint(snapshot, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)


def below(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir())


def test_all_of_a_savepoint_goes_and_nothing_beside_it(
    savepoint: Savepoint, tmp_path: Path
) -> None:
    (tmp_path / "sp" / "other").write_text("of someone else")
    before = below(tmp_path / "checkpoints")
    disposal = dispose_savepoint(savepoint.path)
    assert (disposal.path, disposal.files, disposal.left) == (savepoint.path, 4, ())
    assert below(tmp_path / "sp") == ["other"]
    assert not Path(savepoint.path).exists()
    assert below(tmp_path / "checkpoints") == before
    with pytest.raises(CheckpointNotFoundError):
        dispose_savepoint(savepoint.path)


@pytest.mark.parametrize("name", ["note.txt", "shared/mine", "taskowned/x/y", "own/z"])
def test_files_of_others_stay_with_their_directories(savepoint: Savepoint, name: str) -> None:
    path = Path(savepoint.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    disposal = dispose_savepoint(savepoint.path)
    assert below(Path(savepoint.path)) == [name]
    assert len(disposal.left) == 1


@pytest.mark.parametrize("gone", FILES)
def test_what_was_interrupted_is_finished_by_a_second_call(savepoint: Savepoint, gone: str) -> None:
    (Path(savepoint.path) / gone).unlink()
    dispose_savepoint(savepoint.path)
    assert not Path(savepoint.path).exists()


def test_metadata_goes_last(savepoint: Savepoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any interruption, the rest is refused as damaged and can be disposed of."""
    path = Path(savepoint.path)

    def delete_one(self: Storage, names: list[str]) -> None:
        self.path(next(iter(names))).unlink()
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete", delete_one)
        with pytest.raises(InterruptedError):
            dispose_savepoint(savepoint.path)
    assert (path / "_metadata").exists()
    with pytest.raises(CorruptFileError, match="missing"):
        verify(savepoint.path)
    dispose_savepoint(savepoint.path)
    assert not path.exists()


def test_a_checkpoint_is_not_disposed_of(storage: Storage, snapshot: CheckpointMetadata) -> None:
    storage.write("chk-1/_metadata", [encode_metadata(snapshot)])
    before = below(storage.root)
    with pytest.raises(CheckpointNotFoundError, match="not a savepoint: its query's retention"):
        dispose_savepoint(str(storage.root / "chk-1"))
    assert below(storage.root) == before


@pytest.mark.parametrize("path", ["note", "sub/note", "_metadata", "../other", "/etc/hosts"])
def test_a_savepoint_that_names_other_files_is_refused_whole(
    savepoint: Savepoint, path: str
) -> None:
    root = Path(savepoint.path)
    metadata = read_metadata(LocalStorage(root))
    log = SourceLog(0, "0", FileReference(path, 1, "0" * 64))
    tampered(root, msgspec.structs.replace(metadata, source_logs=(log,)))
    (root / "note").write_text("x")
    before = below(root)
    with pytest.raises(UnsafePathError):
        dispose_savepoint(savepoint.path)
    assert below(root) == before


def test_a_link_out_of_the_savepoint_is_not_followed(savepoint: Savepoint, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(Path(savepoint.path) / "shared", outside)
    (Path(savepoint.path) / "shared").symlink_to(outside)
    with pytest.raises(UnsafePathError, match="symbolic link"):
        dispose_savepoint(savepoint.path)
    assert below(outside) == ["base", "log"]
    assert (Path(savepoint.path) / "taskowned" / "segment").exists()


def test_a_savepoint_reached_through_a_link_goes(savepoint: Savepoint, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(savepoint.path)
    dispose_savepoint(str(link))
    assert not Path(savepoint.path).exists()


def test_verifying_reads_every_file(savepoint: Savepoint) -> None:
    found = verify(savepoint.path)
    assert (found.path, found.kind, found.epoch, found.files) == (
        savepoint.path, "savepoint", 6, savepoint.files,
    )  # fmt: skip


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c[:-1] + b"?", None])
def test_all_damaged_files_are_named(
    savepoint: Savepoint, damage: Callable[[bytes], bytes] | None
) -> None:
    for name in FILES[1:]:
        path = Path(savepoint.path) / name
        content = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage(content))
    with pytest.raises(CorruptFileError) as caught:
        verify(savepoint.path)
    assert all(name in str(caught.value) for name in FILES[1:])


def test_files_of_the_same_size_are_distinguished(savepoint: Savepoint) -> None:
    """Scenario 7: two files swapped."""
    for name in FILES[1:]:
        path = Path(savepoint.path) / name
        path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(CorruptFileError, match="2 of 3 files") as caught:
        verify(savepoint.path)
    assert all(name in str(caught.value) for name in FILES[1:])


def test_in_a_store_without_directories(storage: Storage, snapshot: CheckpointMetadata) -> None:
    """A savepoint in an object store is deleted completely."""
    place = f"memory://{secrets.token_hex(8)}/sp"
    made = write_savepoint(snapshot, storage, place, SavepointFormat.NATIVE)
    assert verify(made.path).files == made.files == 4
    parent = open_storage(place)
    parent.write("other", [b"of someone else"])
    open_storage(made.path).write("note", [b"mine"])
    assert dispose_savepoint(made.path).left == ("note",)
    open_storage(made.path).delete(["note"])
    again = write_savepoint(snapshot, storage, place, SavepointFormat.NATIVE)
    assert dispose_savepoint(again.path).left == ()
    assert parent.list() == ["other"]
