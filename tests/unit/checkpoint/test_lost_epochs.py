"""After a power loss Spark runs its newest epochs again: the old checkpoints are not of those."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from pyspark_ckpt.checkpoint.machine import Refusal
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.layout import segment_path
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.epochs import Epochs, restored_epoch


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    """A query with epochs 0 to 2, and chk-1 of epoch 2."""
    epochs = Epochs(LocalStorage(tmp_path / "location" / "pyspark_ckpt"), tmp_path / "location")
    for _ in range(3):
        epochs.commit()
    runner = epochs.runner()
    assert number_of(runner.take(epochs.committed_epoch, periodic=False)) == 1
    runner.close()
    return epochs


def number_of(taken: object) -> int:
    assert isinstance(taken, CompletedCheckpoint), taken
    return taken.checkpoint_id


def lose(epochs: Epochs, *lost: int) -> None:
    """Delete what Spark wrote in the newest epochs, and forget their handles."""
    for epoch in lost:
        for path in (f"offsets/{epoch}", f"commits/{epoch}", f"sources/0/{epoch}"):
            (epochs.location / path).unlink()
    del epochs.handles[min(lost) :]


def run_later(epochs: Epochs, **changed: object) -> int:
    """Run an epoch that has begun at another time."""
    epoch = epochs.commit()
    path = epochs.location / "offsets" / str(epoch)
    version, fields, offset = path.read_text().split("\n")
    text = json.dumps({**json.loads(fields), **(changed or {"batchTimestampMs": 2})})
    path.write_text("\n".join([version, text, offset]))
    return epoch


def test_an_epoch_that_ran_again_gets_a_checkpoint_of_its_own(epochs: Epochs) -> None:
    lose(epochs, 1, 2)
    run_later(epochs)
    assert run_later(epochs) == 2
    runner = epochs.runner()
    assert not runner.covers(2)
    assert number_of(runner.take(epochs.committed_epoch, periodic=False)) == 2
    assert runner.covers(2)
    assert runner.take(epochs.committed_epoch, periodic=False) is Refusal.NO_NEW_EPOCH
    runner.close()


def test_a_lower_epoch_than_that_of_a_lost_checkpoint_gets_one(
    epochs: Epochs, caplog: pytest.LogCaptureFixture
) -> None:
    """Both are retained, the order is that of their ids, and both restore."""
    lose(epochs, 1, 2)
    with caplog.at_level(logging.WARNING):
        runner = epochs.runner()
    assert "epoch 2 of chk-1 is not the one" in caplog.text
    run_later(epochs)
    assert number_of(runner.take(epochs.committed_epoch, periodic=False)) == 2
    newest = runner.newest()
    assert newest is not None
    assert (newest.checkpoint_id, newest.epoch) == (2, 1)
    store = CompletedCheckpoints(epochs.storage)
    assert [restored_epoch(store, epochs.storage, number) for number in store.ids()] == [2, 1]
    run_later(epochs)
    assert number_of(runner.take(epochs.committed_epoch, periodic=False)) == 3
    assert store.ids() == [2, 3], "the one of the lost epochs goes first"
    assert [restored_epoch(store, epochs.storage, number) for number in store.ids()] == [1, 2]
    runner.close()


@pytest.mark.parametrize("ends", [False, True], ids=["aborts", "discards"])
def test_a_lost_checkpoint_does_not_say_which_files_may_go(epochs: Epochs, ends: bool) -> None:
    """A subtask that had no rows before writes a file of a lower epoch than that checkpoint's."""
    lose(epochs, 1, 2)
    run_later(epochs)
    new = segment_path("count", 5, 1)
    epochs.storage.write(new, [b"state"])
    runner = epochs.runner()
    if ends:
        runner.discard_all()
    else:
        (epochs.location / "offsets" / "1").rename(epochs.location / "offsets" / "away")
        with pytest.raises(CheckpointAbortedError):
            runner.take(epochs.committed_epoch, periodic=False)
        runner.close()
    assert epochs.storage.exists(new)


def test_an_epoch_that_is_still_there_needs_no_other_checkpoint(
    epochs: Epochs, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after a restart in place, which changes the conf next to the offsets."""
    path = epochs.location / "offsets" / "2"
    path.write_text(path.read_text().replace('"1"', '"4"'))
    with caplog.at_level(logging.WARNING):
        runner = epochs.runner()
    assert runner.covers(2)
    assert runner.take(epochs.committed_epoch, periodic=False) is Refusal.NO_NEW_EPOCH
    assert not caplog.messages
    runner.close()


@pytest.mark.parametrize("content", ["", "v1", "v1\n{}"], ids=["empty", "cut", "no offsets"])
def test_offsets_that_a_power_loss_has_cut_are_of_no_checkpoint(
    epochs: Epochs, content: str
) -> None:
    (epochs.location / "offsets" / "2").write_text(content)
    runner = epochs.runner()
    assert not runner.covers(2)
    runner.close()


def test_an_epoch_whose_files_spark_has_deleted_is_not_lost(
    epochs: Epochs, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps those of the last hundred epochs, and checkpoints may be rarer."""
    for _ in range(2):
        epochs.commit()
    for epoch in range(3):
        for path in (f"offsets/{epoch}", f"commits/{epoch}"):
            (epochs.location / path).unlink()
    with caplog.at_level(logging.WARNING):
        runner = epochs.runner()
    assert not caplog.messages
    assert runner.covers(2)
    assert number_of(runner.take(epochs.committed_epoch, periodic=False)) == 2
    runner.close()
