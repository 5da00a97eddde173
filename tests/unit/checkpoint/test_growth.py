"""Files of several operators, some of them idle: enough files stay, and a bounded number.

The test knows which attempt wrote a file because it looked before and after it. No name is read, so
nothing that the cleaner decides by is trusted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.operator.materialized_subtask import MaterializedSubtask, Uploads

pytestmark = pytest.mark.slow

SUBTASKS = 2
RETAINED = 3
EPOCHS = 120
EVERY_FEW = Materialization(interval_ms=10**15, min_changelog_bytes=10**15, max_segments=4)

ACTIVITY: dict[str, Callable[[random.Random, int, int], bool]] = {
    "busy": lambda _random, _epoch, _subtask: True,
    "sparse": lambda chance, _epoch, _subtask: chance.random() < 0.1,
    "at first": lambda _random, epoch, _subtask: epoch < 2,
    "half": lambda _random, epoch, subtask: subtask == 0 or epoch == 1,
}
"""By operator whether a subtask gets rows in an epoch."""


class Watched:
    """A subtask, its files by the call that wrote them, and the files its attempts refer to."""

    def __init__(self, root: Path, storage: LocalStorage, uid: str, subtask: int) -> None:
        handle = Handle(
            query_id="q", uid=uid, subtask=subtask, parallelism=SUBTASKS, max_parallelism=8,
            epoch=0, key_schema="{}",
        )  # fmt: skip
        self.uploads = Uploads()
        self.subtask = MaterializedSubtask(
            root / uid / str(subtask), "heap", storage, handle, EVERY_FEW, self.uploads
        )
        self.storage = storage
        self.calls: list[set[str]] = []
        self.handles: list[Handle] = []
        self.loser: Handle | None = None

    @property
    def handle(self) -> Handle | None:
        return self.handles[-1] if self.handles else None

    def call(self, epoch: int, chance: random.Random) -> None:
        """Run an epoch, sometimes twice; then both attempts finish."""
        before = files_of(self.storage)
        self.subtask.number = epoch - 1
        writes = {bytes([chance.randrange(9)]): chance.randbytes(40) for _ in range(2)}
        self.loser = self.subtask.attempt(writes) if chance.random() < 0.2 else None
        self.handles.append(self.subtask.epoch(writes))
        for directory in list(self.uploads.waiting):
            if chance.random() < 0.8:
                while self.uploads.step(directory):
                    pass
        self.calls.append(files_of(self.storage) - before)

    def must_stay(self) -> set[str]:
        """Return the files of every attempt from which the next epoch may start."""
        attempts = [self.handle, self.loser]
        return {path for each in attempts if each is not None for path in paths_in(each)}

    def may_stay(self) -> set[str]:
        """Return the files that the last calls wrote or referred to."""
        referred = [paths_in(handle) for handle in self.handles[-6:]]
        return set().union(*referred, *self.calls[-6:])


def paths_in(thing: Any) -> set[str]:
    """Return every value under the key `path`, at any depth of a stored structure."""
    if not isinstance(thing, (dict, list)):
        thing = msgspec.json.decode(msgspec.json.encode(thing))
    found = set()
    parts = list(thing.items()) if isinstance(thing, dict) else [("", each) for each in thing]
    for name, part in parts:
        if name == "path":
            found.add(part)
        elif isinstance(part, (dict, list)):
            found |= paths_in(part)
    return found


def files_of(storage: LocalStorage) -> set[str]:
    return {
        path.relative_to(storage.root).as_posix()
        for directory in ("shared", "taskowned")
        for path in (storage.root / directory).glob("*")
    }


def metadata(number: int, epoch: int, watched: list[Watched]) -> CheckpointMetadata:
    handles: dict[str, list[Handle]] = {}
    for each in watched:
        if each.handle is not None:
            handles.setdefault(each.handle.uid, []).append(each.handle)
    operators = tuple(
        OperatorMetadata(
            operator_id=place, uid=uid, parallelism=SUBTASKS, max_parallelism=8, key_schema="{}",
            backend="heap", handles=tuple(those),
        )
        for place, (uid, those) in enumerate(handles.items())
    )  # fmt: skip
    return CheckpointMetadata(
        checkpoint_id=number, kind=CheckpointKind.CHECKPOINT, root="..", epoch=epoch, query_id="q",
        query_name=None, parent=None, spark_version="", library_version="", triggered_at_ms=1,
        completed_at_ms=2, watermark_ms=3, offsets_entry="", commits_entry="", source_logs=(),
        operators=operators,
    )  # fmt: skip


def history(tmp_path: Path, seed: int) -> Iterator[set[str]]:
    """Run epochs with a checkpoint after each; yield the files that are left."""
    chance = random.Random(seed)
    storage = LocalStorage(tmp_path / "checkpoints")
    files = CheckpointFiles(storage, CompletedCheckpoints(storage))
    watched = [
        Watched(tmp_path, storage, uid, subtask) for uid in ACTIVITY for subtask in range(SUBTASKS)
    ]
    retained: dict[int, set[str]] = {}
    for epoch in range(1, EPOCHS + 1):
        for each in watched:
            handle = each.subtask.handle
            if ACTIVITY[handle.uid](chance, epoch, handle.subtask):
                each.call(epoch, chance)
        written = metadata(epoch, epoch, watched)
        files.store.reserve(epoch)
        files.store.add(epoch, written)
        files.remember(epoch, written)
        retained[epoch] = set().union(*(paths_in(e.handle) for e in watched if e.handle))
        retained = dict(list(retained.items())[-RETAINED:])
        files.clean(list(retained), [], min(retained))
        left = files_of(storage)
        referred = set().union(*retained.values())
        must = referred.union(*(each.must_stay() for each in watched))
        assert must <= left, f"epoch {epoch}: needed and gone"
        may = must.union(*(each.may_stay() for each in watched))
        assert left <= may, f"epoch {epoch}: left for nobody"
        yield left
    for each in watched:
        each.subtask.check()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_idle_operators_keep_no_files_of_others(tmp_path: Path, seed: int) -> None:
    counts = [len(left) for left in history(tmp_path, seed)]
    third = EPOCHS // 3
    before, after = max(counts[third : 2 * third]), max(counts[-third:])
    print(f"seed {seed}: at most {before} files, then {after}")
    assert after <= 1.5 * before
