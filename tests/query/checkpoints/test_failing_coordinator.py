"""A coordinator that cannot do its work ends its query: faults in the real storage of a query."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from py4j.protocol import Py4JError

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint import runner as patience
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.formats.requests import RequestFiles
from pyspark_ckpt.query.requests import RequestHandler
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.savepoint.taker import SavepointTaker
from pyspark_ckpt.storage import retrying as retrying_storage
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.faulty_storage import FaultyStorage, Plan
from tests.query.harness import (
    DEADLINE,
    INTERVAL,
    OFTEN,
    RETENTION,
    TOLERABLE,
    Job,
    await_checkpoint,
    completed,
    files_below,
)
from tests.query.model import events_of, expected
from tests.unit.query.test_requests import request

SELDOM = {INTERVAL: "1h"}


@dataclass
class Away(Plan):
    """Operations that begin with one of these words fail, this many of each kind."""

    words: tuple[str, ...] = ()
    times: int = 1_000_000

    def is_due(self, operation: str) -> bool:
        if not operation.startswith(self.words):
            return False
        self.done.append(operation)
        return self.done.count(operation) <= self.times


@pytest.fixture
def storage_is(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Away]:
    """Return a function that gives each query's driver a storage with faults from now on."""
    monkeypatch.setattr(retrying_storage, "PAUSES_SECONDS", (0.01, 0.01, 0.01))
    real = StartLocation.checkpoints

    def storage_is(*words: str, times: int = 1_000_000) -> Away:
        away = Away(words=words, times=times)

        def checkpoints(self: StartLocation, query_id: str) -> Storage:
            return FaultyStorage(real(self, query_id), away)

        monkeypatch.setattr(StartLocation, "checkpoints", checkpoints)
        return away

    return storage_is


@pytest.mark.slow
def test_an_error_that_passes_is_no_failure(job: Job, storage_is: Callable[..., Away]) -> None:
    """Every operation of the driver fails once: all checkpoints are taken, none is aborted."""
    away = storage_is("write", "read", "list", "exists", "size_bytes", "delete", times=1)
    job = job.using(OFTEN).using({TOLERABLE: 0})
    with job.running() as query:
        for number in range(3):
            job.feed.add(events_of(number))
            query.processAllAvailable()
            await_checkpoint(query, number)
    assert len(set(away.done)) > 20
    assert [row.reason for row in query.checkpoints().collect() if row.status == "aborted"] == []
    assert job.result() == expected(job.feed.rows)


@pytest.mark.slow
def test_the_savepoints_of_earlier_drivers_are_looked_for_again(
    job: Job, storage_is: Callable[..., Away]
) -> None:
    """The first listing of the history fails for longer than it is repeated: no thread dies."""
    away = storage_is("list history", times=6)
    with job.using(OFTEN).running() as query:
        for number in range(2):
            job.feed.add(events_of(number))
            query.processAllAvailable()
            await_checkpoint(query, number)
        assert away.done
        assert query.isActive


def test_storage_that_stays_away_ends_the_query(job: Job, storage_is: Callable[..., Away]) -> None:
    """By default a few checkpoints in a row may fail, and no more."""
    storage_is("write chk-")
    job = job.using(OFTEN)
    with job.running() as query:
        job.feed.add(events_of(0))
        with pytest.raises(ckpt.errors.FailedCheckpointsError, match="more than 3 checkpoints"):
            query.awaitTermination(DEADLINE)
        aborted = [row for row in query.checkpoints().collect() if row.status == "aborted"]
        assert len(aborted) == 4
    assert completed(query) == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["list requests", "delete"])
