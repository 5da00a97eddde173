"""What each subtask put into the existing checkpoints, and how many of its bytes were new."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.formats.counters import EpochMetrics
from pyspark_ckpt.formats.handle import Handle, Segment
from pyspark_ckpt.formats.layout import HISTORY
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history import places
from pyspark_ckpt.history.frames import history, subtask_history
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints


def grown(handle: Handle, epoch: int, size_bytes: int, storage: Storage) -> Handle:
    """The handle one epoch later, with a segment inline and one in a file."""
    file = storage.write(f"taskowned/{epoch}-{handle.subtask}", [b"x" * size_bytes])
    segments = (
        Segment(f"{epoch}-i{handle.subtask}", epoch, 1, 3, inline=b"abc"),
        Segment(f"{epoch}-f{handle.subtask}", epoch, 1, size_bytes, file=file),
    )
    return msgspec.structs.replace(
        handle,
        epoch=epoch,
        segments=(*handle.segments, *segments),
        metrics=EpochMetrics(keys=epoch, writes=2, barrier_ms=7),
    )


def with_handles(
    snapshot: CheckpointMetadata, number: int, handles: tuple[Handle, ...]
) -> CheckpointMetadata:
    (operator,) = snapshot.operators
    operator = msgspec.structs.replace(operator, handles=handles)
    return msgspec.structs.replace(
        snapshot, checkpoint_id=number, operators=(operator,), phases_ms={"handles": 4}
    )


def test_new_bytes_are_those_that_the_checkpoint_before_has_not(
    storage: Storage, snapshot: CheckpointMetadata
) -> None:
    store = CompletedCheckpoints(storage)
    first, idle = snapshot.operators[0].handles
    later = grown(first, first.epoch + 1, 100, storage)
    checkpoints = [
        with_handles(snapshot, 1, (first, idle)),
        with_handles(snapshot, 2, (later, idle)),
    ]
    for number, metadata in enumerate(checkpoints, start=1):
        store.reserve(number)
        store.add(number, metadata)
    shown = subtask_history(str(storage.root)).set_index(["checkpoint_id", "subtask"])
    busy = shown.loc[(2, first.subtask)]
    assert (busy.new_bytes, busy["keys"], busy.barrier_ms) == (103, first.epoch + 1, 7)
    assert busy.size_bytes == shown.loc[(1, first.subtask)].size_bytes + 103
    assert shown.loc[(2, idle.subtask)].new_bytes == 0
    assert shown.loc[(1, idle.subtask)].new_bytes == shown.loc[(1, idle.subtask)].size_bytes
    whole = history(str(storage.root)).set_index("checkpoint_id")
    assert whole.loc[2].new_bytes == 103
    assert whole.loc[2].phases_ms == {"handles": 4}


def test_a_corrupt_checkpoint_is_left_out(storage: Storage, snapshot: CheckpointMetadata) -> None:
    store = CompletedCheckpoints(storage)
    for number in (1, 2, 3):
        store.reserve(number)
        store.add(number, msgspec.structs.replace(snapshot, checkpoint_id=number))
    (Path(str(storage.url)) / "chk-2" / "_metadata").write_bytes(b"")
    shown = subtask_history(str(storage.url))
    assert sorted(set(shown.checkpoint_id)) == [1, 3]
    assert (shown[shown.checkpoint_id == 3].new_bytes == 0).all()


class _Forbidden(LocalStorage):
    """A directory in which one checkpoint may not be looked at; the tests' user may see all."""

    def exists(self, relative: str) -> bool:
        self._check(relative)
        return super().exists(relative)

    def size_bytes(self, relative: str) -> int | None:
        self._check(relative)
        return super().size_bytes(relative)

    def _check(self, relative: str) -> None:
        if relative.startswith("chk-2/"):
            raise PermissionError(13, "Permission denied", relative)


def test_a_checkpoint_that_may_not_be_read_is_left_out(
    storage: Storage,
    snapshot: CheckpointMetadata,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CompletedCheckpoints(storage)
    for number in (1, 2, 3):
        store.reserve(number)
        store.add(number, msgspec.structs.replace(snapshot, checkpoint_id=number))
    monkeypatch.setattr(places, "open_storage", lambda path: _Forbidden(Path(path)))
    assert history(str(storage.url)).checkpoint_id.tolist() == [1, 3]
    (warning,) = [each for each in caplog.records if "left out" in each.message]
    assert "chk-2" in warning.getMessage()
    assert sorted(set(subtask_history(str(storage.url)).checkpoint_id)) == [1, 3]


class _Removing(LocalStorage):
    """A directory whose driver removes a checkpoint when its ``_metadata`` is about to be read."""

    at = ""

    def size_bytes(self, relative: str) -> int | None:
        self._step("size_bytes", relative)
        return super().size_bytes(relative)

    def read(self, relative: str) -> bytes:
        self._step("read", relative)
        return super().read(relative)

    def _step(self, operation: str, relative: str) -> None:
        if f"{operation} {relative}" == self.at:
            CompletedCheckpoints(LocalStorage(self.root)).remove(1)


@pytest.mark.parametrize("operation", ["size_bytes", "read"])
def test_a_checkpoint_that_is_removed_meanwhile_is_not_corrupt(
    storage: Storage,
    snapshot: CheckpointMetadata,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    store = CompletedCheckpoints(storage)
    for number in (1, 2, 3):
        store.reserve(number)
        store.add(number, msgspec.structs.replace(snapshot, checkpoint_id=number))
    (Path(str(storage.url)) / "chk-2" / "_metadata").write_bytes(b"")
    monkeypatch.setattr(_Removing, "at", f"{operation} chk-1/_metadata")
    monkeypatch.setattr(places, "open_storage", lambda path: _Removing(Path(path)))
    shown = history(str(storage.url))
    assert shown[["checkpoint_id", "status"]].to_numpy().tolist() == [
        [2, "corrupt"], [3, "completed"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["_metadata", "_author"])
def test_a_checkpoint_with_a_link_out_of_the_directory_hides_no_other_one(
    storage: Storage, snapshot: CheckpointMetadata, name: str
) -> None:
    store = CompletedCheckpoints(storage)
    for number in (1, 2, 3):
        store.reserve(number)
        store.add(number, msgspec.structs.replace(snapshot, checkpoint_id=number))
    file = Path(str(storage.url)) / "chk-2" / name
    file.unlink()
    file.symlink_to(file)
    shown = history(str(storage.url))
    assert shown.checkpoint_id.tolist() == [1, 2, 3]
    assert {1, 3} <= set(subtask_history(str(storage.url)).checkpoint_id)


def test_an_entry_of_the_history_log_that_is_a_directory_is_left_out(
    storage: Storage, snapshot: CheckpointMetadata, caplog: pytest.LogCaptureFixture
) -> None:
    store = CompletedCheckpoints(storage)
    store.reserve(1)
    store.add(1, msgspec.structs.replace(snapshot, checkpoint_id=1))
    HistoryLog(storage).note_begun("nowhere", 1, "run")
    entry = next((Path(str(storage.url)) / HISTORY).glob("*.json"))
    entry.unlink()
    entry.mkdir()
    assert history(str(storage.url)).checkpoint_id.tolist() == [1]
    assert "is left out" in caplog.text
