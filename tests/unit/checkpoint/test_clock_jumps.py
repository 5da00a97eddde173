"""Scenario 29: the wall clock jumps. Checkpoints follow ids and a clock that never goes back."""

from __future__ import annotations

import os
import time

import pytest

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.layout import segment_path
from pyspark_ckpt.history.frames import history
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.history.records import CompletedCheckpoint, Savepoint
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.epochs import NUM_RETAINED, QUERY_ID, Epochs, files_of, restored_epoch

HOUR_MS = 3_600_000
JUMPS = {
    "forward": [0, HOUR_MS, HOUR_MS, HOUR_MS],
    "back": [0, -HOUR_MS, -HOUR_MS, -HOUR_MS],
    "to and fro": [0, HOUR_MS, -HOUR_MS, 0],
}


class WallClock:
    """The real clock, wrong by some time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wrong_by_ms = 0
        time_ns = time.time_ns
        patch.setattr(time, "time_ns", lambda: time_ns() + self.wrong_by_ms * 1_000_000)


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


@pytest.mark.parametrize("jumps", JUMPS.values(), ids=JUMPS)
def test_ids_order_and_retention_do_not_follow_the_wall_clock(
    storage: LocalStorage, wall_clock: WallClock, jumps: list[int]
) -> None:
    """Each jump comes with a restart; the next driver is of the time before it."""
    epochs, store = Epochs(storage), CompletedCheckpoints(storage)
    taken: list[CompletedCheckpoint] = []
    for wrong_by_ms in jumps:
        runner = epochs.runner()
        assert runner.newest() == (taken[-1] if taken else None)
        for jump_ms in (0, wrong_by_ms):  # before and after it, in one run
            wall_clock.wrong_by_ms += jump_ms
            epochs.commit()
            before = runner.due_in_ms()
            one = runner.take(epochs.committed_epoch, periodic=False)
            assert isinstance(one, CompletedCheckpoint)
            assert 0 <= before <= HOUR_MS, "the interval is of the other clock"
            taken.append(one)
        runner.close()
    assert [one.checkpoint_id for one in taken] == list(range(1, len(taken) + 1))
    assert store.ids() == [one.checkpoint_id for one in taken[-NUM_RETAINED:]]
    for one in taken[-NUM_RETAINED:]:
        assert restored_epoch(store, storage, one.checkpoint_id) == one.epoch


@pytest.mark.parametrize("jumps", JUMPS.values(), ids=JUMPS)
def test_history_is_in_the_order_of_ids(
    storage: LocalStorage, wall_clock: WallClock, jumps: list[int]
) -> None:
    """Savepoints and failures are listed where they happened; each jump comes with a restart."""
    epochs = Epochs(storage)
    for wrong_by_ms in jumps:
        wall_clock.wrong_by_ms += wrong_by_ms
        runner = epochs.runner(num_retained=100)
        log = HistoryLog(storage, runner.last_id())
        runner.listeners.add(log)
        epochs.commit()
        runner.take(epochs.committed_epoch, periodic=False)
        now_ms = time.time_ns() // 1_000_000
        log.note_savepoint(Savepoint("sp", epochs.commit(), QUERY_ID, now_ms, now_ms, 1, 1))
        epochs.commit()
        lost = epochs.handles[-1].segments[-1].file
        assert lost is not None
        storage.delete([lost.path])
        with pytest.raises(CheckpointAbortedError):
            runner.take(epochs.committed_epoch, periodic=False)
        runner.close()
    shown = history(str(storage.root))
    one_run = [("checkpoint", "completed"), ("savepoint", "completed"), ("checkpoint", "aborted")]
    assert list(zip(shown.kind, shown.status, strict=True)) == one_run * len(jumps)
    assert list(shown.checkpoint_id.dropna()) == list(range(1, 2 * len(jumps) + 1))


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_jump_within_a_checkpoint_changes_neither_its_timeout_nor_its_duration(
    storage: LocalStorage, wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    epochs = Epochs(storage)
    snapshot = epochs.snapshot

    def jumping(*args: object) -> object:
        wall_clock.wrong_by_ms += jump_ms
        return snapshot(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(epochs, "snapshot", jumping)
    runner = epochs.runner(timeout_ms=HOUR_MS // 2)
    epochs.commit()
    one = runner.take(epochs.committed_epoch, periodic=False)
    assert isinstance(one, CompletedCheckpoint)
    assert 0 <= one.duration_ms < HOUR_MS // 2
    runner.close()


@pytest.mark.parametrize("age_s", [10**6, -(10**6)], ids=["old", "from the future"])
def test_times_of_files_decide_nothing(storage: LocalStorage, age_s: int) -> None:
    """Live files and files of a later epoch stay, whatever their times are."""
    epochs = Epochs(storage)
    runner = epochs.runner()
    unpublished: list[str] = []
    for _ in range(10):
        epochs.commit()
        unpublished.append(storage.write(segment_path("count", 0, len(epochs.handles)), []).path)
        for path in files_of(storage):
            at = time.time() - age_s
            os.utime(storage.root / path, (at, at))
        assert isinstance(runner.take(epochs.committed_epoch, periodic=False), CompletedCheckpoint)
        assert storage.exists(unpublished[-1])
    store = CompletedCheckpoints(storage)
    kept = {reference.path for number in store.ids() for reference in store.read(number).files()}
    kept |= epochs.handles[-1].kept_files()
    left = {path for path in files_of(storage) if path.startswith(("shared/", "taskowned/"))}
    of_last_epochs = unpublished[-6:]  # another attempt may have them in its handle
    assert left - set(of_last_epochs) == kept
    assert left & set(unpublished) == set(of_last_epochs)
    runner.close()
