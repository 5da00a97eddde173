"""Savepoints are complete, self-contained and the user's own, or leave nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import CorruptFileError, NotBuiltYetError, UnsafePathError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata, SourceLog
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.savepoint import savepoint as savepoint_module
from pyspark_ckpt.savepoint.savepoint import run_copies_here, write_savepoint
from pyspark_ckpt.storage import retrying as retrying_storage
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy
from tests.faults.faulty_storage import FaultyStorage, Plan

NATIVE, CANONICAL = SavepointFormat.NATIVE, SavepointFormat.CANONICAL
FILES = ["shared/base", "shared/log", "taskowned/segment"]


@pytest.fixture
def savepoints(tmp_path: Path) -> Path:
    return tmp_path / "savepoints"


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def with_log(snapshot: CheckpointMetadata, path: str) -> CheckpointMetadata:
    log = SourceLog(0, "0", FileReference(path, 3, "0" * 64))
    return msgspec.structs.replace(snapshot, source_logs=(log,))


def test_a_savepoint_holds_every_file_once_and_its_metadata(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path
) -> None:
    made = write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    content = tree(Path(made.path))
    assert sorted(content) == ["_metadata", *FILES]
    assert {name: content[name] for name in FILES} == tree(storage.root)


def test_a_savepoint_describes_itself(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path
) -> None:
    made = write_savepoint(
        snapshot, storage, str(savepoints), NATIVE, triggered_at_ms=snapshot.triggered_at_ms
    )
    stored = read_metadata(LocalStorage(Path(made.path)))
    assert stored == msgspec.structs.replace(
        snapshot,
        kind=CheckpointKind.SAVEPOINT,
        root=".",
        checkpoint_id=None,
        completed_at_ms=made.completed_at_ms,
    )
    assert made == Savepoint(
        path=made.path,
        epoch=6,
        query_id="0123456789",
        triggered_at_ms=1,
        completed_at_ms=made.completed_at_ms,
        size_bytes=sum(map(len, tree(Path(made.path)).values())),
        files=4,
        format="NATIVE",
    )
    assert made.completed_at_ms > 1_600_000_000_000
    path = Path(made.path)
    assert path.parent == savepoints
    assert path.name.startswith("savepoint-012345-")


def test_a_savepoint_needs_neither_its_query_nor_its_place(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path, tmp_path: Path
) -> None:
    """Scenario 33: moved, and the original is gone."""
    made = write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    shutil.rmtree(storage.root)
    moved = LocalStorage(Path(shutil.move(made.path, tmp_path / "somewhere else")))
    for reference in read_metadata(moved).files():
        with moved.open_verified(reference) as file:
            assert len(file.read()) == reference.size_bytes


def test_a_path_object_is_taken_as_its_path(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path
) -> None:
    made = write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    path: Any = Path(made.path)  # where a text is documented
    assert ckpt.location(path).verify().path == made.path
    assert ckpt.location(path).lineage()["path"].tolist()[0] == made.path
    with ckpt.location(path).state() as opened:
        assert opened.path == made.path
    with pytest.raises(ckpt.errors.CheckpointNotFoundError, match=str(savepoints)):
        ckpt.location(path.parent).history()
    assert ckpt.location(path).dispose().path == made.path


def test_two_savepoints_of_one_epoch_lie_beside_each_other(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path
) -> None:
    one, other = (write_savepoint(snapshot, storage, str(savepoints), NATIVE) for _ in range(2))
    assert one.path != other.path
    names = [*FILES, "_metadata"]
    assert all((Path(made.path) / name).is_file() for made in (one, other) for name in names)


def test_the_querys_own_files_are_left_as_they_are(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path
) -> None:
    before = tree(storage.root)
    write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    assert tree(storage.root) == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [None, b"", b"changed"])
def test_a_damaged_file_ends_the_savepoint_and_nothing_is_left(
    storage: Storage,
    snapshot: CheckpointMetadata,
    savepoints: Path,
    name: str,
    content: bytes | None,
) -> None:
    """Scenario 32: a failure while files are copied."""
    before = write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    storage.path(name).unlink()
    if content is not None:
        storage.path(name).write_bytes(content)
    with pytest.raises(CorruptFileError, match=name):
        write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    assert [path.name for path in savepoints.iterdir()] == [Path(before.path).name]
    assert sorted(tree(Path(before.path))) == ["_metadata", *FILES]


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_files_that_did_not_arrive_make_no_savepoint(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path, damage: str
) -> None:
    """As if the executors' disk were another one than the driver's."""

    def run(copies: Sequence[SubtaskCopy]) -> list[Handle]:
        handles = run_copies_here(copies)
        lost = Path(copies[0].target) / FILES[0]
        lost.unlink() if damage == "missing" else lost.write_bytes(b"")
        return handles

    with pytest.raises(CorruptFileError, match=FILES[0]):
        write_savepoint(snapshot, storage, str(savepoints), NATIVE, run)
    assert tree(savepoints) == {}


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", "_metadata/../../x"])
def test_a_path_out_of_the_checkpoints_directory_is_never_followed(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path, path: str
) -> None:
    (storage.root.parent / "outside").write_bytes(b"abc")
    with pytest.raises(UnsafePathError):
        write_savepoint(with_log(snapshot, path), storage, str(savepoints), NATIVE)
    assert list(savepoints.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(
    storage: Storage, snapshot: CheckpointMetadata, tmp_path: Path
) -> None:
    """Scenario 4: also for a savepoint."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        write_savepoint(snapshot, storage, str(tmp_path / "file"), NATIVE)
    assert (tmp_path / "file").read_text() == "in the way"


