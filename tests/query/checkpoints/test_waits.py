"""Nothing waits for ever: neither a hanging savepoint, nor a listener, nor an ended session."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
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
from tests.query.model import events_of, expected

PROGRAM = Path(__file__).with_name("ended_session_program.py")


@pytest.mark.further
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
            except ckpt.CheckpointAbortedError as exc:
                failures.append(exc)

        taking = threading.Thread(target=take)
        taking.start()
        until(lambda: (job.base / "savepoints").exists(), "no savepoint was begun")
        query.stop()
        taking.join(DEADLINE)
        (failure,) = failures
        assert failure.reason is ckpt.AbortReason.EXPIRED
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

    def onCheckpointCompleted(self, checkpoint: ckpt.CompletedCheckpoint) -> None:
        if self.outcome is None:
            self.outcome = "called"
            try:
                self.outcome = self.call()
            except Exception as exc:
                self.outcome = exc
            self.came.set()


@pytest.mark.wide_variants
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
        assert isinstance(listener.outcome, ckpt.Savepoint)
        assert Path(listener.outcome.path, "_metadata").exists()
    assert query.isActive == (call not in ("stopWithSavepoint", "stop", "awaitTermination"))
    query.stop()
    assert job.result() == expected(job.feed.rows)


@pytest.mark.wide
@pytest.mark.own_jvm
def test_a_session_that_ends_first_leaves_no_threads(tmp_path: Path) -> None:
    """Its queries' threads end, waiting callers get an error, and the next session works."""
    printed = subprocess.check_output(
        [sys.executable, str(PROGRAM), str(tmp_path)], text=True, timeout=240
    )
    (line,) = [line for line in printed.splitlines() if line.startswith(">")]
    content = json.loads(line[1:])
    assert content["threads"] == []
    assert "Spark application" in content["failure"]
    assert content["failure_type"] == "FailedCheckpointsError"
    assert content["epochs"] == [1]
    assert content["error_of_jobs"] == "LookupError"
