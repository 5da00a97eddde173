"""Materialization: a changelog becomes a base snapshot in the background without any loss."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import (
    CHANGES_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
)
from pyspark_ckpt.formats.layout import state_file
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.materialization import MOST_SEGMENTS
from pyspark_ckpt.operator.durable.stored_files import read_base
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from state_backends import BACKEND_TYPES
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask


@pytest.fixture(params=BACKEND_TYPES)
def backend_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def subtask(
    tmp_path: Path, backend_type: str, storage: Storage, handle: Handle
) -> MaterializedSubtask:
    return MaterializedSubtask(tmp_path / "local", backend_type, storage, handle)


@pytest.fixture
def rocksdb(tmp_path: Path, storage: Storage, handle: Handle) -> MaterializedSubtask:
    return MaterializedSubtask(tmp_path / "local", "rocksdb", storage, handle)


def root_of(storage: Storage) -> Path:
    assert isinstance(storage, LocalStorage)
    return storage.root


class CountedReads(LocalStorage):
    """A storage that notes what is read."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(root_of(storage))
        self.opened: list[str] = []

    def open_verified(self, reference: FileReference) -> Any:
        self.opened.append(reference.path)
        return super().open_verified(reference)

    def read(self, relative: str) -> bytes:
        self.opened.append(relative)
        return super().read(relative)


def rows(number: int, seed: int = 1, first: int = 0) -> dict[bytes, bytes | None]:
    rng = random.Random(seed)
    return {b"%07d" % n: rng.randbytes(40) for n in range(first, first + number)}


def test_a_snapshot_is_taken_uploaded_and_taken_for_the_base(subtask: MaterializedSubtask) -> None:
    subtask.epoch(rows(3000))
    before = subtask.handle
    taken = subtask.epoch(rows(10, seed=2), ALWAYS)
    assert taken.pending is not None
    assert (taken.pending.version, taken.pending.epoch) == (before.version, 2)
    assert taken.base is None
    assert [segment.epoch for segment in taken.segments] == [1, 2], "the truth until it is there"
    assert subtask.files() == set(), "nothing was uploaded while the epoch ran"
    waiting = subtask.epoch(rows(10, seed=3))
    assert waiting.pending == taken.pending
    assert subtask.uploads is not None
    subtask.uploads.run()
    based = subtask.epoch(rows(10, seed=4), NEVER)
    assert based.pending is None
    assert based.base is not None
    assert based.base.version == before.version
    assert [segment.epoch for segment in based.segments] == [2, 3, 4]
    wanted = "rocksdb" if subtask.backend_type == "rocksdb" else CHANGES_FORMAT
    assert based.base.format == wanted
    paths = {each.file.path for each in based.base.files}
    assert paths == subtask.files()
    for path in paths:
        name = Path(path).name
        file = state_file(name)
        assert file is not None
        assert (file.epoch, file.snapshot_id) == (2, taken.pending.snapshot_id)
    content = {
        key: value
        for part in read_base(subtask.storage, based.base)
        for key, value in zip(part.keys, part.values, strict=True)
    }
    assert content == rows(3000)
    subtask.check()
    shutil.rmtree(subtask.directory)
    subtask.check()
    for backend_type in BACKEND_TYPES:
        subtask.backend_type = backend_type
        subtask.check()


def test_without_a_lasting_worker_the_upload_is_done_at_once(subtask: MaterializedSubtask) -> None:
    subtask.uploads = None
    subtask.epoch(rows(100))
    handle = subtask.epoch(rows(1, seed=2), ALWAYS)
    assert handle.pending is None
    assert handle.base is not None
    assert [segment.epoch for segment in handle.segments] == [2]
    shutil.rmtree(subtask.directory)
    subtask.check()


def test_a_retry_leaves_the_snapshot_of_the_failed_attempt_behind(
    subtask: MaterializedSubtask,
) -> None:
    """Scenario 12: the retry's snapshot counts."""
    subtask.epoch(rows(100))
    subtask.settings = ALWAYS
    failed = subtask.attempt({b"lost": b"1"})
    handle = subtask.epoch(rows(1, seed=2))
    assert failed.pending is not None
    assert handle.pending is not None
    assert handle.pending.snapshot_id != failed.pending.snapshot_id
    assert subtask.snapshots == {handle.pending.snapshot_id}
    assert subtask.uploads is not None
    assert not subtask.uploads.step(subtask.directory / "snapshots" / failed.pending.snapshot_id)
    subtask.uploads.run()
    based = subtask.attempt({b"lost too": b"1"})
    again = subtask.epoch(rows(1, seed=3))
    assert based.base == again.base, "what an attempt has picked up is there for its retry"
    subtask.check()


