"""The upload of snapshots: once, in the background, interrupted at any moment without loss."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.formats.handle import BaseSnapshot, Handle
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.local_snapshots import (
    BackgroundUploads,
    LocalSnapshot,
    LocalSnapshots,
    upload,
    upload_steps,
)
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from state_backends import BACKEND_TYPES
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask

_UPLOAD = """
import sys
from pathlib import Path
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshot, LocalSnapshots
from pyspark_ckpt.operator.durable.local_snapshots import upload_steps
class Storage(LocalStorage):
    def write(self, relative, chunks):
        def noisy():
            for chunk in chunks:
                print("chunk", flush=True)
                sys.stdin.readline()
                yield chunk
        return super().write(relative, noisy())
for path in upload_steps(Storage(Path(sys.argv[1])), LocalSnapshot(Path(sys.argv[2])), wait=False):
    print(path, flush=True)
"""
"""Waits for a line of input before each chunk that it writes."""


def root_of(storage: Storage) -> Path:
    assert isinstance(storage, LocalStorage)
    return storage.root


class GatedStorage(LocalStorage):
    """A storage that holds writes back until a test releases them."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(root_of(storage))
        self.is_writing, self.may_write = threading.Event(), threading.Event()
        self.writers: list[str] = []

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        self.writers.append(threading.current_thread().name)
        self.is_writing.set()
        assert self.may_write.wait(60)
        return super().write(relative, chunks)


class FailingStorage(LocalStorage):
    """A storage that fails to write the n-th file."""

    fails_at = 1

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise OSError("no route to the storage")
        return super().write(relative, chunks)


@pytest.fixture(params=BACKEND_TYPES)
def subtask(
    tmp_path: Path, request: pytest.FixtureRequest, storage: Storage, handle: Handle
) -> MaterializedSubtask:
    """A subtask with a snapshot that is taken and not uploaded."""
    subtask = MaterializedSubtask(tmp_path / "local", request.param, storage, handle)
    for n in range(2):
        subtask.epoch({b"%d %05d" % (n, row): b"v" * 40 for row in range(2000)})
    subtask.epoch({b"a": b"1"}, ALWAYS)
    subtask.settings = NEVER
    return subtask


def taken(subtask: MaterializedSubtask) -> LocalSnapshot:
    assert subtask.handle.pending is not None
    return LocalSnapshot(subtask.directory / "snapshots" / subtask.handle.pending.snapshot_id)


def check_picked_up(subtask: MaterializedSubtask) -> None:
    handle = subtask.epoch({b"b": b"2"})
    assert (handle.pending, len(handle.segments)) == (None, 2)
    subtask.check()


def test_epochs_continue_while_a_snapshot_is_uploaded(subtask: MaterializedSubtask) -> None:
    uploads, gated = BackgroundUploads(), GatedStorage(subtask.storage)
    snapshot = taken(subtask)
    for _ in range(3):  # what each epoch does
        uploads.start(gated, snapshot)
    assert gated.is_writing.wait(60)
    for n in range(3):
        assert subtask.epoch({b"%d" % n: b"x"}).pending is not None
        uploads.start(gated, snapshot)
    assert list(upload_steps(subtask.storage, snapshot, wait=False)) == [], "one at a time"
    files = len(snapshot.note().files)
    gated.may_write.set()
    upload(subtask.storage, snapshot)  # waits for the other one to end, and finds nothing to do
    assert gated.writers == ["pyspark_ckpt uploads"] * files
    handle = subtask.epoch({})
    assert handle.base is not None
    assert subtask.files() == {each.file.path for each in handle.base.files}
    subtask.check()


