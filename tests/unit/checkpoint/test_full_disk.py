"""Scenario 27: the disk is full, for checkpoints, for the tasks' files, and for local copies.

The disk is really full: a process has a small disk, which a file of ballast fills.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from state_backends import BACKEND_TYPES, BackendFullError, StateBackendError
from tests.faults.confined import Ballast, on_a_small_disk
from tests.faults.disk import Disk
from tests.faults.epochs import Epochs, files_of, restored_epoch
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask

pytestmark = pytest.mark.slow

DISK_BYTES = 48 << 20
_CHANCE = random.Random(27)
LARGE = {b"%05d" % n: _CHANCE.randbytes(200) for n in range(4000)}
"""800 kB that cannot be compressed."""


def taken(runner: CheckpointRunner, epochs: Epochs) -> CompletedCheckpoint | CheckpointAbortedError:
    try:
        checkpoint = runner.take(epochs.committed_epoch, periodic=False)
    except CheckpointAbortedError as exc:
        return exc
    assert isinstance(checkpoint, CompletedCheckpoint)
    return checkpoint


def checkpoints(disk: Path) -> None:
    """Try a checkpoint with more and more room, until there is enough."""
    storage, ballast = LocalStorage(disk / "checkpoints"), Ballast(disk)
    epochs = Epochs(storage)
    runner = epochs.runner()
    store = CompletedCheckpoints(storage)
    reasons, left = [], []
    for pages in range(20):
        for _ in range(2):  # with room
            epochs.commit()
            good = taken(runner, epochs)
            assert isinstance(good, CompletedCheckpoint), good
        epochs.commit()
        before = files_of(storage)
        ballast.leave(pages)
        failed = taken(runner, epochs)
        ballast.drop()
        print(f"{pages} pages: {failed}")
        newest = store.ids()[-1]
        assert restored_epoch(store, storage, good.checkpoint_id) == good.epoch
        if isinstance(failed, CompletedCheckpoint):
            break
        assert "No space left" in str(failed)
        reasons.append(failed.reason)
        assert newest == good.checkpoint_id
        assert str(storage.root) in str(failed)
        new = {path.partition("-")[0] for path in files_of(storage) - before}
        is_uncertain = failed.reason is AbortReason.METADATA_UNCERTAIN
        may_stay = {"chk", "shared/source", "shared/native"} if is_uncertain else {"chk"}
        assert new <= may_stay, "the rest is freed"
        left.append(new)
    assert isinstance(failed, CompletedCheckpoint)
    assert set(reasons) == {AbortReason.STORAGE_FAILED, AbortReason.METADATA_UNCERTAIN}
    assert {"chk"} in left
    assert not [path for path in files_of(storage) if ".tmp" in path]
    runner.close()


def new_subtask(local: Path, storage: LocalStorage, backend_type: str) -> MaterializedSubtask:
    handle = Handle(
        query_id="q", uid="u", subtask=0, parallelism=1, max_parallelism=8, epoch=0,
        key_schema="{}",
    )  # fmt: skip
    subtask = MaterializedSubtask(local, backend_type, storage, handle)
    subtask.epoch({b"first": b"1"})
    subtask.epoch({b"second": b"2"})
    return subtask


def refused(action: Callable[[], object]) -> OSError:
    """Return the error, which is one of a full disk."""
    with pytest.raises(OSError, match=r"[Nn]o (space|room) left") as caught:
        action()
    assert isinstance(caught.value, StateBackendError) or caught.value.errno == errno.ENOSPC
    return caught.value


def files_of_tasks(disk: Path, local: str, backend_type: str) -> None:
    """A segment, then a base snapshot, that the storage has no room for."""
    storage, ballast = LocalStorage(disk / "checkpoints"), Ballast(disk)
    subtask = new_subtask(Path(local), storage, backend_type)
    before = files_of(storage)
    ballast.leave(20)
    refused(lambda: subtask.epoch(LARGE))
    assert files_of(storage) == before
    subtask.check()
    ballast.drop()
    subtask.epoch(LARGE)
    subtask.check()
    assert subtask.epoch({}, ALWAYS).pending is not None
    subtask.settings = NEVER
    uploads = subtask.uploads
    assert uploads is not None
    ballast.leave(20)
    waiting = dict(uploads.waiting)
    refused(uploads.run)
    assert not [path for path in files_of(storage) if ".tmp" in path]
    assert subtask.epoch({b"third": b"3"}).base is None, "epochs continue"
    ballast.drop()
    uploads.waiting = waiting
    uploads.run()
    assert subtask.epoch({}).base is not None
    subtask.check()
    assert subtask.files() == {each.file.path for each in subtask.handle.base.files}


def local_copies(disk: Path, durable: str, backend_type: str) -> None:
    """A local copy that has no room for an epoch, for a snapshot, or to be built."""
    storage, ballast = LocalStorage(Path(durable)), Ballast(disk)
    subtask = new_subtask(disk / "local", storage, backend_type)
    subtask.epoch(LARGE)  # its changes are applied by the next one
    ballast.leave(20)
    with suppress(BackendFullError):  # or the old copy, once thrown away, gave enough room
        subtask.epoch()
    ballast.drop()
    subtask.check()
    subtask.epoch({b"4": b"4"})
    ballast.leave(0)
    with suppress(BackendFullError):
        subtask.epoch({}, ALWAYS)
    subtask.settings = NEVER
    ballast.drop()
    subtask.check()
    subtask.epoch({}, ALWAYS)
    assert subtask.uploads is not None
    subtask.uploads.run()
    subtask.settings = NEVER
    assert subtask.epoch({b"5": b"5"}).base is not None
    for pages in (0, 10, 40, 100, 150):
        subtask.directory = disk / f"executor {pages}"
        ballast.leave(pages)
        error = refused(subtask.read)
        used = sum(path.stat().st_size for path in subtask.directory.rglob("*"))
        print(f"{pages}: {used} bytes left by {type(error).__name__}: {error}")
        left = [path for path in subtask.directory.rglob("*") if path.is_file()]
        assert {path.name for path in left} <= {"lock"}, "space is given back"
        ballast.drop()
        subtask.check()
    subtask.epoch({b"6": b"6"})
    subtask.check()


def test_a_checkpoint_on_a_full_disk_aborts_and_the_one_before_stays(tmp_path: Path) -> None:
    on_a_small_disk(checkpoints, tmp_path / "disk", 1 << 20)


def test_an_fsync_that_finds_no_room_aborts_and_the_one_before_stays(tmp_path: Path) -> None:
    """The file system promised room that it does not have: each fsync fails in turn."""
    storage = LocalStorage(tmp_path / "checkpoints")
    epochs, store = Epochs(storage), CompletedCheckpoints(storage)
    runner = epochs.runner()
    failures: list[CheckpointAbortedError] = []
    outcome: CompletedCheckpoint | CheckpointAbortedError | None = None
    for number in count():
        epochs.commit()
        good = taken(runner, epochs)
        assert isinstance(good, CompletedCheckpoint)
        epochs.commit()
        disk = Disk(storage.root)
        disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        disk.fails_on = ("fsync", number)
        with disk.watched():
            outcome = taken(runner, epochs)
        assert restored_epoch(store, storage, good.checkpoint_id) == good.epoch
        if isinstance(outcome, CompletedCheckpoint):
            break
        assert "No space left" in str(outcome)
        assert not [path for path in files_of(storage) if ".tmp" in path]
        failures.append(outcome)
    print([str(failure) for failure in failures])
    reasons = {failure.reason for failure in failures}
    assert reasons == {AbortReason.STORAGE_FAILED, AbortReason.METADATA_UNCERTAIN}
    assert len(failures) >= 6, "file and directory of author, source log and metadata"
    runner.close()


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_segments_and_base_snapshots_without_room_leave_nothing(
    tmp_path: Path, backend_type: str
) -> None:
    disk = tmp_path / "disk"
    on_a_small_disk(files_of_tasks, disk, DISK_BYTES, tmp_path / "local", backend_type)


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_local_copy_without_room_is_an_error_and_right_once_there_is(
    tmp_path: Path, backend_type: str
) -> None:
    disk = tmp_path / "disk"
    on_a_small_disk(local_copies, disk, DISK_BYTES, tmp_path / "durable", backend_type)
