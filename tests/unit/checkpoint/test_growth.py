"""Files of several operators, some of them idle: enough files stay, and a bounded number.

The test knows which attempt wrote a file because it looked before and after it. No name is read, so
nothing that the cleaner decides by is trusted.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.operator.durable import base_snapshot
from pyspark_ckpt.operator.durable import local_snapshots as snapshot_upload
from pyspark_ckpt.operator.run import barrier
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.operator.materialized_subtask import MaterializedSubtask, Uploads

pytestmark = pytest.mark.further

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


def history(
    tmp_path: Path, seed: int, *, unmarked_until: int = 0, all_from: int = EPOCHS + 1
) -> Iterator[set[str]]:
    """Run epochs with a checkpoint after each; yield the files that are left.

    Names are as version 0.1.0 gave them until an epoch; all subtasks get rows from an epoch on.
    """
    chance = random.Random(seed)
    storage = LocalStorage(tmp_path / "checkpoints")
    files = CheckpointFiles(storage, CompletedCheckpoints(storage))
    watched = [
        Watched(tmp_path, storage, uid, subtask) for uid in ACTIVITY for subtask in range(SUBTASKS)
    ]
    retained: dict[int, set[str]] = {}
    unmarked: set[str] = set()
    for epoch in range(1, EPOCHS + 1):
        for each in watched:
            handle = each.subtask.handle
            if epoch >= all_from or ACTIVITY[handle.uid](chance, epoch, handle.subtask):
                with unmarked_names(active=epoch <= unmarked_until):
                    each.call(epoch, chance)
        if epoch <= unmarked_until:
            unmarked |= files_of(storage)
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
        may = must.union(unmarked, *(each.may_stay() for each in watched))
        assert left <= may, f"epoch {epoch}: left for nobody"
        yield left
    for each in watched:
        each.subtask.check()


@contextmanager
def unmarked_names(*, active: bool) -> Iterator[None]:
    """Have tasks name their files as version 0.1.0 did: without their operator."""
    with pytest.MonkeyPatch.context() as patch:
        if active:
            for module, name, form in (
                (barrier, "segment_path", "taskowned/segment-{}-{}-{}.chg"),
                (base_snapshot, "base_path", "shared/base-{}-{}-{}.chg"),
                (snapshot_upload, "snapshot_path", "shared/base-{}-{}-{}-{}.part"),
            ):
                patch.setattr(module, name, named(form))
        yield


def named(form: str) -> Callable[..., str]:
    def path(_uid: str, subtask: int, epoch: int, *snapshot_id: str) -> str:
        random_part = secrets.token_hex(4 if snapshot_id else 8)
        return form.format(subtask, epoch, *snapshot_id, random_part)

    return path


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_idle_operators_keep_no_files_of_others(tmp_path: Path, seed: int) -> None:
    counts = [len(left) for left in history(tmp_path, seed)]
    third = EPOCHS // 3
    before, after = max(counts[third : 2 * third]), max(counts[-third:])
    print(f"seed {seed}: at most {before} files, then {after}")
    assert after <= 1.5 * before


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.soak)])
def test_files_of_version_0_1_0_go_once_no_operator_can_need_them(
    tmp_path: Path, seed: int
) -> None:
    """Until then, files of subtasks with an idle namesake stay, but they do not grow in number."""
    lefts = list(history(tmp_path / "old", seed, unmarked_until=40, all_from=100))
    unmarked = [{path for path in left if not is_marked(path)} for left in lefts]
    assert unmarked[39] == lefts[39]
    assert all(after <= before for before, after in pairwise(unmarked[39:]))
    assert len(unmarked[98]) > 50
    assert unmarked[-1] == set()
    *_, left = history(tmp_path / "new", seed, all_from=100)
    assert len(lefts[-1]) == len(left)


def is_marked(path: str) -> bool:
    return re.match(r"[a-z]+/\.?[a-z]+-[0-9a-f]{12}-", path) is not None
