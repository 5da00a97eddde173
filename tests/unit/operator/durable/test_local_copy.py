"""The local copy is always at the version of the handle, whatever happened to it before."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import EMPTY_VERSION, Handle, encode_handle
from pyspark_ckpt.operator.durable.local_copy import (
    executor_local_root,
    open_local_copy,
    subtask_directory,
)
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshots
from pyspark_ckpt.operator.durable.stored_files import make_base
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.operator.table.writes import in_frames
from pyspark_ckpt.storage.open import Storage
from state_backends import (
    BACKEND_TYPES,
    BackendCorruptError,
    Changes,
    HalfApplied,
    open_backend,
)

State = dict[bytes, bytes]

_HOLD = """
import sys
from pathlib import Path
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
with open_local_copy(Path(sys.argv[1]), sys.argv[2], LocalStorage(Path(sys.argv[3])), None):
    print("open", flush=True)
    sys.stdin.read()
"""


@dataclass
class Subtask:
    """A subtask over its epochs, with the handle that Spark would have committed last."""

    directory: Path
    backend_type: str
    storage: Storage
    handle: Handle
    inline: bool = True
    state: State = field(default_factory=dict)

    def read(self, handle: Handle | None) -> State:
        with open_local_copy(self.directory, self.backend_type, self.storage, handle) as copy:
            assert copy.backend.version() == (EMPTY_VERSION if handle is None else handle.version)
            return dict(copy.backend.scan())

    def epoch(self, *, base: bool = False, **puts: str | None) -> Handle:
        """Run an epoch that puts or deletes, and commit it."""
        handle = self.handle
        with open_local_copy(self.directory, self.backend_type, self.storage, handle) as copy:
            assert dict(copy.backend.scan()) == self.state
            if base:
                snapshot = make_base(self.storage, copy.backend, handle, handle.epoch)
                handle = msgspec.structs.replace(handle, base=snapshot, segments=())
        entries = {key.encode(): value and value.encode() for key, value in puts.items()}
        changes = in_frames(iter(sorted(entries.items())))
        number = handle.epoch + 1
        segment = make_segment(self.storage, handle, changes, number, 1 << 20 if self.inline else 0)
        assert segment is not None
        segments = (*handle.segments, segment)
        self.handle = msgspec.structs.replace(handle, epoch=number, segments=segments)
        self.state = {
            key: value for key, value in (self.state | entries).items() if value is not None
        }
        return self.handle


@pytest.fixture(params=BACKEND_TYPES)
def backend_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def subtask(tmp_path: Path, backend_type: str, storage: Storage, handle: Handle) -> Subtask:
    return Subtask(tmp_path / "local", backend_type, storage, handle)


def test_a_subtask_without_a_handle_starts_empty(subtask: Subtask) -> None:
    assert subtask.read(None) == {}
    assert subtask.read(None) == {}


def test_an_epoch_is_seen_from_the_next_handle_on(subtask: Subtask) -> None:
    first = subtask.epoch(a="1", b="2")
    assert subtask.read(first) == {b"a": b"1", b"b": b"2"}
    second = subtask.epoch(a=None, c="3")
    assert subtask.read(second) == {b"b": b"2", b"c": b"3"}


def test_a_retry_finds_the_state_before_the_failed_attempt(subtask: Subtask) -> None:
    """Scenario 12: the local copy."""
    subtask.epoch(a="1")
    committed = subtask.handle
    for number in range(3):
        subtask.handle, subtask.state = committed, {b"a": b"1"}
        subtask.epoch(a=f"attempt {number}")
    assert subtask.read(subtask.handle) == {b"a": b"attempt 2"}
    assert subtask.read(committed) == {b"a": b"1"}


def test_a_copy_ahead_of_the_handle_is_rebuilt_at_the_handle(subtask: Subtask) -> None:
    handles = [(subtask.epoch(a=str(number)), dict(subtask.state)) for number in range(4)]
    subtask.read(subtask.handle)
    for handle, state in [*handles[::-1], (None, {}), *handles]:
        assert subtask.read(handle) == state


def test_a_copy_behind_catches_up_from_the_segments_it_lacks(subtask: Subtask) -> None:
    subtask.inline = False
    subtask.epoch(a="1", b="1")
    subtask.epoch(base=True, c="1")
    subtask.read(subtask.handle)
    for number in range(2, 5):
        last = subtask.epoch(a=str(number))
        subtask.storage.delete(file.path for file in last.files()[:-1])
    assert subtask.read(subtask.handle) == {b"a": b"4", b"b": b"1", b"c": b"1"}


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("base", [True, False])
def test_a_lost_copy_is_built_from_base_and_segments(
    subtask: Subtask, base: bool, inline: bool
) -> None:
    subtask.inline = inline
    subtask.epoch(a="1", b="1")
    subtask.epoch(base=base, b=None, c="1")
    subtask.epoch(a="2")
    for _ in range(2):
        shutil.rmtree(subtask.directory)
        assert subtask.read(subtask.handle) == {b"a": b"2", b"c": b"1"}


def test_another_backend_takes_over_and_hands_back(subtask: Subtask) -> None:
    subtask.epoch(a="1")
    for backend_type in (*BACKEND_TYPES, *BACKEND_TYPES):
        subtask.backend_type = backend_type
        subtask.epoch(**{backend_type: "seen"})
    assert subtask.state == {b"a": b"1", b"rocksdb": b"seen", b"heap": b"seen"}


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_of_garbage_is_built_anew(subtask: Subtask, seed: int) -> None:
    subtask.epoch(a="1")
    subtask.read(subtask.handle)
    rng = random.Random(seed)
    files = [path for path in subtask.directory.rglob("*") if path.is_file()]
    for path in rng.sample(files, rng.randrange(1, len(files) + 1)):
        path.write_bytes(rng.randbytes(path.stat().st_size + 100))
    assert subtask.read(subtask.handle) == {b"a": b"1"}


def test_files_in_the_place_of_a_copy_are_no_obstacle(subtask: Subtask) -> None:
    subtask.epoch(a="1")
    shutil.rmtree(subtask.directory)
    place = subtask.directory / subtask.backend_type
    place.mkdir(parents=True)
    (place / "left over").write_text("something")
    assert subtask.read(subtask.handle) == {b"a": b"1"}


def test_a_second_attempt_works_on_a_private_copy_that_goes_with_it(subtask: Subtask) -> None:
    """Scenario 14: two attempts at once."""
    first = subtask.epoch(a="1")
    second = subtask.epoch(a="2")
    args = (subtask.directory, subtask.backend_type, subtask.storage)
    with open_local_copy(*args, second) as held, open_local_copy(*args, first) as private:
        assert dict(held.backend.scan()) == {b"a": b"2"}
        assert dict(private.backend.scan()) == {b"a": b"1"}
        private.backend.apply([Changes([b"a"], [b"zombie"])], "zombie")
        assert dict(held.backend.scan()) == {b"a": b"2"}
    assert subtask.read(second) == {b"a": b"2"}
    assert {path.name for path in subtask.directory.iterdir()} == {"lock", subtask.backend_type}


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"x")])
def test_a_missing_durable_file_is_corrupt_until_it_is_back(
    subtask: Subtask, lost: int, damage: Callable[[Path], object]
) -> None:
    subtask.inline = False
    subtask.epoch(a="1")
    subtask.epoch(base=True, b="1")
    last = subtask.epoch(c="1")
    path = subtask.storage.path(last.files()[lost].path)
    content = path.read_bytes()
    shutil.rmtree(subtask.directory)
    damage(path)
    for _ in range(2):
        with pytest.raises(CorruptFileError, match=path.name):
            subtask.read(last)
    path.write_bytes(content)
    assert subtask.read(last) == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_an_attempt_that_fails_leaves_the_copy_as_it_is(subtask: Subtask) -> None:
    subtask.epoch(a="1")
    args = (subtask.directory, subtask.backend_type, subtask.storage, subtask.handle)
    with pytest.raises(InterruptedError), open_local_copy(*args):
        raise InterruptedError
    for file in subtask.handle.files():
        subtask.storage.delete([file.path])
    assert subtask.read(subtask.handle) == {b"a": b"1"}


def test_a_copy_that_turns_out_damaged_is_thrown_away(subtask: Subtask) -> None:
    subtask.epoch(a="1")
    args = (subtask.directory, subtask.backend_type, subtask.storage, subtask.handle)
    with pytest.raises(BackendCorruptError), open_local_copy(*args):
        raise BackendCorruptError("a page could not be read")
    assert not (subtask.directory / subtask.backend_type).exists()
    assert subtask.read(subtask.handle) == {b"a": b"1"}


@pytest.mark.slow
@pytest.mark.parametrize("backend_type", ["rocksdb"])
def test_killed_attempts_leave_neither_locks_nor_files(subtask: Subtask) -> None:
    """Scenario 26: killed tasks."""
    root = str(subtask.storage.root)
    command = [sys.executable, "-c", _HOLD, str(subtask.directory), subtask.backend_type, root]
    holders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for holder in holders:  # one of them has the copy, the other a private one
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            holder.kill()
    assert subtask.read(subtask.epoch(a="1")) == {b"a": b"1"}
    assert {path.name for path in subtask.directory.iterdir()} == {"lock", subtask.backend_type}


def test_every_subtask_has_a_directory_of_its_own_below_the_root(tmp_path: Path) -> None:
    made = {
        subtask_directory(tmp_path, query, uid, subtask)
        for query in ("q1", "q2")
        for uid in ("count", "../../up", "a/b", "COUNT", "")
        for subtask in (0, 1)
    }
    assert len(made) == 20
    assert all(Path(os.path.normpath(path)).is_relative_to(tmp_path) for path in made)


def test_copies_lie_on_the_disks_that_spark_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk1,/disk2")
    assert {executor_local_root(n) for n in range(4)} == {Path("/disk1"), Path("/disk2")}


@pytest.mark.parametrize("value", [None, ""])
def test_copies_lie_in_the_temporary_directory_if_spark_gave_no_disks(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if value is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", value)
    assert executor_local_root(0) == Path(tempfile.gettempdir())


def test_a_copy_is_for_its_user_only(tmp_path: Path, storage: Storage, backend_type: str) -> None:
    """Scenario 45: also where everybody may read Spark's own directory."""
    directory = subtask_directory(tmp_path, "query", "op", 3)
    with open_local_copy(directory, backend_type, storage, None):
        assert directory.stat().st_mode & 0o777 == 0o700


