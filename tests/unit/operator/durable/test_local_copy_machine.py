"""Random histories of a subtask: the state at the committed handle is always the model's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from pyspark_ckpt.checkpoint.cleaning import garbage
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable.local_copy import LocalCopy, open_local_copy
from pyspark_ckpt.operator.durable.stored_files import make_base
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage
from state_backends import BACKEND_TYPES, Changes, StateBackend

State = dict[bytes, bytes]
Writes = dict[bytes, bytes | None]

WRITES = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c", b"k" * 600]), st.none() | st.binary(max_size=4), max_size=4
)
THRESHOLDS = st.sampled_from([0, 60, 1 << 20])
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Histories are long, and nothing here is about disks."""


@dataclass(frozen=True)
class Version:
    """A handle, and the subtask's state at it; ``None`` before the first epoch."""

    handle: Handle | None
    state: State


class SubtaskMachine(RuleBasedStateMachine):
    """What Spark and faults do to a subtask between its epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.root = Path(self.temporary.name)
        self.storage = LocalStorage(self.root / "checkpoints")
        self.directory = self.root / "local"
        self.backend_type = BACKEND_TYPES[0]
        self.epoch = 0
        self.retained = [Version(None, {})]

    @property
    def committed(self) -> Version:
        return self.retained[-1]

    def attempt(
        self, version: Version, writes: Writes, threshold: int, *, base: bool = False
    ) -> Version:
        """Run an epoch on top of `version`, as a subtask does."""
        with self.opened(version) as copy:
            check(copy.backend, version)
            handle = version.handle or Handle(
                query_id="q",
                uid="u",
                subtask=0,
                parallelism=1,
                max_parallelism=128,
                epoch=0,
                key_schema="{}",
            )
            if base:
                snapshot = make_base(self.storage, copy.backend, handle, self.epoch)
                handle = msgspec.structs.replace(handle, base=snapshot, segments=())
        changes = [Changes(list(writes), list(writes.values()))] if writes else []
        segment = make_segment(self.storage, handle, changes, self.epoch, threshold)
        segments = handle.segments if segment is None else (*handle.segments, segment)
        new = msgspec.structs.replace(handle, epoch=self.epoch, segments=segments)
        merged = version.state | writes
        return Version(new, {key: value for key, value in merged.items() if value is not None})

    def opened(self, version: Version) -> AbstractContextManager[LocalCopy]:
        return open_local_copy(self.directory, self.backend_type, self.storage, version.handle)

    @rule(writes=WRITES, threshold=THRESHOLDS, base=st.booleans())
    def commit(self, writes: Writes, threshold: int, base: bool) -> None:
        self.epoch += 1
        self.retained.append(self.attempt(self.committed, writes, threshold, base=base))

    @rule(writes=WRITES, lost=WRITES, threshold=THRESHOLDS, base=st.booleans())
    def commit_after_a_retry(
        self, writes: Writes, lost: Writes, threshold: int, base: bool
    ) -> None:
        self.epoch += 1
        before = self.committed
        self.attempt(before, lost, threshold, base=base)
        self.retained.append(self.attempt(before, writes, threshold))

    @rule()
    def fail_in_the_middle(self) -> None:
        with pytest.raises(InterruptedError), self.opened(self.committed) as copy:
            _raise_after(copy.backend.scan())

    @rule(writes=WRITES)
    def run_two_attempts_at_once(self, writes: Writes) -> None:
        self.epoch += 1
        with self.opened(self.committed) as copy:
            new = self.attempt(self.committed, writes, 0)
            check(copy.backend, self.committed)
        self.retained.append(new)

    @rule(after=st.integers(0, 3), which=st.integers(0, 3))
    def fail_while_it_is_brought_on(self, after: int, which: int) -> None:
        """Apply every segment in a separate step, so that a copy stays half applied."""
        version = self.retained[-1 - which % len(self.retained)]
        cut = CutStorage(self.root / "checkpoints", after)
        with suppress(InterruptedError), one_step_each():
            with open_local_copy(self.directory, self.backend_type, cut, version.handle) as copy:
                check(copy.backend, version)

    @rule()
    def lose_the_local_copy(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    @rule(backend_type=st.sampled_from(BACKEND_TYPES))
    def switch_the_backend(self, backend_type: str) -> None:
        self.backend_type = backend_type

    @rule(which=st.integers(0, 9))
    def damage_the_local_copy(self, which: int) -> None:
        files = sorted(self.directory.rglob("*.sst"))  # how many is up to RocksDB
        if files:
            path = files[which % len(files)]
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    @rule(data=st.data())
    def restart_from_an_older_version(self, data: st.DataObject) -> None:
        kept = data.draw(st.integers(1, len(self.retained)))
        self.retained = self.retained[:kept]

    @rule(kept=st.integers(1, 3))
    def clean(self, kept: int) -> None:
        self.retained = self.retained[-kept:]
        handles = [version.handle for version in self.retained if version.handle]
        needed = {file.path for handle in handles for file in handle.files()}
        self.storage.delete(garbage(self.storage, needed, self.epoch))
        assert {path.name for path in self.storage.root.glob("*/*")} == {
            Path(path).name for path in needed
        }

    @rule()
    def look(self) -> None:
        with self.opened(self.committed) as copy:
            check(copy.backend, self.committed)

    def teardown(self) -> None:
        for version in reversed(self.retained):
            with self.opened(version) as copy:
                check(copy.backend, version)
        self.temporary.cleanup()


class CutStorage(LocalStorage):
    """A storage that fails after a number of files."""

    def __init__(self, root: Path, files: int) -> None:
        super().__init__(root)
        self.files = files

    @contextmanager
    def open_verified(self, reference: FileReference) -> Iterator[BinaryIO]:
        if self.files == 0:
            raise InterruptedError
        self.files -= 1
        with super().open_verified(reference) as file:
            yield file


@contextmanager
def one_step_each() -> Iterator[None]:
    """Have the backends apply every part of changes in a separate step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("state_backends.rocksdb.STEP_BYTES", 1)
        patch.setattr("state_backends.heap.STEP_BYTES", 1)
        yield


def check(backend: StateBackend, version: Version) -> None:
    assert dict(backend.scan()) == version.state
    keys = [b"a", b"b", b"c", b"k" * 600]
    assert backend.get_many(keys) == [version.state.get(key) for key in keys]
    assert version.handle is None or backend.version() == version.handle.version


def _raise_after(scan: Iterator[tuple[bytes, bytes]]) -> None:
    next(scan, None)
    raise InterruptedError


TestSubtaskHistory = SubtaskMachine.TestCase
TestSubtaskHistory.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


class LongSubtaskMachine(SubtaskMachine):
    """The same for long runs."""


TestSubtaskForLong = pytest.mark.soak(LongSubtaskMachine.TestCase)
TestSubtaskForLong.settings = settings(max_examples=500, stateful_step_count=40, deadline=None)