def test_another_file_system_is_refused(storage: Storage, snapshot: CheckpointMetadata) -> None:
    with pytest.raises(NotBuiltYetError, match="ftp://host"):
        write_savepoint(snapshot, storage, "ftp://host/savepoints", NATIVE)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The faults of what the driver does in a new savepoint; no operation is repeated yet."""
    plan = Plan()
    monkeypatch.setattr(retrying_storage, "PAUSES_SECONDS", ())
    monkeypatch.setattr(
        savepoint_module, "open_storage", lambda url: FaultyStorage(LocalStorage(Path(url)), plan)
    )
    return plan


def number_of_operations(
    plan: Plan, storage: Storage, snapshot: CheckpointMetadata, savepoints: Path
) -> int:
    ckpt.location(write_savepoint(snapshot, storage, str(savepoints), NATIVE).path).dispose()
    return len(plan.done)


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("repeats", [False, True])
def test_after_any_fault_a_savepoint_is_whole_or_nothing_is_left(
    storage: Storage,
    snapshot: CheckpointMetadata,
    savepoints: Path,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    repeats: bool,
) -> None:
    """Each operation of the driver fails once, or its answer gets lost."""
    if repeats:
        monkeypatch.setattr(retrying_storage, "PAUSES_SECONDS", (0.0,))
    operations = number_of_operations(plan, storage, snapshot, savepoints)
    written = plan.done.index("write _metadata")
    plan.fault = fault
    for index in range(operations):
        plan.done, plan.index = [], index
        error = None
        try:
            write_savepoint(snapshot, storage, str(savepoints), NATIVE)
        except OSError as exc:
            error = exc
        found = list(savepoints.iterdir())
        assert len(found) <= 1
        # After the write of its metadata, it is complete.
        if index > written or (index == written and (fault == "after" or repeats)):
            assert len(found) == 1
            assert error is None or not repeats
        for path in found:
            if fault == "before" or index > 0:  # else the directory alone was made
                ckpt.location(str(path)).verify()
            ckpt.location(str(path)).dispose()
        assert list(savepoints.iterdir()) == []


def test_a_complete_savepoint_stays_whatever_cannot_be_cleaned(
    storage: Storage,
    snapshot: CheckpointMetadata,
    savepoints: Path,
    plan: Plan,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan.fails_on = "delete _in_progress"  # always
    made = write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    assert ckpt.location(made.path).verify().files == made.files
    (warning,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert f"the savepoint {made.path} is complete" in warning
    assert ckpt.location(made.path).dispose().left == ()


@pytest.mark.parametrize(
    ("fails_on", "fault"), [("write _metadata", "after"), ("exists _in_progress", "before")]
)
def test_a_savepoint_that_may_be_complete_is_not_removed(
    storage: Storage,
    snapshot: CheckpointMetadata,
    savepoints: Path,
    plan: Plan,
    caplog: pytest.LogCaptureFixture,
    fails_on: str,
    fault: str,
) -> None:
    """The error comes after its metadata was written, and does not go away."""
    plan.fails_on, plan.fault = fails_on, fault
    with pytest.raises(OSError, match=fault):
        write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    (path,) = savepoints.iterdir()
    assert ckpt.location(str(path)).verify().files == len(FILES) + 1
    assert f"the savepoint {path} is kept" in caplog.text


def test_what_a_failed_savepoint_leaves_can_be_disposed_of(
    storage: Storage, snapshot: CheckpointMetadata, savepoints: Path, plan: Plan
) -> None:
    """Whatever of it cannot be removed, what says which files are its own goes last."""
    plan.fails_on = "delete_directory taskowned"
    storage.path(FILES[1]).unlink()
    with pytest.raises(CorruptFileError, match=FILES[1]):
        write_savepoint(snapshot, storage, str(savepoints), NATIVE)
    (path,) = savepoints.iterdir()
    assert "_in_progress" in tree(path)
    assert not ckpt.location(str(path)).dispose().was_complete
    assert list(savepoints.iterdir()) == []