def test_one_upload_that_fails_does_not_keep_the_next_ones(subtask: MaterializedSubtask) -> None:
    uploads, failing = BackgroundUploads(), FailingStorage(root_of(subtask.storage))
    snapshot = taken(subtask)
    gone = LocalSnapshot(snapshot.directory.with_name("0" * 16))
    gated = GatedStorage(subtask.storage)
    gated.may_write.set()
    uploads.start(gated, gone)
    uploads.start(failing, snapshot)
    empty = msgspec.structs.replace(subtask.handle, segments=(), pending=None)
    other = MaterializedSubtask(
        subtask.directory.with_name("other"), "heap", subtask.storage, empty
    )
    other.epoch({b"a": b"1"})
    other.epoch({}, ALWAYS)
    uploads.start(gated, taken(other))
    assert gated.is_writing.wait(60)
    assert snapshot.note().missing
    upload(subtask.storage, snapshot)
    check_picked_up(subtask)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_an_epoch_that_must_wait_for_an_upload_says_why_it_cannot(
    subtask: MaterializedSubtask, fails_at: int
) -> None:
    missing = len(taken(subtask).note().missing)
    subtask.uploads = None
    failing = FailingStorage(root_of(subtask.storage))
    good, subtask.storage = subtask.storage, failing
    failing.fails_at = min(fails_at, missing)
    with pytest.raises(OSError, match="no route"):
        subtask.epoch({b"lost": b"1"})
    subtask.storage = good
    check_picked_up(subtask)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_upload_costs_nothing_but_the_upload(
    subtask: MaterializedSubtask, seed: int
) -> None:
    snapshot = taken(subtask)
    command = [
        sys.executable,
        "-c",
        _UPLOAD,
        str(root_of(subtask.storage)),
        str(snapshot.directory),
    ]
    chunks = random.Random(seed).randrange(1, 4)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as uploader:
        assert uploader.stdin is not None
        assert uploader.stdout is not None
        for line in uploader.stdout:
            chunks -= line == "chunk\n"
            if chunks == 0:
                break
            if line == "chunk\n":
                assert list(upload_steps(subtask.storage, snapshot, wait=False)) == []
                assert subtask.epoch({}).base is None
                uploader.stdin.write("\n")
                uploader.stdin.flush()
        uploader.kill()
    missing = snapshot.note().missing
    print(f"seed {seed}: killed with {missing} missing")
    assert missing
    upload(subtask.storage, snapshot)
    check_picked_up(subtask)


def test_a_file_of_the_same_name_with_other_content_is_uploaded(
    tmp_path: Path, storage: Storage, handle: Handle
) -> None:
    """Two executors number their SST files alike, so a name says nothing about the content."""
    here, there = (
        MaterializedSubtask(tmp_path / name, "rocksdb", storage, handle)
        for name in ("here", "there")
    )
    for number in range(2):
        here.epoch({b"%d %05d" % (number, row): b"here" * 10 for row in range(2000)}, ALWAYS)
        there.epoch({b"%d %05d" % (number, row): b"there" * 8 for row in range(2000)}, ALWAYS)
    for subtask in (here, there):
        subtask.uploads.run()
        subtask.epoch({b"a": b"1"}, NEVER)
    base = there.handle.base
    assert base is not None
    # As after the subtask was there for a while: its base is kept here, next to a separate copy.
    with open_local_copy(here.directory, "rocksdb", storage, here.handle) as copy:
        copy.snapshots.keep_base(base, here.handle, partial(fetch, storage, base))
        claimed = msgspec.structs.replace(here.handle, base=base)
        snapshot = copy.snapshots.take(copy.backend, "rocksdb", claimed, 7)
    note = snapshot.note()
    of_both = {name for name in note.files if name.endswith(".sst")} & {f.name for f in base.files}
    assert of_both, "no two files have the same name"
    assert of_both <= set(note.missing)
    upload(storage, snapshot)
    restored = MaterializedSubtask(
        tmp_path / "restored",
        "rocksdb",
        storage,
        msgspec.structs.replace(here.handle, base=snapshot.note().base(), segments=()),
        state=here.state,
    )
    restored.check()


def fetch(storage: Storage, base: BaseSnapshot, target: Path) -> None:
    target.mkdir()
    for each in base.files:
        (target / each.name).write_bytes(storage.read(each.file.path))


class RemovingStorage(LocalStorage):
    """Removes the local snapshots while a file is written: before its content is read, or after."""

    def __init__(self, subtask: MaterializedSubtask, *, after: bool) -> None:
        super().__init__(root_of(subtask.storage))
        self.snapshots, self.after = LocalSnapshots(subtask.directory), after

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        if self.after:
            chunks = list(chunks)
        self.snapshots.keep_only(())
        return super().write(relative, chunks)


@pytest.mark.parametrize("after", [False, True])
def test_a_snapshot_that_is_removed_meanwhile_is_not_taken_for_damaged(
    subtask: MaterializedSubtask, after: bool
) -> None:
    snapshot = taken(subtask)
    with pytest.raises(FileNotFoundError):
        upload(RemovingStorage(subtask, after=after), snapshot)
    assert not LocalSnapshots(subtask.directory).is_any_damaged()
    assert list(snapshot.directory.parent.iterdir()) == []


def test_a_snapshot_loses_its_name_before_its_files(
    subtask: MaterializedSubtask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal that is cut short, or seen half way, leaves no half snapshot under its name."""
    snapshot = taken(subtask)
    names = sorted(path.name for path in snapshot.directory.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, **_: None)  # killed before it
        LocalSnapshots(subtask.directory).keep_only(())
    assert not snapshot.directory.exists()
    (left,) = snapshot.directory.parent.iterdir()
    assert sorted(path.name for path in left.rglob("*")) == names
    LocalSnapshots(subtask.directory).keep_only(())
    assert list(snapshot.directory.parent.iterdir()) == []
    assert not LocalSnapshots(subtask.directory).is_any_damaged()
