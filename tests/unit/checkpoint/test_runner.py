"""The runner: real threads, real files, no Spark; faults come from a storage or a named pipe."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.machine import Refusal, Subtask
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, FencedError
from pyspark_ckpt.formats.layout import segment_path, source_log_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, SourceLog
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.snapshot.pin import ReaderPin
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.epochs import Epochs, restored_epoch

QUERY = "0123456789"
SUBTASKS = frozenset(Subtask("count", number) for number in range(4))
TIMEOUT_MS = 700


class FaultyStorage(LocalStorage):
    """A storage that fails or hangs when ``_metadata`` is written, before or after it exists."""

    before: Exception | None = None
    after: Exception | None = None
    pipe_after: Path | None = None

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        is_metadata = relative.endswith("/_metadata")
        if is_metadata and self.before is not None:
            raise self.before
        written = super().write(relative, chunks)
        if is_metadata and self.pipe_after is not None:
            self.pipe_after.read_bytes()
        if is_metadata and self.after is not None:
            raise self.after
        return written


class Paused(LocalStorage):
    """A storage whose driver is paused before it writes or deletes one file."""

    def __init__(self, root: Path, operation: str) -> None:
        super().__init__(root)
        self._operation = operation
        self._is_there, self._goes_on = threading.Event(), threading.Event()

    def begin(self, work: Callable[[], object]) -> Future[object]:
        """Begin to do something in another thread; return when it is paused."""
        pool = ThreadPoolExecutor(1)
        future = pool.submit(work)
        pool.shutdown(wait=False)
        assert self._is_there.wait(60)
        return future

    def go_on(self) -> None:
        self._goes_on.set()

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        self._pause_at(f"write {relative}")
        return super().write(relative, chunks)

    def delete(self, relatives: Iterable[str]) -> None:
        paths = tuple(relatives)
        for path in paths:
            self._pause_at(f"delete {path}")
        super().delete(paths)

    def _pause_at(self, operation: str) -> None:
        if operation.startswith(self._operation):
            self._is_there.set()
            assert self._goes_on.wait(60)


class Heard(CheckpointListener):
    """A listener that keeps what it is notified of."""

    def __init__(self) -> None:
        self.completed: list[CompletedCheckpoint] = []
        self.aborted: list[AbortedCheckpoint] = []

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        self.completed.append(checkpoint)

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        self.aborted.append(checkpoint)


class Query:
    """A query without Spark: commits epochs, and has a segment and a source log for each."""

    def __init__(self, storage: FaultyStorage, snapshot: CheckpointMetadata) -> None:
        self.storage = storage
        self.epoch: int | None = None
        self.pipe: Path | None = None
        self.error: Exception | None = None
        self.segments: list[FileReference] = []
        self.gathered: list[int] = []
        self._snapshot = snapshot

    def commit(self) -> int:
        self.epoch = 0 if self.epoch is None else self.epoch + 1
        self.segments.append(self.storage.write(segment_path("count", 0, self.epoch), [b"segment"]))
        return self.epoch

    def committed_epoch(self) -> int | None:
        return self.epoch

    def snapshot(self, epoch: int) -> CheckpointMetadata:
        """Gather an epoch; hang until something writes to the pipe."""
        self.gathered.append(epoch)
        if self.error is not None:
            raise self.error
        path = source_log_path(0, "0", f"{epoch:016}{0:048}")
        log = (
            FileReference(path, 3, "")
            if self.storage.exists(path)
            else self.storage.write(path, [b"log"])
        )
        if self.pipe is not None:
            self.pipe.read_bytes()
        (operator,) = self._snapshot.operators
        base = operator.handles[0].base
        handles = (
            msgspec.structs.replace(operator.handles[0], subtask=0, base=base),
            msgspec.structs.replace(operator.handles[1], subtask=1, base=None),
        )
        segment = msgspec.structs.replace(
            operator.handles[0].segments[0], file=self.segments[epoch]
        )
        first = msgspec.structs.replace(handles[0], segments=(segment,), epoch=epoch)
        handles = (first, handles[1])
        return msgspec.structs.replace(
            self._snapshot,
            epoch=epoch,
            operators=(msgspec.structs.replace(operator, handles=handles),),
            source_logs=(SourceLog(0, "0", log),),
        )

    def hang(self) -> None:
        self.pipe = self.storage.root.parent / "pipe"
        os.mkfifo(self.pipe)

    def go_on(self) -> None:
        assert self.pipe is not None
        pipe, self.pipe = self.pipe, None
        pipe.open("wb").close()


@pytest.fixture
def query(storage: Storage, snapshot: CheckpointMetadata) -> Query:
    return Query(FaultyStorage(storage.root), snapshot)


@pytest.fixture
def start(query: Query) -> Iterator[Callable[..., CheckpointRunner]]:
    """Return a function that starts the query's runner; it can be called again."""
    runners = []

    def start(**changed: Any) -> CheckpointRunner:
        settings = Settings(**{"num_retained": 2, "interval_ms": 3_600_000, **changed})
        runner = CheckpointRunner(QUERY, SUBTASKS, query.storage, settings, query.snapshot)
        runners.append(runner)
        return runner

    yield start
    for runner in runners:
        runner.close()