def test_requests_and_cleaning_may_not_fail_for_ever(
    job: Job, storage_is: Callable[..., Away], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Checkpoints are taken all the time; what else is due counts too."""
    monkeypatch.setattr(patience, "SHORTEST_MS", 1)
    storage_is(what)
    job = job.using(OFTEN).using({TOLERABLE: 0})
    query = job.start()
    job.feed.add(*map(events_of, range(40)))
    with pytest.raises(ckpt.errors.FailedCheckpointsError, match=f"fault before.*{what}"):
        query.awaitTermination(DEADLINE)
    assert not query.isActive


def fail(error: BaseException) -> Callable[..., Any]:
    def step(*_: Any, **__: Any) -> Any:
        raise error

    return step


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("part", "step"),
    [
        (RequestHandler, "refuse_interrupted"),
        (SavepointTaker, "remove_interrupted"),
        (RequestHandler, "poll"),
        (CheckpointRunner, "due_in_ms"),
        (CheckpointRunner, "take"),
    ],
)
def test_whatever_a_step_raises_ends_the_query(
    job: Job, monkeypatch: pytest.MonkeyPatch, part: type, step: str
) -> None:
    """No thread dies quietly; the query says why it ended, and continues at its next start."""
    error = Py4JError("the gateway is gone")
    job.feed.add(events_of(0))
    with monkeypatch.context() as patched:
        patched.setattr(part, step, fail(error))
        query = job.using(OFTEN).start()
        with pytest.raises(
            ckpt.errors.FailedCheckpointsError, match=re.escape(str(error))
        ) as failed:
            query.awaitTermination(DEADLINE)
        assert query.exception() is failed.value
        assert not query.isActive
        query.stop()  # it was raised before
    job.run()
    assert job.result() == expected(job.feed.rows)


def test_a_run_whose_last_checkpoint_failed_is_no_success(
    job: Job, storage_is: Callable[..., Away], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that wait for it or stop it get the error once; the next run takes the checkpoint."""
    job = job.using(SELDOM)
    with monkeypatch.context():
        storage_is("write chk-")
        job.feed.add(events_of(0))
        query = job.writer().trigger(availableNow=True).start()
        with pytest.raises(ckpt.errors.FailedCheckpointsError, match="last checkpoint failed"):
            query.awaitTermination()
        assert isinstance(query.exception(), ckpt.errors.FailedCheckpointsError)
        query.stop()
        query = job.start()
        job.feed.add(events_of(1))
        query.processAllAvailable()
        with pytest.raises(ckpt.errors.FailedCheckpointsError, match=r"chk-[0-9]+/_author"):
            query.stop()
        query.stop()
    monkeypatch.undo()
    assert [row.epoch for row in completed(job.run())] == [1]
    assert job.result() == expected(job.feed.rows)


def test_checkpoints_that_cannot_be_deleted_raise_at_the_end(
    job: Job, storage_is: Callable[..., Away]
) -> None:
    """A query that was to leave no checkpoints says that it has left some."""
    job = job.using(SELDOM).using({RETENTION: "DELETE_ON_CANCELLATION"})
    storage_is("delete chk-")
    query = job.start()
    job.feed.add(events_of(0))
    query.processAllAvailable()
    taken = query.triggerCheckpoint()
    with pytest.raises(ckpt.errors.FailedCheckpointsError, match="could not be deleted"):
        query.stop()
    assert files_below(job.checkpoint_path / f"chk-{taken.checkpoint_id}")


def test_checkpoints_of_a_query_that_another_driver_runs_stay_and_a_warning_says_so(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own settings would delete them, and the other driver has its own."""
    job = job.using(SELDOM).using({RETENTION: "DELETE_ON_CANCELLATION"})
    query = job.start()
    job.feed.add(events_of(0))
    query.processAllAvailable()
    taken = query.triggerCheckpoint()
    CompletedCheckpoints(LocalStorage(job.checkpoint_path)).claim()
    query.stop()
    assert "another driver runs the query now" in caplog.text
    assert [row.checkpoint_id for row in completed(query)] == [taken.checkpoint_id]


@pytest.mark.slow
def test_a_query_that_another_driver_runs_refuses_no_requests_at_its_end(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other driver answers them. Without it, nobody would, so the query refuses them."""
    monkeypatch.setattr(RequestHandler, "poll", lambda _: None)
    # It takes no last checkpoint, which would take the fence back.
    job = job.using(SELDOM).using({RETENTION: "DELETE_ON_CANCELLATION"})
    storage = LocalStorage(job.checkpoint_path)
    files = RequestFiles(storage)
    for is_fenced in (False, True):
        query = job.start()
        job.feed.add(events_of(int(is_fenced)))
        query.processAllAvailable()
        posted = files.post(request())
        if is_fenced:
            CompletedCheckpoints(storage).claim()
        query.stop()
        assert (files.answer_to(posted) is None) == is_fenced
