"""Each kind of operation that a query's coordinator does on its storage fails, once or for ever.

The query has everything that a coordinator handles: checkpoints and files to clean up, and a
request. An earlier driver left a request without an answer, and a savepoint that it had begun.
"""

from __future__ import annotations

import os
import random
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint import runner as patience
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.requests import Action, Answer, Claimant, Request, RequestFiles
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.savepoint.savepoint import NewSavepoint
from pyspark_ckpt.storage import retrying as retrying_storage
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.faults.faulty_storage import FaultyStorage, Plan
from tests.query.harness import OFTEN, RETAINED, RETENTION, SAVEPOINT_DIR, TOLERABLE, Job, until
from tests.query.model import events_of, expected

LIVES = 2
"""How many kinds fail for ever, by default."""

EPOCHS, MOST_EPOCHS = 6, 12

LEFT_OUT = {"write history/N-N-N.json", "read history/N-N-N.json", "delete history/N-N-N.json"}
"""May fail for ever without stopping the query: nothing depends on the history log."""

RETURNED = {
    "read requests/N-N.request.json",
    "size_bytes requests/N-N.request.json",
    "open shared/source-N-N-N.log",
}
"""May fail for ever, too: the caller gets the error."""

RUNS_KIND = re.compile(r"(?:list|write|delete) history/runs(?:/.*)?")
"""May fail for ever without stopping the query: nothing depends on the log of runs either."""


def is_harmless(kind: str) -> bool:
    """Return whether a kind of operation may fail for ever while the query runs on."""
    return kind in LEFT_OUT | RETURNED or RUNS_KIND.fullmatch(kind) is not None


MATERIALIZE = "spark.ckpt.internal.state.changelog.materialize"
SETTINGS = {
    **OFTEN,
    TOLERABLE: 0,
    RETAINED: 1,
    f"{MATERIALIZE}.min-size": "0b",
    f"{MATERIALIZE}.max-segments": 1,
}


def kind_of(operation: str) -> str:
    """Return an operation without the parts that differ between checkpoints, epochs or runs."""
    return re.sub(r"[0-9a-f]{12,}|(?<![a-z])[0-9a-f]{8}(?![0-9a-z])|[0-9]+", "N", operation)


@dataclass
class Kinds(Plan):
    """Each kind of operation fails the first time, or one kind always; `kinds` are all there were.

    Reads of a savepoint alone are not repeated: the caller gets the error, and can ask again.

    Nothing fails any more once it `is_over`.
    """

    always: str | None = None
    kinds: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    def is_due(self, operation: str) -> bool:
        if self.is_over:
            return False
        kind = kind_of(operation)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self.always is not None:
            return kind == self.always
        return self.kinds[kind] == 1 and not kind.startswith("open ")


class Heard(ckpt.CheckpointListener):
    """The newest epoch that has a checkpoint, and the aborted checkpoints."""

    def __init__(self) -> None:
        self.epoch = -1
        self.aborted: list[AbortedCheckpoint] = []

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        self.epoch = checkpoint.epoch

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        self.aborted.append(checkpoint)