def test_an_upload_continues_where_a_killed_one_ended(rocksdb: MaterializedSubtask) -> None:
    for seed in range(3):
        rocksdb.epoch(rows(500, seed))
    pending = rocksdb.epoch({}, ALWAYS).pending
    assert pending is not None
    assert rocksdb.uploads is not None
    directory = rocksdb.directory / "snapshots" / pending.snapshot_id
    assert rocksdb.uploads.step(directory)
    (first,) = rocksdb.files()
    rocksdb.uploads.drop(directory)
    assert rocksdb.epoch({}, NEVER).pending == pending
    rocksdb.uploads.run()
    handle = rocksdb.epoch({})
    assert handle.base is not None
    assert first in {each.file.path for each in handle.base.files}
    assert rocksdb.files() == {each.file.path for each in handle.base.files}


def test_only_what_is_new_is_uploaded(rocksdb: MaterializedSubtask) -> None:
    """1 % of the keys changed: at most 5 % of the bytes of a full snapshot."""
    keys = 200_000
    state = rows(keys)
    rocksdb.epoch(state)
    assert rocksdb.uploads is not None

    def materialized() -> tuple[BaseSnapshot, int]:
        rocksdb.epoch({}, ALWAYS)
        before = rocksdb.files()
        rocksdb.uploads.run()  # type: ignore[union-attr]
        base = rocksdb.epoch({}, NEVER).base
        assert base is not None
        new = rocksdb.files() - before
        paths = {each.file.path: each.file.size_bytes for each in base.files}
        assert new <= set(paths)
        return base, sum(paths[path] for path in new)

    full, full_bytes = materialized()
    assert full_bytes == full.size_bytes > keys * 40
    rng = random.Random(5)
    rocksdb.epoch({key: rng.randbytes(40) for key in rng.sample(sorted(state), keys // 100)})
    base, new_bytes = materialized()
    assert base.size_bytes > keys * 40
    assert 2000 * 40 < new_bytes <= 0.05 * full_bytes


def test_a_copy_built_from_a_snapshot_shares_its_files(rocksdb: MaterializedSubtask) -> None:
    rocksdb.uploads = None
    rocksdb.epoch(rows(5000))
    first = rocksdb.epoch({}, ALWAYS).base
    shutil.rmtree(rocksdb.directory)
    rocksdb.check()
    rocksdb.epoch({b"one more": b"1"}, NEVER)
    second = rocksdb.epoch({}, ALWAYS).base
    assert first is not None
    assert second is not None
    known = {each.file for each in first.files}
    new_bytes = sum(each.file.size_bytes for each in second.files if each.file not in known)
    assert new_bytes < 0.1 * first.size_bytes


def test_a_copy_at_its_version_reads_nothing_from_the_storage(subtask: MaterializedSubtask) -> None:
    subtask.uploads = None
    subtask.epoch(rows(1000))
    subtask.epoch(rows(10, seed=2), ALWAYS)
    subtask.check()
    subtask.storage = counted = CountedReads(subtask.storage)
    subtask.check()
    subtask.epoch({}, NEVER)
    subtask.check()
    assert counted.opened == []


def test_a_rebuilt_copy_fetches_only_what_it_lacks(rocksdb: MaterializedSubtask) -> None:
    rocksdb.uploads = None
    rocksdb.epoch(rows(5000))
    first = rocksdb.epoch({}, ALWAYS)
    behind = rocksdb.directory.with_name("another executor")
    shutil.copytree(rocksdb.directory, behind)
    rocksdb.epoch(rows(50, seed=2))
    last = rocksdb.epoch({}, ALWAYS)
    assert first.base is not None
    assert last.base is not None
    assert last.version not in first.lineage
    rocksdb.directory = behind
    rocksdb.storage = counted = CountedReads(rocksdb.storage)
    rocksdb.check()
    known = {each.file.path for each in first.base.files}
    assert set(counted.opened) == {f.path for f in last.files()} - known
    shared = known & {each.file.path for each in last.base.files}
    assert shared, "the large file of the first snapshot is in the second one"


@pytest.mark.parametrize("where", ["rocksdb", "snapshots"])
def test_local_files_are_not_trusted_without_their_digest(
    rocksdb: MaterializedSubtask, where: str
) -> None:
    rocksdb.uploads = None
    rocksdb.epoch(rows(5000))
    handle = rocksdb.epoch({}, ALWAYS)
    copied = rocksdb.directory.with_name("copied")  # without links: one copy of each file
    shutil.copytree(rocksdb.directory, copied)
    rocksdb.directory = copied
    for path in copied.rglob("*.sst"):
        if where in path.parts:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0x10
            path.write_bytes(data)
        else:
            path.unlink()
    (copied / "rocksdb" / "CURRENT").unlink()  # so that the copy must be built anew
    rocksdb.storage = counted = CountedReads(rocksdb.storage)
    rocksdb.check()
    assert handle.base is not None
    ssts = {each.file.path for each in handle.base.files if each.name.endswith(".sst")}
    assert ssts <= set(counted.opened)


def test_a_damaged_copy_takes_its_pending_snapshot_with_it(rocksdb: MaterializedSubtask) -> None:
    rocksdb.epoch(rows(100))
    rocksdb.epoch(rows(1, seed=2), ALWAYS)
    assert rocksdb.snapshots
    for path in (rocksdb.directory / "rocksdb").glob("*.sst"):
        path.write_bytes(path.read_bytes()[:-9])  # the snapshot's is the same file
    rocksdb.check()
    assert rocksdb.snapshots == set()
    rocksdb.epoch(rows(1, seed=3))
    rocksdb.check()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_missing_or_changed_file_is_corrupt_for_every_backend(
    rocksdb: MaterializedSubtask, damage: str
) -> None:
    """Scenario 7: every file of a base snapshot of RocksDB."""
    rocksdb.uploads = None
    rocksdb.epoch(rows(100))
    base = rocksdb.epoch({}, ALWAYS).base
    assert base is not None
    for each in base.files:
        path = root_of(rocksdb.storage) / each.file.path
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            flipped = bytes([content[0] ^ 1, *content[1:]])
            path.write_bytes(content[:-1] if damage == "cut" else flipped)
        for backend_type in BACKEND_TYPES:
            rocksdb.backend_type = backend_type
            shutil.rmtree(rocksdb.directory, ignore_errors=True)
            with pytest.raises(CorruptFileError, match=path.name):
                rocksdb.read()
        path.write_bytes(content)
    rocksdb.check()


@pytest.mark.parametrize("name", ["../up.sst", "/etc/passwd", "OPTIONS-000007", "x/000001.sst"])
def test_a_base_with_a_file_that_no_database_has_is_refused(
    rocksdb: MaterializedSubtask, name: str
) -> None:
    """Scenario 7: impossible file names."""
    rocksdb.uploads = None
    rocksdb.epoch(rows(100))
    handle = rocksdb.epoch({}, ALWAYS)
    assert handle.base is not None
    files = (*handle.base.files, BaseFile(name, handle.base.files[0].file))
    forged = msgspec.structs.replace(handle.base, files=files)
    rocksdb.handle = msgspec.structs.replace(handle, base=forged)
    for backend_type in BACKEND_TYPES:
        rocksdb.backend_type = backend_type
        shutil.rmtree(rocksdb.directory)
        with pytest.raises(CorruptFileError, match="no database"):
            rocksdb.read()


def test_files_of_another_version_are_refused(rocksdb: MaterializedSubtask) -> None:
    rocksdb.uploads = None
    rocksdb.epoch(rows(100))
    handle = rocksdb.epoch({}, ALWAYS)
    assert handle.base is not None
    other = msgspec.structs.replace(handle.base, version="1-other")
    rocksdb.handle = msgspec.structs.replace(handle, base=other)
    shutil.rmtree(rocksdb.directory)
    with pytest.raises(CorruptFileError, match="at version"):
        rocksdb.read()


def test_a_snapshot_elsewhere_is_waited_for_until_another_one_would_be_due(
    subtask: MaterializedSubtask,
) -> None:
    """Scenario 16: an upload ends after another took its place."""
    subtask.settings = Materialization(10**15, 10**15, max_segments=3)
    for n in range(4):
        subtask.epoch({b"%d" % n: b"1"})
    pending = subtask.handle.pending
    assert pending is not None
    home, away = subtask.directory, subtask.directory.with_name("another executor")
    subtask.directory = away
    assert subtask.epoch({b"5": b"1"}).pending == pending
    assert subtask.uploads is not None
    subtask.uploads.run()
    subtask.directory = home
    handle = subtask.epoch({b"6": b"1"})
    assert (handle.pending, len(handle.segments)) == (None, 3)
    pending = subtask.epoch({b"7": b"1"}).pending
    assert pending is not None
    subtask.directory = away
    for n in range(2):
        assert subtask.epoch({b"%d" % n: b"2"}).pending == pending
    overtaken = subtask.epoch({b"8": b"1"}).pending
    assert overtaken is not None
    assert overtaken.snapshot_id != pending.snapshot_id
    subtask.uploads.run()
    subtask.epoch({})
    subtask.check()
    subtask.directory = home
    subtask.epoch({})
    assert pending.snapshot_id not in subtask.snapshots


def test_a_snapshot_of_an_ended_run_is_discarded_unless_it_is_local(
    subtask: MaterializedSubtask,
) -> None:
    """Scenario 16: an upload of the run before."""
    subtask.epoch(rows(100))
    pending = subtask.epoch({b"1": b"1"}, ALWAYS).pending
    assert pending is not None
    subtask.settings, subtask.run_id = NEVER, "next run"
    home = subtask.directory
    subtask.directory = home.with_name("a new executor")
    assert subtask.attempt({}).pending is None
    subtask.directory = home
    assert subtask.epoch({}).pending == pending
    assert subtask.uploads is not None
    subtask.uploads.run()
    assert subtask.epoch({}).base is not None
    subtask.check()


def test_segments_never_pile_up_beyond_a_bound(subtask: MaterializedSubtask) -> None:
    subtask.settings = Materialization(10**15, 10**15, max_segments=3)
    for n in range(40):
        subtask.epoch({b"%d" % n: b"1"})  # and no upload ever gets a turn
        assert len(subtask.handle.segments) <= MOST_SEGMENTS * 3
    assert subtask.handle.base is not None
    shutil.rmtree(subtask.directory)
    subtask.check()


def test_a_private_copy_takes_no_snapshot_until_segments_pile_up(
    subtask: MaterializedSubtask,
) -> None:
    subtask.settings = Materialization(10**15, 10**15, max_segments=3)
    stalled = open_local_copy(subtask.directory, subtask.backend_type, subtask.storage, None)
    with stalled:
        for n in range(20):
            handle = subtask.epoch({b"%d" % n: b"1"})
            assert handle.pending is None
            assert len(handle.segments) <= MOST_SEGMENTS * 3
            if n <= 8:
                assert handle.base is None
    assert subtask.handle.base is not None
    shutil.rmtree(subtask.directory)
    subtask.check()


def test_an_uploaded_snapshot_that_is_not_whole_any_more_is_not_used(
    subtask: MaterializedSubtask,
) -> None:
    subtask.epoch(rows(100))
    subtask.epoch({b"1": b"1"}, ALWAYS)
    assert subtask.uploads is not None
    subtask.uploads.run()
    subtask.storage.delete([min(subtask.files())])
    handle = subtask.epoch({}, NEVER)
    assert (handle.base, handle.pending) == (None, None)
    subtask.check()


def test_the_heap_keeps_no_copy_of_what_has_become_the_base(
    subtask: MaterializedSubtask,
) -> None:
    subtask.epoch(rows(100))
    subtask.epoch({}, ALWAYS)
    assert subtask.uploads is not None
    subtask.uploads.run()
    base = subtask.epoch({}, NEVER).base
    assert base is not None
    subtask.epoch({})
    kept = {base.snapshot_id} if subtask.backend_type == "rocksdb" else set()
    assert subtask.snapshots == kept


def test_a_period_counts_from_the_first_epoch_and_then_from_the_last_snapshot(
    subtask: MaterializedSubtask,
) -> None:
    subtask.uploads = None
    subtask.settings = Materialization(1000, 10**15, 10**6)
    subtask.now_ms = 5000
    subtask.epoch({b"1": b"1"})
    for now_ms, base_epoch in [(5999, None), (6000, 3), (6999, 3), (7000, 5)]:
        subtask.now_ms = now_ms
        base = subtask.epoch({b"%d" % now_ms: b"1"}).base
        assert (base and base.epoch) == base_epoch