def take(runner: CheckpointRunner, query: Query) -> CompletedCheckpoint | Refusal:
    return runner.take(query.committed_epoch, periodic=False)


def failed(runner: CheckpointRunner, query: Query) -> CheckpointAbortedError:
    with pytest.raises(CheckpointAbortedError) as caught:
        take(runner, query)
    return caught.value


def directories(query: Query) -> list[str]:
    return [name for name in query.storage.list() if name.startswith("chk-")]


def test_a_checkpoint_is_durable_and_returned_and_listeners_are_notified(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    runner, heard = start(), Heard()
    runner.listeners.add(heard)
    assert take(runner, query) is Refusal.NO_COMMITTED_EPOCH
    query.commit()
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    stored = read_metadata(LocalStorage(Path(taken.path)))
    assert (taken.checkpoint_id, taken.epoch) == (1, 0) == (stored.checkpoint_id, stored.epoch)
    assert taken.size_bytes == stored.size_bytes > 0
    assert taken.duration_ms == stored.completed_at_ms - stored.triggered_at_ms >= 0
    assert heard.completed == [taken]
    assert take(runner, query) is Refusal.NO_NEW_EPOCH
    assert runner.newest() == taken
    assert (heard.aborted, runner.aborted()) == ([], [])


def test_old_checkpoints_dead_attempts_and_their_files_go(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    runner = start()
    for _ in range(2):
        query.commit()
        take(runner, query)
    query.storage.make_directory("chk-3")  # what a killed driver leaves
    runner = start()
    query.commit()
    taken = take(runner, query)
    assert taken == runner.newest()
    assert directories(query) == ["chk-2", "chk-4"]
    logs = [name for name in query.storage.list("shared") if name.startswith("source")]
    assert [name.removesuffix(".log")[-16:] for name in logs] == [f"{1:016}", f"{2:016}"]
    assert not query.storage.exists(query.segments[0].path)
    assert all(query.storage.exists(reference.path) for reference in query.segments[1:])


def test_ids_grow_over_attempts_that_left_only_a_directory(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    query.storage.make_directory("chk-7")
    query.commit()
    query.error = OSError(28, "No space left on device")
    assert failed(start(), query).reason is AbortReason.STORAGE_FAILED
    assert directories(query) == ["chk-7", "chk-8"]
    query.error = None
    taken = take(start(), query)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == 9
    assert directories(query) == ["chk-9"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CorruptFileError("shared/x is missing"), AbortReason.CORRUPT_FILE),
        (PermissionError(13, "Permission denied"), AbortReason.STORAGE_FAILED),
        (CheckpointAbortedError("handles of another query"), AbortReason.NOT_ACKNOWLEDGED),
        (ValueError("anything"), AbortReason.FAILED),
    ],
)
def test_a_failure_has_a_reason_and_the_one_before_stays(
    query: Query, start: Callable[..., CheckpointRunner], error: Exception, reason: AbortReason
) -> None:
    runner, heard = start(tolerable_failed_checkpoints=1), Heard()
    query.commit()
    before = take(runner, query)
    runner.listeners.add(heard)
    query.commit()
    query.error = error
    raised = failed(runner, query)
    assert raised.reason == reason
    assert str(error) in str(raised)
    assert "chk-2" in str(raised)
    (aborted,) = heard.aborted
    assert [aborted] == runner.aborted()
    assert (aborted.checkpoint_id, aborted.epoch, aborted.reason) == (2, 1, reason)
    assert aborted.duration_ms >= 0
    assert runner.newest() == before
    assert not runner.tolerance_is_exceeded
    failed(runner, query)
    assert runner.tolerance_is_exceeded


def test_epochs_that_cannot_be_listed_are_asked_for_again_after_the_interval(
    start: Callable[..., CheckpointRunner],
) -> None:
    runner = start(interval_ms=1, tolerable_failed_checkpoints=0)

    def unreadable() -> int | None:
        raise PermissionError(13, "Permission denied", "commits")

    while runner.due_in_ms():
        pass
    with pytest.raises(CheckpointAbortedError, match="commits") as caught:
        runner.take(unreadable, periodic=True)
    assert caught.value.reason is AbortReason.STORAGE_FAILED
    assert runner.tolerance_is_exceeded  # else the query would never have a checkpoint again


def test_a_missing_subtask_is_no_checkpoint(query: Query) -> None:
    subtasks = SUBTASKS | {Subtask("other", 0)}
    runner = CheckpointRunner(QUERY, subtasks, query.storage, Settings(), query.snapshot)
    query.commit()
    error = failed(runner, query)
    assert error.reason is AbortReason.NOT_ACKNOWLEDGED
    assert "other/0" in str(error)
    assert not query.storage.exists("chk-1/_metadata")
    runner.close()


def test_a_step_that_hangs_expires_and_cannot_publish_when_it_continues(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    """Scenario 6: slower than the timeout, while it gathers."""
    runner, heard = start(timeout_ms=TIMEOUT_MS), Heard()
    runner.listeners.add(heard)
    query.commit()
    query.hang()
    error = failed(runner, query)
    assert error.reason is AbortReason.EXPIRED
    assert "gathering" in str(error)
    assert heard.aborted[0].duration_ms >= TIMEOUT_MS
    waiting = failed(runner, query)  # the first one hangs still
    assert waiting.reason is AbortReason.EXPIRED
    assert "the one before it" in str(waiting)
    query.go_on()
    query.commit()
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == 3
    assert directories(query) == ["chk-3"]
    assert query.gathered == [0, 1], "the second one never began"
    logs = [name for name in query.storage.list("shared") if name.startswith("source")]
    assert len(logs) == 1, "the log that the late one copied is gone"
    assert [outcome.checkpoint_id for outcome in heard.aborted] == [1, 2]
    assert heard.completed == [taken]


def test_an_interrupted_caller_aborts_its_checkpoint_and_the_next_one_is_taken(
    query: Query, storage: Storage, request: pytest.FixtureRequest
) -> None:
    """A signal raises ``KeyboardInterrupt`` in the main thread, as Ctrl-C does."""
    has_hung, may_continue = threading.Event(), threading.Event()
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        if len(interrupts) == 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))

    def snapshot(epoch: int) -> CheckpointMetadata:
        if not has_hung.is_set():
            has_hung.set()
            # A signal that comes just before the main thread waits does not wake it: send another.
            while not interrupts:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                may_continue.wait(0.05)
            may_continue.wait()
        return query.snapshot(epoch)

    cancelled: list[bool] = []
    runner = CheckpointRunner(
        QUERY, SUBTASKS, storage, Settings(), snapshot, lambda: cancelled.append(True)
    )
    query.commit()
    with pytest.raises(KeyboardInterrupt):
        take(runner, query)
    assert [aborted.reason for aborted in runner.aborted()] == [AbortReason.INTERRUPTED]
    assert cancelled == [True]
    may_continue.set()
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == 2
    assert directories(query) == ["chk-2"]
    runner.close()