class Life:
    """One life of a query under a plan; `error` is what it ended with."""

    def __init__(self, job: Job, plan: Kinds) -> None:
        self.plan, self.heard = plan, Heard()
        self.error: BaseException | None = None
        self.job = job.using({SAVEPOINT_DIR: job.base / "savepoints"}).using(SETTINGS)
        self.storage = LocalStorage(job.checkpoint_path)
        self.requests = RequestFiles(self.storage)
        self.left = self._ask()
        assert self.requests.claim(self.left, Claimant.QUERY)
        self.begun = NewSavepoint("the query", str(job.base / "savepoints"), "the run before").path
        HistoryLog(self.storage).note_begun(self.begun, now_ms(), "the run before")
        self.asked: str | None = None
        try:
            self._run()
        except (OSError, ckpt.errors.CkptError) as exc:
            self.error = exc
        finally:
            plan.is_over = True

    def _ask(self) -> str:
        at_ms = now_ms()
        return self.requests.post(
            Request(
                action=Action.SAVEPOINT,
                directory=str(self.job.base / "savepoints"),
                format="NATIVE",
                drain=False,
                requested_at_ms=at_ms,
                expires_at_ms=at_ms + 600_000,
                requested_by="the test",
            )
        )

    def answers(self) -> list[Answer | None]:
        asked = [self.left, self.asked]
        return [self.requests.answer_to(each) for each in asked if each is not None]

    def _run(self) -> None:
        query = self.job.start()
        query.addCheckpointListener(self.heard)
        for epoch in range(MOST_EPOCHS):
            self.job.feed.add(events_of(self.job.feed.files))
            until(
                lambda epoch=epoch: self.heard.epoch >= epoch or not query.isActive,
                f"{self.plan.always}: neither a checkpoint of epoch {epoch} nor an end",
            )
            self.asked = self.asked or self._ask()
            if not query.isActive or (epoch >= EPOCHS - 1 and self._is_all_done()):
                break
        if query.isActive:
            self.job.feed.add(events_of(self.job.feed.files))
            query.processAllAvailable()
            query.stop()
        query.awaitTermination()

    def _is_all_done(self) -> bool:
        """Return whether there is nothing more to wait for, and nothing that must end the query."""
        always = self.plan.always
        if always is not None and not is_harmless(always):
            return False
        until(lambda: None not in self.answers(), f"{always}: nobody answers the requests")
        return True


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def lived(job: Job, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Life]:
    """Return a function that runs the query once more, each time in its own location."""
    monkeypatch.setattr(retrying_storage, "PAUSES_SECONDS", (0.01, 0.01, 0.01))
    monkeypatch.setattr(patience, "SHORTEST_MS", 1)
    real = StartLocation.checkpoints
    number = 0

    def lived(always: str | None, retention: str) -> Life:
        nonlocal number
        number += 1
        plan = Kinds(always=always)

        def checkpoints(self: StartLocation, query_id: str) -> Storage:
            return FaultyStorage(real(self, query_id), plan)

        one = job.but(location=f"loc{number}", out=f"out{number}").using({RETENTION: retention})
        with monkeypatch.context() as patched:
            patched.setattr(StartLocation, "checkpoints", checkpoints)
            return Life(one, plan)

    return lived


RETENTIONS = ("RETAIN_ON_CANCELLATION", "DELETE_ON_CANCELLATION")


def all_kinds(lived: Callable[..., Life], retention: str) -> list[str]:
    """Have every kind fail once, which changes nothing; return the kinds."""
    life = lived(None, retention)
    print("\n".join(f"{count} {kind}" for kind, count in sorted(life.plan.kinds.items())))
    assert life.error is None
    assert life.heard.aborted == []
    left, asked = life.answers()
    assert left.error is not None
    assert (asked.error, asked.path is None) == (None, False)
    assert life.job.result() == expected(life.job.feed.rows)
    return sorted(life.plan.kinds)


def fails_for_ever(lived: Callable[..., Life], kind: str, retention: str) -> None:
    """The query ends and says why, or what fails is harmless; it continues at its next start."""
    life = lived(kind, retention)
    print(f"{kind}: {life.error!r}")
    assert kind in life.plan.kinds
    assert not life.job.spark.streams.active
    assert (life.error is None) == is_harmless(kind), kind
    if life.error is not None:
        assert "fault before" in str(life.error)
    elif kind in RETURNED:
        assert "fault before" in str(life.answers()[-1].error)
    life.job.run()
    assert life.job.result() == expected(life.job.feed.rows)


def wrong_if(lived: Callable[..., Life], kind: str, retention: str) -> str | None:
    """Return what is wrong if a kind fails for ever."""
    try:
        fails_for_ever(lived, kind, retention)
    except AssertionError as exc:
        for query in SparkSession.active().streams.active:
            query.stop()
        return f"{kind}: {exc}"
    return None


@pytest.mark.soak
def test_an_operation_of_the_coordinator_fails(
    lived: Callable[..., Life], chance: random.Random
) -> None:
    """Scenario 1: a few kinds of operations, which differ from run to run."""
    retention = chance.choice(RETENTIONS)
    kinds = all_kinds(lived, retention)
    for kind in chance.sample(kinds, LIVES):
        fails_for_ever(lived, kind, retention)


@pytest.mark.soak
@pytest.mark.parametrize("retention", RETENTIONS)
def test_each_operation_of_the_coordinator_fails_in_turn(
    lived: Callable[..., Life], retention: str
) -> None:
    """Scenario 1: all of them."""
    kinds = all_kinds(lived, retention)
    assert [wrong for kind in kinds if (wrong := wrong_if(lived, kind, retention))] == []
