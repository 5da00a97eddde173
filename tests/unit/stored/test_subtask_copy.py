"""The copy of a subtask in a savepoint has all of its state, however it was spread."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import CANONICAL_FORMAT, EMPTY_VERSION, Handle
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.stored_files import make_base, read_base
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy
from state_backends import BACKEND_TYPES, Changes, open_backend

State = dict[bytes, bytes]


def grown(storage: Storage, handle: Handle, directory: Path, seed: int) -> tuple[Handle, State]:
    """A handle with a base and segments, inline and in files, with puts and deletes."""
    print("seed", seed)
    chance = random.Random(seed)
    state = {b"%04d" % n: b"base" for n in range(500)}
    with open_backend("heap", directory, create=True) as backend:
        backend.load([Changes(sorted(state), [state[key] for key in sorted(state)])], EMPTY_VERSION)
        handle = msgspec.structs.replace(handle, base=make_base(storage, backend, handle, 0))
    for epoch in range(1, 6):
        writes = {
            b"%04d" % chance.randrange(800): None if chance.random() < 0.3 else b"%d" % epoch
            for _ in range(100)
        }
        keys = sorted(writes)
        changes = [Changes(keys, [writes[key] for key in keys])]
        segment = make_segment(storage, handle, changes, epoch, 10_000 if epoch % 2 else 0)
        assert segment is not None
        handle = msgspec.structs.replace(handle, epoch=epoch, segments=(*handle.segments, segment))
        for key, value in writes.items():
            state.pop(key, None)
            if value is not None:
                state[key] = value
    return handle, state


@pytest.fixture
def copy(storage: Storage, handle: Handle, tmp_path: Path) -> tuple[SubtaskCopy, State]:
    handle, state = grown(storage, handle, tmp_path / "backend", seed=7)
    task = SubtaskCopy(
        handle=handle,
        source=str(storage.root),
        target=str(tmp_path / "sp"),
        is_canonical=True,
        token="0" * 16,
    )
    return task, state


@pytest.mark.parametrize("is_canonical", [True, False])
@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_copy_has_all_state_and_needs_nothing_else(
    copy: tuple[SubtaskCopy, State], tmp_path: Path, backend_type: str, is_canonical: bool
) -> None:
    task = msgspec.structs.replace(copy[0], is_canonical=is_canonical)
    made = msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=SubtaskCopy).run()
    shutil.rmtree(task.source)
    moved = LocalStorage(Path(shutil.move(task.target, tmp_path / "moved")))
    assert made.version == task.handle.version
    with open_local_copy(tmp_path / "local", backend_type, moved, made) as local:
        assert dict(local.backend.scan()) == copy[1]


def test_a_canonical_copy_is_one_sorted_file(copy: tuple[SubtaskCopy, State]) -> None:
    task, state = copy
    made = task.run()
    assert made.segments == ()
    assert made.base is not None
    assert (made.base.format, made.base.entries) == (CANONICAL_FORMAT, len(state))
    parts = list(read_base(LocalStorage(Path(task.target)), made.base))
    assert [key for part in parts for key in part.keys] == sorted(state)
    assert len(list(Path(task.target).rglob("*.parquet"))) == 1


def test_a_second_attempt_is_right_too(copy: tuple[SubtaskCopy, State]) -> None:
    task = msgspec.structs.replace(copy[0], is_canonical=False)
    assert task.run() == task.run() == task.handle
    one, other = copy[0].run(), copy[0].run()
    assert one.files() != other.files()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_conflict_with_another_copy_of_a_file_is_none_if_the_file_is_there(
    copy: tuple[SubtaskCopy, State], monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """S3 may answer so to one of two tasks that copy a file at once."""
    task = msgspec.structs.replace(copy[0], is_canonical=False)
    real = LocalStorage.copy_in

    def conflict(
        self: LocalStorage, source: Storage, reference: FileReference, relative: str
    ) -> FileReference:
        if is_there:  # the other task has written it
            real(self, source, reference, relative)
        raise OSError("ConditionalRequestConflict")

    monkeypatch.setattr(LocalStorage, "copy_in", conflict)
    if is_there:
        assert task.run() == task.handle
    else:
        with pytest.raises(OSError, match="ConditionalRequestConflict"):
            task.run()


@pytest.mark.parametrize("is_canonical", [True, False])
def test_a_damaged_file_is_named(copy: tuple[SubtaskCopy, State], is_canonical: bool) -> None:
    task = msgspec.structs.replace(copy[0], is_canonical=is_canonical)
    path = Path(task.source) / task.handle.files()[-1].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=path.name):
        task.run()


def test_a_damaged_canonical_file_is_not_read(copy: tuple[SubtaskCopy, State]) -> None:
    made = copy[0].run()
    (reference,) = made.files()
    path = Path(copy[0].target) / reference.path
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    assert made.base is not None
    with pytest.raises(CorruptFileError, match="SHA-256"):
        list(read_base(LocalStorage(Path(copy[0].target)), made.base))
