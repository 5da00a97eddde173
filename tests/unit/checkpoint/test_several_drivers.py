"""Several drivers, readers and discarded checkpoints: what one needs, another one leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.machine import Refusal
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, FencedError
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.settings import HighAvailability
from pyspark_ckpt.snapshot.pin import ReaderPin
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from pyspark_ckpt.stores.open import find_store
from pyspark_ckpt.stores.reader_pins import encode_pin, pin_name
from tests.faults.epochs import Epochs, restored_epoch
from tests.unit.checkpoint.runner_query import Paused, Query, directories, failed, take
from tests.unit.checkpoint.still_clock import StillClock


def test_of_two_drivers_the_first_is_fenced_and_touches_nothing(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    """Scenario 23: within one process."""
    one = start()
    query.commit()
    take(one, query)
    other = start()
    query.commit()
    theirs = take(other, query)
    assert isinstance(theirs, CompletedCheckpoint)
    assert theirs.checkpoint_id == 2
    stored = read_metadata(LocalStorage(Path(theirs.path)))
    query.commit()
    before = sorted(query.storage.root.rglob("*"))
    for _ in range(2):
        assert failed(one, query).reason is AbortReason.FENCED
    assert not one.tolerance_is_exceeded
    with pytest.raises(FencedError):
        one.discard_all()
    assert sorted(query.storage.root.rglob("*")) == before
    assert read_metadata(LocalStorage(Path(theirs.path))) == stored
    take(other, query)
    assert directories(query) == ["chk-2", "chk-3"]


def test_no_file_goes_while_the_driver_before_may_still_publish_its_checkpoint(
    storage: LocalStorage,
) -> None:
    """Scenario 24: it was paused after its last check; the next driver's checkpoint fails."""
    epochs, paused = Epochs(storage), Paused(storage.root, "write chk-2/_metadata")
    one = epochs.runner(paused, num_retained=1)
    epochs.commit()
    one.take(epochs.committed_epoch, periodic=False)
    epochs.commit()
    taking = paused.begin(lambda: one.take(epochs.committed_epoch, periodic=False))
    other = epochs.runner(num_retained=1)
    lost = epochs.handles[-1].segments[-1].file
    assert lost is not None
    content = storage.read(lost.path)
    storage.delete([lost.path])  # cannot be read for a moment
    with pytest.raises(CheckpointAbortedError, match=lost.path):
        other.take(epochs.committed_epoch, periodic=False)
    storage.write(lost.path, [content])
    paused.go_on()
    taken = taking.result(timeout=60)
    assert isinstance(taken, CompletedCheckpoint)
    store = CompletedCheckpoints(storage)
    assert restored_epoch(store, storage, taken.checkpoint_id) == 1
    epochs.commit()
    following = other.take(epochs.committed_epoch, periodic=False)
    assert isinstance(following, CompletedCheckpoint)
    assert store.ids() == [4]
    assert restored_epoch(store, storage, 4) == 2


def test_a_checkpoint_of_the_driver_before_is_refused_once_a_newer_one_is_complete(
    storage: LocalStorage,
) -> None:
    """Scenario 24: its files are deleted then, and it stays refused when it takes over again."""
    epochs, paused = Epochs(storage), Paused(storage.root, "write chk-2/_metadata")
    one = epochs.runner(paused, num_retained=3)
    epochs.commit()
    one.take(epochs.committed_epoch, periodic=False)
    epochs.commit()
    taking = paused.begin(lambda: one.take(epochs.committed_epoch, periodic=False))
    other = epochs.runner()
    other.take(epochs.committed_epoch, periodic=False)
    paused.go_on()
    with pytest.raises(CheckpointAbortedError, match="another driver"):
        taking.result(timeout=60)
    one.take_over()
    epochs.commit()
    one.take(epochs.committed_epoch, periodic=False)
    store = CompletedCheckpoints(storage)
    assert store.ids() == [1, 3, 4]
    assert [restored_epoch(store, storage, number) for number in store.ids()] == [0, 1, 2]


