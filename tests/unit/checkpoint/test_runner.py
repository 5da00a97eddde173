"""The runner: real threads, real files, no Spark; faults come from a storage or a named pipe."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.machine import Refusal, Subtask
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError
from pyspark_ckpt.formats.layout import segment_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.frames import history
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.checkpoint.runner_query import (
    QUERY,
    SUBTASKS,
    Heard,
    Query,
    directories,
    failed,
    take,
)

TIMEOUT_MS = 700


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


def test_epochs_that_cannot_be_listed_are_a_failed_checkpoint(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    """Listeners and the history know of it, it counts, and the next one waits for the interval."""
    runner, heard = start(interval_ms=1, tolerable_failed_checkpoints=0), Heard()
    runner.listeners.add(heard)
    runner.listeners.add(HistoryLog(query.storage))

    def unreadable() -> int | None:
        raise PermissionError(13, "Permission denied", "commits")

    while runner.due_in_ms():
        pass
    with pytest.raises(CheckpointAbortedError, match="commits") as caught:
        runner.take(unreadable, periodic=True)
    assert caught.value.reason is AbortReason.STORAGE_FAILED
    assert runner.tolerance_is_exceeded  # else the query would never have a checkpoint again
    (aborted,) = heard.aborted
    assert [aborted] == runner.aborted()
    assert aborted.kind is CheckpointKind.CHECKPOINT
    assert aborted.reason is AbortReason.STORAGE_FAILED
    assert "Permission denied" in aborted.message
    (row,) = history(query.storage.url).to_dict("records")
    assert (row["kind"], row["status"]) == ("checkpoint", "aborted")
    assert "storage failed" in row["reason"]
    assert "Permission denied" in row["reason"]


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


def test_a_checkpoint_that_is_removed_while_they_are_listed_is_left_out(
    query: Query, start: Callable[..., CheckpointRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is damaged is not."""
    for _ in range(2):
        query.commit()
        take(start(num_retained=3), query)
    (query.storage.root / "chk-2" / "_metadata").write_bytes(b"")
    runner, size_of = start(num_retained=3), query.storage.size_bytes

    def remove(relative: str) -> int | None:
        if relative == "chk-1/_metadata":
            CompletedCheckpoints(query.storage).remove(1)
        return size_of(relative)

    runner._files._metadata.clear()
    monkeypatch.setattr(query.storage, "size_bytes", remove)
    ((number, error),) = runner.retained()
    assert number == 2
    assert isinstance(error, CorruptFileError)


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1)])
def test_a_listener_that_raises_or_triggers_harms_nothing(
    query: Query, start: Callable[..., CheckpointRunner], error: BaseException
) -> None:
    runner, heard = start(), Heard()

    class Bad(CheckpointListener):
        def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
            if checkpoint.checkpoint_id == 1:
                query.commit()
                take(runner, query)
            raise error

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


def test_a_listener_that_hangs_keeps_none_of_the_library_from_its_work(
    query: Query, start: Callable[..., CheckpointRunner]
) -> None:
    runner, own, heard, gate = start(), Heard(), Heard(), threading.Event()

    class Hangs(CheckpointListener):
        def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
            assert [each.checkpoint_id for each in own.completed][:1] == [1]
            gate.wait(60)

    runner.listeners.add(Hangs())
    runner.listeners.add(heard)
    runner.listeners.add_own(own)
    for _ in range(2):
        query.commit()
        runner.take(query.committed_epoch, periodic=False, waits_for_listeners=False)
        assert runner.listeners.wait_for_own(60)
    assert [each.checkpoint_id for each in own.completed] == [1, 2]
    assert not heard.completed
    gate.set()
    assert runner.listeners.wait(60)
    assert [each.checkpoint_id for each in heard.completed] == [1, 2]


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
