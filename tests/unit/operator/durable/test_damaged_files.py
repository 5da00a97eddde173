"""A bit that flips on an executor's disk never gets into a base snapshot or the state."""

from __future__ import annotations

import logging
import random
import shutil
import time
from pathlib import Path

import pytest

from pyspark_ckpt.checkpoint.cleaning import garbage
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable.local_snapshots import BackgroundUploads, LocalSnapshot
from pyspark_ckpt.storage.open import Storage
from state_backends import (
    BACKEND_TYPES,
    BackendCorruptError,
    Changes,
    find_snapshot_format,
    open_backend,
)
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask, Uploads


@pytest.fixture(params=BACKEND_TYPES)
def subtask(
    request: pytest.FixtureRequest, tmp_path: Path, storage: Storage, handle: Handle
) -> MaterializedSubtask:
    """A subtask after four epochs; its snapshot is pending."""
    made = MaterializedSubtask(tmp_path / "local", str(request.param), storage, handle)
    for number in range(4):
        made.epoch({b"%d %04d" % (number, n): b"v%d" % number * 20 for n in range(2000)}, NEVER)
    made.epoch({b"last": b"1"}, ALWAYS)
    made.settings = NEVER
    assert made.handle.pending is not None
    return made


def snapshot_of(subtask: MaterializedSubtask) -> LocalSnapshot:
    (directory,) = subtask.directory.glob("snapshots/*")
    return LocalSnapshot(directory)


def flip_state(snapshot: LocalSnapshot) -> None:
    """Flip a bit of a stored value, in the largest file."""
    files = [path for path in snapshot.files.iterdir() if path.suffix in (".sst", ".mdb")]
    path = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    if path.suffix == ".sst":
        data[len(data) // 3] ^= 4
    # Free pages of the heap may have older copies of the same entry.
    path.write_bytes(data.replace(b"2 0500v2", b"2 0500v6"))


def run_epoch_as_spark(subtask: MaterializedSubtask, writes: dict[bytes, bytes | None]) -> None:
    """Run an epoch, and once more if it fails, as Spark does with a task.

    RocksDB may merge files in the background, and then it is the first to read the damaged one.
    """
    try:
        subtask.epoch(writes)
    except BackendCorruptError:
        subtask.epoch(writes)


def check_recovery(subtask: MaterializedSubtask) -> None:
    """Check that nothing is lost, and that a later snapshot becomes the base."""
    assert subtask.handle.base is None
    assert len(subtask.handle.segments) >= 5
    subtask.check()
    subtask.epoch({b"last": b"2"}, NEVER)
    subtask.check()
    uploads = subtask.uploads
    for number in range(3):
        subtask.epoch({b"last": b"%d" % number}, ALWAYS)
        if uploads is not None:
            uploads.run()
    handle = subtask.epoch({}, NEVER)
    assert handle.base is not None
    kept = [file.path for file in handle.files()] + sorted(handle.kept_files())
    gone = garbage(subtask.storage, kept, handle.epoch, handle.kept_snapshots())
    subtask.storage.delete(gone)
    shutil.rmtree(subtask.directory)
    subtask.check()


def test_a_damaged_snapshot_is_not_uploaded_as_the_base(
    subtask: MaterializedSubtask, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 7: before the upload."""
    flip_state(snapshot_of(subtask))
    background = BackgroundUploads()
    background.start(subtask.storage, snapshot_of(subtask))
    ends = time.monotonic() + 60
    while not caplog.records and time.monotonic() < ends:
        time.sleep(0.01)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "No state is lost" in caplog.text
    assert subtask.uploads is not None
    subtask.uploads.waiting.clear()
    run_epoch_as_spark(subtask, {b"more": b"1"})
    assert not subtask.snapshots
    check_recovery(subtask)


def test_an_epoch_that_waits_for_the_upload_continues_without_it(
    subtask: MaterializedSubtask,
) -> None:
    flip_state(snapshot_of(subtask))
    subtask.uploads = None
    run_epoch_as_spark(subtask, {b"more": b"1"})
    check_recovery(subtask)


@pytest.mark.parametrize("file", ["MANIFEST", "CURRENT"])
@pytest.mark.parametrize("seed", range(4))
def test_the_list_of_files_is_checked_with_the_last_one(
    tmp_path: Path, storage: Storage, handle: Handle, file: str, seed: int
) -> None:
    subtask = MaterializedSubtask(tmp_path / "local", "rocksdb", storage, handle, uploads=None)
    subtask.epoch({b"%d" % n: b"v" for n in range(100)}, NEVER)
    subtask.epoch({b"a": b"1"}, NEVER)
    subtask.uploads = Uploads()
    subtask.epoch({}, ALWAYS)
    (path,) = snapshot_of(subtask).files.glob(f"{file}*")
    data = bytearray(path.read_bytes())
    data[random.Random(seed).randrange(len(data))] ^= 1 << seed
    path.write_bytes(data)
    assert subtask.uploads is not None
    with pytest.raises(BackendCorruptError):
        subtask.uploads.run()
    subtask.uploads.waiting.clear()
    subtask.epoch({b"b": b"1"}, NEVER)
    assert subtask.handle.base is None
    subtask.check()


def test_every_part_of_a_file_of_rocksdb_is_checked(tmp_path: Path) -> None:
    """Filters are the exception; a flipped bit of one is noticed when it is read, and ignored."""
    keys = [b"%06d" % n for n in range(3000)]
    with open_backend("rocksdb", tmp_path / "state", create=True) as backend:
        backend.load([Changes(keys, [key * 5 for key in keys])], "1")
        names = backend.snapshot_files(tmp_path / "taken")
    rocksdb = find_snapshot_format("rocksdb")
    assert rocksdb is not None
    (name,) = filter(rocksdb.is_immutable, names)
    path = tmp_path / "taken" / name
    rocksdb.check_file(path)
    good = path.read_bytes()
    rng = random.Random(5)
    unnoticed = []
    for at in [*rng.sample(range(len(good)), 40), *range(len(good) - 60, len(good))]:
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :])
        try:
            rocksdb.check_file(path)
        except BackendCorruptError:
            continue
        unnoticed.append(at)
        with open_backend("rocksdb", tmp_path / "taken", create=False, read_only=True) as backend:
            assert backend.get_many(keys) == [key * 5 for key in keys]
            assert len(list(backend.scan())) == len(keys)
    assert len(unnoticed) < 15
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("check-")] == []