def test_a_run_that_gives_way_does_not_take_the_fence_back(storage: LocalStorage) -> None:
    """The next run of its process has the fence, and keeps it, whatever the former one does."""
    epochs = Epochs(storage)
    former = epochs.runner()
    epochs.commit()
    former.take(epochs.committed_epoch, periodic=False)
    former.fence.give_way()
    former.lease.check()  # the next run has not begun
    following = epochs.runner()
    assert not former.take_over()
    following.lease.check()
    epochs.commit()
    with pytest.raises(CheckpointAbortedError, match="another driver"):
        former.take(epochs.committed_epoch, periodic=False)
    taken = following.take(epochs.committed_epoch, periodic=False)
    assert isinstance(taken, CompletedCheckpoint)
    assert following.take_over()  # as every other run
    following.lease.check()


@pytest.mark.parametrize("another_came", [False, True])
def test_a_run_takes_the_fence_back_from_a_next_run_that_could_not_be_started(
    storage: LocalStorage, *, another_came: bool
) -> None:
    """Unless another driver has it by now: that one keeps it."""
    epochs = Epochs(storage)
    former = epochs.runner()
    epochs.commit()
    former.take(epochs.committed_epoch, periodic=False)
    former.fence.give_way()
    following = epochs.runner()
    with pytest.raises(FencedError):
        former.lease.check()
    newest = epochs.runner() if another_came else former
    if another_came:
        with pytest.raises(FencedError):
            former.fence.take_back(following.fence.store)
    else:
        former.fence.take_back(following.fence.store)
    newest.lease.check()
    with pytest.raises(FencedError):
        following.lease.check()
    epochs.commit()
    assert isinstance(newest.take(epochs.committed_epoch, periodic=False), CompletedCheckpoint)


def test_a_driver_that_takes_over_again_relies_on_no_copy_that_another_may_delete(
    storage: LocalStorage,
) -> None:
    """Scenario 24: the other driver has found garbage, and is paused before it deletes it."""
    epochs, paused = Epochs(storage), Paused(storage.root, "delete shared/source-")
    one = epochs.runner(num_retained=1)
    epochs.commit()
    one.take(epochs.committed_epoch, periodic=False)
    epochs.commit()
    other = epochs.runner(paused, num_retained=1)
    taking = paused.begin(lambda: other.take(epochs.committed_epoch, periodic=False))
    one.take_over()
    epochs.commit()
    taken = one.take(epochs.committed_epoch, periodic=False)
    assert isinstance(taken, CompletedCheckpoint)
    paused.go_on()
    taking.result(timeout=60)
    assert restored_epoch(CompletedCheckpoints(storage), storage, taken.checkpoint_id) == 2


def test_discarding_refuses_what_the_driver_before_may_still_publish(
    storage: LocalStorage,
) -> None:
    """Scenario 24: it would be complete, without its files."""
    epochs, paused = Epochs(storage), Paused(storage.root, "write chk-2/_metadata")
    one = epochs.runner(paused)
    epochs.commit()
    one.take(epochs.committed_epoch, periodic=False)
    epochs.commit()
    taking = paused.begin(lambda: one.take(epochs.committed_epoch, periodic=False))
    other = epochs.runner()
    other.close()
    for _ in range(2):
        other.discard_all()
    paused.go_on()
    with pytest.raises(CheckpointAbortedError, match="another driver"):
        taking.result(timeout=60)
    store = CompletedCheckpoints(storage)
    assert (store.ids(), store.last_id()) == ([], 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_complete"), [("files", True), ("files", False), ("kubernetes", False)]
)
def test_a_paused_driver_discards_nothing_of_the_next_driver(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, *, is_complete: bool
) -> None:
    """Scenario 24: at each operation; the next one's checkpoint is complete, or half written."""
    settings: dict[str, Any] = {}
    if kind == "kubernetes":
        maps = request.getfixturevalue("kubernetes").maps
        settings = {"high_availability_type": HighAvailability.KUBERNETES}
    for step in itertools.count():
        root = tmp_path / str(step)
        epochs, paused = Epochs(LocalStorage(root)), Paused(root)
        one = epochs.runner(paused, **settings)
        epochs.commit()
        one.take(epochs.committed_epoch, periodic=False)
        one.close()
        paused.pause_at("", before=step)
        discarding = paused.begin(one.discard_all)
        if discarding.done():
            break
        its_storage = Paused(root, "written chk-*/_metadata")
        other = epochs.runner(its_storage, **settings)
        epochs.commit()
        take_one = partial(other.take, epochs.committed_epoch, periodic=False)
        taking = its_storage.begin(take_one)
        if is_complete:
            its_storage.go_on()
            taking.result(timeout=60)
        paused.go_on()
        assert isinstance(discarding.exception(timeout=60), FencedError | None)
        its_storage.go_on()
        taken = taking.result(timeout=60)
        assert isinstance(taken, CompletedCheckpoint)
        with closing(find_store(LocalStorage(root))) as store:
            assert taken.checkpoint_id in store.ids()
            assert restored_epoch(store, LocalStorage(root), taken.checkpoint_id) == 1
        if settings:
            maps.clear()
    assert step > 5
    assert discarding.exception() is None


