"""Nothing waits for ever: neither a hanging savepoint, nor a listener, nor an ended session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.history.run_log import RecordedRuns, RunEnded
from pyspark_ckpt.query import coordinator
from pyspark_ckpt.restore import claim
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.checkpoints.test_coordinator import Pipe
from tests.query.harness import (
    DEADLINE,
    INTERVAL,
    OFTEN,
    SAVEPOINT_DIR,
    TIMEOUT,
    Job,
    files_below,
    until,
)
from tests.query.life.test_metrics import PROMETHEUS, scraped, value
from tests.query.model import events_of, expected
from tests.query.restoring.numbered_job import Gate


@pytest.mark.slow
def test_stop_beside_a_savepoint_that_hangs_in_the_driver(job: Job) -> None:
    """The savepoint expires wherever it hangs; it publishes nothing when it continues."""
    job = job.using({INTERVAL: "1h", TIMEOUT: "2s", SAVEPOINT_DIR: job.base / "savepoints"})
    job.feed.add(events_of(0))
    failures: list[Exception] = []
    with job.running() as query:
        query.processAllAvailable()
        query.triggerCheckpoint()  # `stop` needs no other one
        pipe = Pipe(job.location_path / "sources" / "0" / "0")

        def take() -> None:
            try:
                query.triggerSavepoint()
            except ckpt.errors.CheckpointAbortedError as exc:
                failures.append(exc)

        taking = threading.Thread(target=take)
        taking.start()
        until(lambda: (job.base / "savepoints").exists(), "no savepoint was begun")
        query.stop()
        taking.join(DEADLINE)
        (failure,) = failures
        assert failure.reason is ckpt.results.AbortReason.EXPIRED
        hanging = hanging_threads(query.id)
        pipe.let_go()
        for thread in hanging:
            thread.join(DEADLINE)
        until(lambda: not files_below(job.base / "savepoints"), "something is left")
        aborted = [row for row in query.checkpoints().collect() if row.kind == "savepoint"]
        assert [row.status for row in aborted] == ["aborted"]
        assert query.triggerSavepoint().epoch == 0
    assert job.result() == expected(job.feed.rows)


def hanging_threads(query_id: str) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if f"savepoint of query {query_id}" in t.name]


class Calling(ckpt.CheckpointListener):
    """A listener that calls a function once, and keeps what it returned or raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call, self.came, self.outcome = call, threading.Event(), None

    def onCheckpointCompleted(self, checkpoint: ckpt.results.CompletedCheckpoint) -> None:
        if self.outcome is None:
            self.outcome = "called"
            try:
                self.outcome = self.call()
            except Exception as exc:
                self.outcome = exc
            self.came.set()


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    "call",
    ["stopWithSavepoint", "triggerSavepoint", "triggerCheckpoint", "stop", "awaitTermination"],
)
@pytest.mark.parametrize("options", [OFTEN, {INTERVAL: "1h"}], ids=["periodic", "by hand"])
def test_a_listener_may_call_everything(job: Job, call: str, options: dict[str, str]) -> None:
    """In a checkpoint that the coordinator takes, and in one that the user triggers."""
    job = job.using({SAVEPOINT_DIR: job.base / "savepoints", **options})
    job.feed.add(events_of(0))
    query = job.start()
    listener = Calling(getattr(query, call))
    query.addCheckpointListener(listener)
    query.processAllAvailable()
    if options is not OFTEN and call != "awaitTermination":
        query.triggerCheckpoint()
    if call == "awaitTermination":
        query.stop()
    assert listener.came.wait(DEADLINE)
    assert not isinstance(listener.outcome, Exception), listener.outcome
    if call.endswith("Savepoint"):
        assert isinstance(listener.outcome, ckpt.results.Savepoint)
        assert Path(listener.outcome.path, "_metadata").exists()
    assert query.isActive == (call not in ("stopWithSavepoint", "stop", "awaitTermination"))
    query.stop()
    assert job.result() == expected(job.feed.rows)


class Hanging(ckpt.CheckpointListener):
    """A listener that returns only after the test has opened its gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    def onCheckpointCompleted(self, checkpoint: ckpt.results.CompletedCheckpoint) -> None:
        self.gate.wait()


@pytest.mark.slow
def test_a_listener_that_hangs_does_not_hold_up_the_records(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of checkpoints that are completed or aborted, and of the query's end."""
    monkeypatch.setattr(coordinator, "LISTENERS_PATIENCE_S", 2 * DEADLINE)
    job, hanging = job.using({INTERVAL: "1h"}), Hanging()
    query = job.start()
    query.addCheckpointListener(hanging)
    take = partial(query._coordinator.trigger_checkpoint, waits_for_listeners=False)

    def recorded() -> RecordedRuns:
        return RecordedRuns(LocalStorage(job.checkpoint_path))

    try:
        for number in range(2):
            job.feed.add(events_of(number))
            query.processAllAvailable()
            take()
            hanging.gate.await_arrival()
        known = query._coordinator.progress._checkpointed_at_ms
        until(lambda: len(known) == 2, "the progress does not have the second checkpoint")
        job.feed.add(events_of(2))
        query.processAllAvailable()
        blocked = job.checkpoint_path / "chk-3"
        blocked.write_text("a file where a directory should be")
        with pytest.raises(ckpt.errors.CheckpointAbortedError, match="chk-3"):
            take()
        blocked.unlink()
        until(
            lambda: "aborted" in set(ckpt.location(str(job.location_path)).history()["status"]),
            "the history does not have the third checkpoint",
        )
        query._query.stop()
        until(
            lambda: any(isinstance(each, RunEnded) for each in recorded().starts_and_ends()),
            "the end is not recorded",
        )
        ids = [each.checkpoint_id for note in recorded().notes(100) for each in note.checkpoints]
        assert ids[:2] == [1, 2]
    finally:
        hanging.gate.open()
        query.stop()


@pytest.mark.slow
def test_a_listener_that_hangs_holds_up_neither_a_claim_nor_metrics(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion of what was claimed fails at first, and is done at the next checkpoint."""
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    real, left = claim.discard, [OSError("the storage is away")]

    def fails_once(origin: Origin) -> bool:
        if left:
            raise left.pop()
        return real(origin)

    monkeypatch.setattr(claim, "discard", fails_once)
    fork, hanging = job.but(location="fork", out="fork-out").using(PROMETHEUS), Hanging()
    query = fork.writer().restoreFrom(savepoint, claimMode="CLAIM").start()
    query.addCheckpointListener(hanging)
    try:
        for number in (1, 2):
            job.feed.add(events_of(number))
            query.processAllAvailable()
            query._coordinator.trigger_checkpoint(waits_for_listeners=False)
            hanging.gate.await_arrival()
        until(lambda: not Path(savepoint).exists(), "the claimed savepoint stays")
        url, counted = query.metricsReporters["prometheus"], "checkpoints_completed_total"
        until(
            lambda: value(scraped(url), f"pyspark_ckpt_{counted}") == 2,
            "the metrics do not have the second checkpoint",
        )
    finally:
        hanging.gate.open()
        query.stop()