def test_a_checkpoint_whose_thread_cannot_start_is_aborted(
    query: Query, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver at its limit of threads; a signal may also come while the thread starts."""
    runner = CheckpointRunner(QUERY, SUBTASKS, storage, Settings(), query.snapshot)
    query.commit()
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name.startswith("pyspark_ckpt checkpoints"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            take(runner, query)
    (aborted,) = runner.aborted()
    assert (aborted.checkpoint_id, aborted.reason) == (1, AbortReason.FAILED)
    assert "new thread" in aborted.message
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == 2
    runner.close()


def test_a_metadata_that_fails_before_it_is_there_is_decided_by_reading(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    """Scenario 2: a publication failed, and nothing had been written."""
    runner = start()
    query.commit()
    query.storage.before = OSError(28, "No space left on device")
    assert failed(runner, query).reason is AbortReason.METADATA_UNCERTAIN
    assert CompletedCheckpoints(query.storage).ids() == []
    query.storage.before = None
    orphan = query.storage.write(segment_path("count", 0, 0), [b"of a failed attempt"]).path
    query.commit()
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == 2
    assert query.storage.exists(query.segments[0].path), "it may still turn up"
    assert not query.storage.exists(orphan)


def test_a_metadata_that_may_have_been_written_is_not_deleted(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    """Scenario 2: a publication failed, and `_metadata` was there."""
    runner, heard = start(), Heard()
    runner.listeners.add(heard)
    query.commit()
    query.storage.after = TimeoutError("after the link")
    error = failed(runner, query)
    assert error.reason is AbortReason.METADATA_UNCERTAIN
    assert "next start reads it" in str(error)
    assert runner.newest() is None
    next_start = CompletedCheckpoints(query.storage)
    assert next_start.ids() == [1]
    assert next_start.read(1).epoch == 0
    query.storage.after = None
    query.commit()
    taken = take(runner, query)
    assert directories(query) == ["chk-1", "chk-2"]
    for _, metadata in runner.retained():
        assert isinstance(metadata, CheckpointMetadata)
        for reference in metadata.files():
            assert query.storage.exists(reference.path)
    assert heard.completed == [taken]
    for _ in range(2):
        query.commit()
        take(runner, query)
    assert directories(query) == ["chk-3", "chk-4"]


def test_what_expires_after_its_metadata_is_there_is_completed_for_the_next_start_only(
    query: Query, start: Callable[..., CheckpointRunner], tmp_path: Path
) -> None:
    """Scenario 2: listeners are notified of it at most once."""
    runner, heard = start(timeout_ms=TIMEOUT_MS), Heard()
    runner.listeners.add(heard)
    query.commit()
    pipe = query.storage.pipe_after = tmp_path / "pipe"
    os.mkfifo(pipe)
    error = failed(runner, query)
    assert error.reason is AbortReason.EXPIRED
    assert "_metadata" in str(error)
    query.storage.pipe_after = None
    pipe.open("wb").close()
    query.commit()
    taken = take(runner, query)
    assert heard.completed == [taken]
    assert [aborted.checkpoint_id for aborted in heard.aborted] == [1]
    assert directories(query) == ["chk-1", "chk-2"]
    assert query.storage.exists(query.segments[0].path)
    query.commit()
    again = start()
    assert [number for number, _ in again.retained()] == [1, 2]
    assert isinstance(take(again, query), CompletedCheckpoint)
    assert directories(query) == ["chk-2", "chk-3"]


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
    assert directories(query) == ["chk-3"]
    assert query.storage.list("chk-3") == ["_author"]
    assert query.storage.exists(last)
    assert query.storage.exists(query.segments[-1].path)
    assert not query.storage.exists(query.segments[0].path)
    assert not [name for name in query.storage.list("shared") if name.startswith("source")]
    runner = start()
    assert runner.newest() is None
    taken = take(runner, query)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == 4


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
    assert directories(query) == ["chk-1"]


def test_a_listener_that_raises_or_triggers_harms_nothing(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    runner, heard = start(), Heard()

    class Bad(CheckpointListener):
        def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
            if checkpoint.checkpoint_id == 1:
                query.commit()
                take(runner, query)
            raise RuntimeError("no")

    bad = Bad()
    runner.listeners.add(bad)
    runner.listeners.add(heard)
    query.commit()
    take(runner, query)
    assert [checkpoint.checkpoint_id for checkpoint in heard.completed] == [1, 2]
    runner.listeners.remove(heard)
    runner.listeners.remove(heard)
    query.commit()
    take(runner, query)
    assert len(heard.completed) == 2


def test_two_who_trigger_at_once_get_one_each_or_the_same(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    runner = start()
    query.commit()
    taken: list[CompletedCheckpoint | Refusal] = []
    threads = [threading.Thread(target=lambda: taken.append(take(runner, query))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(one, CompletedCheckpoint) for one in taken) == [False] * 3 + [True]
    assert taken.count(Refusal.NO_NEW_EPOCH) == 3