def test_a_write_that_hangs_completes_nothing_that_was_discarded(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 6: ``_metadata`` of an expired checkpoint is written after its files are deleted."""
    epochs, clock = Epochs(storage), StillClock()
    monkeypatch.setattr("pyspark_ckpt.checkpoint.runner.monotonic_ms", clock)
    paused = Paused(storage.root, "write chk-2/_metadata")
    runner = epochs.runner(paused, timeout_ms=1_000)
    epochs.commit()
    runner.take(epochs.committed_epoch, periodic=False)
    epochs.commit()
    taking = paused.begin(lambda: runner.take(epochs.committed_epoch, periodic=False))
    clock.now_ms += 1_000
    with pytest.raises(CheckpointAbortedError, match="expired while writing"):
        taking.result(timeout=60)
    runner.close()
    runner.discard_all()
    paused.go_on()
    paused.await_write()
    store = CompletedCheckpoints(storage)
    assert (store.ids(), store.last_id()) == ([], 3)
    following = epochs.runner().take(epochs.committed_epoch, periodic=False)
    assert isinstance(following, CompletedCheckpoint)
    assert restored_epoch(store, storage, following.checkpoint_id) == 1


def test_discarded_checkpoints_leave_the_state_and_the_highest_id(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    runner = start()
    for _ in range(3):
        query.commit()
        take(runner, query)
    last = query.segments[-1].path
    query.commit()  # and a running epoch's file
    runner.close()
    assert take(runner, query) is Refusal.QUERY_ENDED
    runner.discard_all()
    assert directories(query) == ["chk-4"]
    assert query.storage.list("chk-4") == ["_author"]
    assert query.storage.exists(last)
    assert query.storage.exists(query.segments[-1].path)
    assert not query.storage.exists(query.segments[0].path)
    assert not [name for name in query.storage.list("shared") if name.startswith("source")]
    runner = start()
    assert runner.newest() is None
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == 5


@pytest.mark.parametrize("error", [PermissionError("not yours"), None])
def test_a_pin_that_cannot_be_read_only_puts_cleaning_off(
    query: Query,
    start: Callable[..., CheckpointRunner],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception | None,
) -> None:
    """A reader of another account may write one, or a disk may damage one: nobody's query ends."""
    runner = start()
    query.commit()
    assert isinstance(take(runner, query), CompletedCheckpoint)
    name = pin_name(now_ms() + 600_000, "0123456789abcdef")
    query.storage.write(name, [b"{" if error is None else encode_pin("somebody")])
    read = LocalStorage.chunks

    def not_permitted(self: LocalStorage, path: str) -> Iterator[bytes]:
        if error is not None and path == name:
            raise error
        return read(self, path)

    monkeypatch.setattr(LocalStorage, "chunks", not_permitted)
    stays = query.segments[0].path
    for _ in range(6):
        query.commit()
        assert isinstance(take(runner, query), CompletedCheckpoint)
    runner.close()
    runner.discard_all()
    runner = start()
    query.commit()
    assert isinstance(take(runner, query), CompletedCheckpoint)
    assert query.storage.exists(stays)
    assert "it is unknown which files a reader needs" in caplog.text
    query.storage.delete([name])
    query.commit()
    take(runner, query)
    assert not query.storage.exists(stays)


def test_what_a_reader_has_pinned_outlives_discarded_checkpoints(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    runner = start()
    query.commit()
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    pin = ReaderPin(RestoreSource(taken.path))
    (log,) = read_metadata(LocalStorage(Path(taken.path))).source_logs
    runner.close()
    runner.discard_all()
    assert query.storage.exists(log.file.path)
    pin.close()
    runner.discard_all()
    assert directories(query) == ["chk-2"]
