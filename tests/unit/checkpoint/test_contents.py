"""Gathering an epoch: every file it refers to exists, or the checkpoint aborts and names it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.epochs import COUNT, RARE, Epochs, files_of, restored_epoch


class Query:
    """A query with one checkpoint, then an epoch with a segment and a base snapshot."""

    def __init__(self, base: Path) -> None:
        self.storage = LocalStorage(base / "location" / "pyspark_ckpt")
        self.epochs = Epochs(self.storage, base / "location")
        self.runner: CheckpointRunner = self.epochs.runner()
        self.store = CompletedCheckpoints(self.storage)
        for _ in range(3):
            self.epochs.commit()
        assert isinstance(self.take(), CompletedCheckpoint)
        self.epochs.commit()

    def take(self) -> object:
        return self.runner.take(self.epochs.committed_epoch, periodic=False)

    @property
    def newest(self) -> Handle:
        return self.epochs.handles[-1]

    def check_given_up(self, reason: AbortReason, *mentioned: str) -> None:
        """Take a checkpoint that must abort; the one before stays as it is."""
        with pytest.raises(CheckpointAbortedError) as caught:
            self.take()
        assert caught.value.reason is reason
        for text in mentioned:
            assert text in str(caught.value)
        assert self.store.ids() == [1]
        assert not self.storage.exists("chk-2/_metadata")
        assert restored_epoch(self.store, self.storage, 1) == 2


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, cut], ids=["missing", "cut"])
@pytest.mark.parametrize("kind", ["segment", "base"])
def test_a_file_that_is_not_there_whole_is_in_no_checkpoint(
    query: Query, kind: str, damage: Callable[[Path], None]
) -> None:
    assert query.newest.base is not None
    file = query.newest.segments[-1].file if kind == "segment" else query.newest.base.files[0].file
    assert file is not None
    damage(query.storage.path(file.path))
    query.check_given_up(AbortReason.CORRUPT_FILE, file.path)


@pytest.mark.parametrize(
    ("path", "mentioned"),
    [
        ("offsets/3", "offsets/3"),
        ("commits/3", "commits/3"),
        ("sources/0/2", "lacks the entries [2]"),
        ("state/2/0/4.delta", "does not have version 4"),
    ],
)
def test_what_spark_has_cleaned_away_is_named(query: Query, path: str, mentioned: str) -> None:
    (query.epochs.location / path).unlink()
    epoch = 3  # Spark says that it is committed, and loses the file afterwards
    with pytest.raises(CheckpointAbortedError, match="chk-2, epoch 3") as caught:
        query.runner.take(lambda: epoch, periodic=False)
    assert mentioned in str(caught.value)
    assert query.store.ids() == [1]


@pytest.mark.parametrize(
    "change",
    [{"query_id": ""}, {"uid": "rare"}, {"parallelism": 2}, {"subtask": 1}, {"epoch": 4}],
    ids=lambda change: next(iter(change)),
)
def test_handles_of_something_else_are_refused(query: Query, change: dict[str, object]) -> None:
    query.epochs.handles[-1] = msgspec.structs.replace(query.newest, **change)
    with pytest.raises(CheckpointAbortedError, match="handles of another query, operator"):
        query.take()
    assert query.store.ids() == [1]


def test_copies_that_were_lost_are_made_again(query: Query) -> None:
    copies = [p for p in files_of(query.storage, "shared") if "source-" in p or "native-" in p]
    assert len(copies) >= 4
    query.storage.delete(copies)
    taken = query.take()
    assert isinstance(taken, CompletedCheckpoint)
    assert restored_epoch(query.store, query.storage, 2) == 3


def test_a_copy_that_another_thread_has_named_is_durable_once_the_epoch_is_gathered(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A savepoint's thread may have linked the name, and not have synced it yet."""
    files = query.epochs.files(query.storage)
    files = dataclasses.replace(files, operators=StatefulOperators((COUNT, RARE)))
    named = query.epochs.snapshot(3, files).source_logs
    shared, synced, fsync = query.storage.root / "shared", [], os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", noted)
    assert query.epochs.snapshot(3, files).source_logs == named
    assert synced == [shared]  # once for all copies
