"""Random histories of a subtask's files: no needed file is missing, no other file is left.

Epochs, failed attempts, two attempts that both finish, uploads that end late or never, moves
between executors, checkpoints and cleaning that is interrupted, in any order. Scenarios 12 to 14,
16, 19 and 46 to 48.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles
from pyspark_ckpt.formats.handle import KEPT_PREDECESSORS, Handle
from pyspark_ckpt.formats.layout import snapshot_path, state_file
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from state_backends import BACKEND_TYPES
from tests.unit.operator.materialized_subtask import (
    ALWAYS,
    NEVER,
    MaterializedSubtask,
    State,
    Uploads,
    Writes,
)
from tests.unit.operator.subtask_epochs import IN_MEMORY

WRITES = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | st.binary(max_size=4), max_size=4
)
SETTINGS = st.sampled_from([
    ALWAYS,
    ALWAYS,
    NEVER,
    Materialization(interval_ms=10**15, min_changelog_bytes=10**15, max_segments=2),
])  # fmt: skip
UPLOADS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=2)
WORKERS = st.sampled_from([True, True, True, False])
"""Whether one lasts beyond its task."""

FOREIGN = ["shared/notes.txt", "taskowned/base-0-1-x.part", "shared/base-0-1-0123.part"]


class CrashingStorage(LocalStorage):
    """A storage that dies after some deletions."""

    deletions_left: int | None = None

    def delete(self, relatives: Iterable[str]) -> None:
        for relative in relatives:
            if self.deletions_left == 0:
                raise InterruptedError
            super().delete([relative])
            if self.deletions_left is not None:
                self.deletions_left -= 1


@dataclass(frozen=True)
class Retained:
    """A checkpoint and its state."""

    handle: Handle
    state: State


class SharedFilesMachine(RuleBasedStateMachine):
    """What a query, its executors and faults do to the files of one subtask."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.root = Path(self.temporary.name)
        self.storage = CrashingStorage(self.root / "checkpoints")
        handle = Handle(
            query_id="q", uid="u", subtask=0, parallelism=1, max_parallelism=8, epoch=0,
            key_schema="{}",
        )  # fmt: skip
        self.executors = [self.root / "executor 0", self.root / "executor 1"]
        self.backends = list(BACKEND_TYPES)
        self.uploads = Uploads()
        self.subtask = MaterializedSubtask(
            self.executors[0], self.backends[0], self.storage, handle, uploads=self.uploads
        )
        self.files = CheckpointFiles(self.storage, CompletedCheckpoints(self.storage))
        self.retained: dict[int, Retained] = {}
        self.parent: Handle | None = None
        self.others: list[tuple[Handle, Handle]] = []
        for name in FOREIGN:
            path = self.storage.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    @property
    def waiting(self) -> list[Path]:
        return list(self.uploads.waiting)

    @rule(
        writes=WRITES, due=SETTINGS, fails=st.booleans(), lasting=WORKERS, uploads=UPLOADS,
        twin=st.booleans(), start=st.integers(0, 1),
    )  # fmt: skip
    def commit(
        self,
        writes: Writes,
        due: Materialization,
        fails: bool,
        lasting: bool,
        uploads: list[tuple[int, int]],
        twin: bool,
        start: int,
    ) -> None:
        """Run an epoch, perhaps twice, while some of the waiting uploads run.

        It may start from the handle of an attempt that did not count.
        """
        for which, files in uploads:
            self.upload(which, files)
        background, self.subtask.uploads = self.subtask.uploads, None
        if lasting:
            self.subtask.uploads = background
        self.subtask.settings = due
        known = [(self.subtask.handle, self.parent), *self.others]
        before, parent = known[start % len(known)]
        others = []
        if twin:
            other = next(each for each, its_parent in reversed(known) if its_parent is parent)
            others.append((self.attempted_elsewhere(other, writes), other))
        self.subtask.handle = before
        if fails:
            self.subtask.attempt({b"lost": b"1", **writes})
        self.subtask.epoch(writes)
        self.parent, self.others = before, others
        self.subtask.uploads = background

    def attempted_elsewhere(self, before: Handle, writes: Writes) -> Handle:
        """Run the epoch on the other executor too, from a handle that it has."""
        here = self.subtask.directory
        self.subtask.handle, self.subtask.directory = before, self.executors[1]
        try:
            return self.subtask.attempt(writes)
        finally:
            self.subtask.directory = here

    def upload(self, which: int, files: int) -> None:
        """Continue any upload, also one whose snapshot was discarded long ago."""
        if self.waiting:
            directory = self.waiting[which % len(self.waiting)]
            for _ in range(files):
                if not self.uploads.step(directory):
                    break

    @rule(kept=st.integers(1, 3), deletions=st.none() | st.integers(0, 6), files=st.integers(0, 2))
    def checkpoint_and_clean(self, kept: int, deletions: int | None, files: int) -> None:
        """The driver dies after so many deletions, unless it lives."""
        self.upload(-1, files)
        self.checkpoint()
        self.clean(kept, deletions)

    def clean(self, kept: int, deletions: int | None = None) -> None:
        self.retained = dict(list(self.retained.items())[-kept:])
        on_their_way = self.files_of_the_pending_snapshot()
        self.storage.deletions_left = deletions
        with suppress(InterruptedError):
            self.files.clean(list(self.retained), [], min(self.retained, default=0))
        self.storage.deletions_left = None
        if deletions is not None:
            self.files = CheckpointFiles(self.storage, CompletedCheckpoints(self.storage))
        assert on_their_way <= self.files_of_the_pending_snapshot()

    def files_of_the_pending_snapshot(self) -> set[str]:
        """Return the files that a later epoch may pick up."""
        pending = self.subtask.handle.pending
        if pending is None:
            return set()
        files = {name: state_file(name) for name in self.storage.list("shared")}
        return {
            name
            for name, file in files.items()
            if file is not None and file.snapshot_id == pending.snapshot_id
        }

    def checkpoint(self) -> None:
        number = max(self.retained, default=0) + 1
        handle = self.subtask.handle
        metadata = self.metadata(number, handle)
        for reference in metadata.files():
            self.storage.verify_size(reference)
        self.files.store.reserve(number)
        self.files.store.add(number, metadata)
        self.retained[number] = Retained(handle, dict(self.subtask.state))

    @rule(data=st.data())
    def suffer(self, data: st.DataObject) -> None:
        """Let something happen to an executor or to the query."""
        data.draw(st.sampled_from([
            self.kill_an_upload, self.move, self.switch_the_backend, self.lose_the_executor,
            self.lose_the_copy_but_not_the_snapshots, self.start_again,
        ]))()  # fmt: skip
        self.subtask.check()

    def kill_an_upload(self) -> None:
        if self.waiting:
            directory = self.waiting[0]
            self.uploads.drop(directory)
            folder, name = snapshot_path("u", 0, self.subtask.number, directory.name).split("/")
            torn = self.storage.root / folder / f".{name}.01234567.tmp"
            torn.write_bytes(b"half of it")

    def move(self) -> None:
        self.executors.reverse()
        self.subtask.directory = self.executors[0]

    def switch_the_backend(self) -> None:
        self.backends.reverse()
        self.subtask.backend_type = self.backends[0]

    def lose_the_executor(self) -> None:
        for directory in self.waiting:
            if directory.is_relative_to(self.subtask.directory):
                self.uploads.drop(directory)
        shutil.rmtree(self.subtask.directory, ignore_errors=True)

    def lose_the_copy_but_not_the_snapshots(self) -> None:
        shutil.rmtree(self.subtask.directory / self.subtask.backend_type, ignore_errors=True)

    def start_again(self) -> None:
        self.subtask.run_id += "'"
        self.files = CheckpointFiles(self.storage, CompletedCheckpoints(self.storage))

    @invariant()
    def nothing_that_is_referred_to_is_missing(self) -> None:
        others = (other for other, _ in self.others)
        for handle in (self.subtask.handle, *others, *(r.handle for r in self.retained.values())):
            for reference in handle.files():
                self.storage.verify_size(reference)

    @invariant()
    def foreign_files_stay(self) -> None:
        assert all(self.storage.exists(name) for name in FOREIGN)

    def teardown(self) -> None:
        """Let everything end, clean up, and check what is left."""
        while self.waiting:
            self.upload(0, 100)
        for _ in self.executors:
            self.move()
            self.start_again()
            self.subtask.epoch({b"a": b"last"}, NEVER)
        for _ in range(KEPT_PREDECESSORS):
            self.subtask.epoch({b"a": b"last"}, NEVER)
        self.others = []
        self.checkpoint()
        self.clean(2)
        self.nothing_that_is_referred_to_is_missing()
        needed = {
            reference.path for each in self.retained.values() for reference in each.handle.files()
        }
        found = {
            f"{directory}/{name}"
            for directory in ("shared", "taskowned")
            for name in self.storage.list(directory)
        }
        assert found - set(FOREIGN) == needed
        for each in self.retained.values():
            shutil.rmtree(self.subtask.directory)
            assert self.subtask.read(each.handle) == each.state
        self.temporary.cleanup()

    def metadata(self, number: int, handle: Handle) -> CheckpointMetadata:
        operator = OperatorMetadata(
            operator_id=0, uid="u", parallelism=1, max_parallelism=8, key_schema="{}",
            backend="rocksdb", handles=(handle,),
        )  # fmt: skip
        return CheckpointMetadata(
            checkpoint_id=number, kind=CheckpointKind.CHECKPOINT,
            root="..", epoch=self.subtask.number,
            query_id="q", query_name=None, parent=None, spark_version="", library_version="",
            triggered_at_ms=1, completed_at_ms=2, watermark_ms=3, offsets_entry="",
            commits_entry="", source_logs=(), operators=(operator,),
        )  # fmt: skip


TestSharedFiles = SharedFilesMachine.TestCase
TestSharedFiles.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)


class LongSharedFilesMachine(SharedFilesMachine):
    """The same for long runs."""


TestSharedFilesForLong = pytest.mark.soak(LongSharedFilesMachine.TestCase)
TestSharedFilesForLong.settings = settings(max_examples=500, stateful_step_count=60, deadline=None)