_KILLED = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from pyspark_ckpt.formats.handle import decode_handle
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.operator.durable.local_copy import open_local_copy

class Killing(LocalStorage):
    @contextmanager
    def open_verified(self, reference):
        with super().open_verified(reference) as file:
            file.seek(0, 2)
            end = file.tell() * int(sys.argv[5]) // 8
            file.seek(0)
            class Watched:
                def read(self, size):
                    if file.tell() >= end:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return file.read(size)
            yield Watched()

handle = decode_handle(Path(sys.argv[4]).read_bytes())
with open_local_copy(Path(sys.argv[1]), sys.argv[2], Killing(Path(sys.argv[3])), handle):
    pass
"""


def killed_while_opening(subtask: Subtask, handle: Handle, eighths: int) -> None:
    """Kill a process that applies segments to the copy, after some eighths of the last one."""
    file = subtask.directory.with_name("handle")
    file.write_bytes(encode_handle(handle))
    places = [str(subtask.directory), subtask.backend_type, str(subtask.storage.root), str(file)]
    command = [sys.executable, "-c", _KILLED, *places, str(eighths)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def large_puts(value: str) -> dict[str, str | None]:
    return {f"k{number:02}": value * 700_000 for number in range(40)}


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("eighths", [1, 6])
def test_a_copy_that_was_being_brought_to_a_handle_is_completed_and_never_trusted(
    subtask: Subtask, eighths: int
) -> None:
    """A large segment is applied in steps; the process is killed between them."""
    subtask.inline = False
    before = subtask.epoch(a="1", k00="old")
    subtask.read(before)
    state = dict(subtask.state)
    first = subtask.epoch(**large_puts("x"))
    subtask.handle, subtask.state = before, dict(state)
    other = subtask.epoch(**{**large_puts("y"), "k00": None})
    killed_while_opening(subtask, other, eighths)
    place = subtask.directory / subtask.backend_type
    with open_backend(subtask.backend_type, place, create=False) as backend:
        version, half = backend.version(), backend.half_applied()
        assert (version, half) in [
            (before.version, None),
            (None, HalfApplied(before.version, other.version)),
        ]
        if half is not None:
            with pytest.raises(BackendCorruptError, match="was to be saved"):
                LocalSnapshots(subtask.directory).take(backend, subtask.backend_type, other, 9)
    if eighths == 6 and subtask.backend_type == "heap":  # RocksDB's steps are in memory until then
        assert half is not None
    args = (subtask.directory, subtask.backend_type, subtask.storage)
    with open_local_copy(*args, other) as copy:
        assert dict(copy.backend.scan()) == subtask.state
        assert not copy.is_rebuilt
    for wanted, expected in ((before, state), (other, subtask.state)):
        assert subtask.read(before) == state
        killed_while_opening(subtask, first, eighths)  # which is not in the lineage of either
        assert subtask.read(wanted) == expected


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("eighths", [1, 6])
def test_a_copy_killed_while_it_is_rebuilt_is_completed(subtask: Subtask, eighths: int) -> None:
    subtask.inline = False
    subtask.epoch(a="1", k00="old")
    subtask.epoch(base=True, b="1")
    last = subtask.epoch(**large_puts("x"))
    shutil.rmtree(subtask.directory)
    subtask.directory.mkdir()
    killed_while_opening(subtask, last, eighths)
    assert subtask.read(last) == subtask.state
