"""A rollback next to other drivers fences those that are paused; Spark's part is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError, FencedError, RestoreError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY, DRAIN_MARKER, ROLLBACK_MARKER
from pyspark_ckpt.restarting import rollback as module
from pyspark_ckpt.restarting import rollback_decision, stopped
from pyspark_ckpt.restarting.rollback import rollback
from pyspark_ckpt.restarting.rollback_decision import (
    RollbackDecision,
    RollbackFacts,
    RollbackRequest,
    decide_rollback,
)
from pyspark_ckpt.restarting.turn import turn_of
from pyspark_ckpt.restore import seeding
from pyspark_ckpt.restore.location.swap import Swap, begun_swap
from pyspark_ckpt.restore.rescale import Seed
from pyspark_ckpt.sessions.classic import ClassicSession
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from pyspark_ckpt.stores.open import find_store
from tests.faults.epochs import OWN_OPERATORS, Epochs, SparkFiles, files_of
from tests.faults.leases import LeaseOf
from tests.unit.checkpoint.runner_query import Paused
from tests.unit.restarting.test_rollback_decision import is_possible


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_seeds(_: Any, scratch: Storage, seeds: Sequence[Seed]) -> SparkLog:
        spark = SparkFiles(Path(scratch.url) / "location")
        spark.commit(0)
        for number, _seed in enumerate(seeds):
            spark.put(f"state/{number}/0/1.delta", json.dumps("handles"))
        return SparkLog(scratch.child("location"))

    monkeypatch.setattr(seeding, "write_seeds", write_seeds)
    monkeypatch.setattr(module, "session_in_use", lambda *_: None)
    monkeypatch.setattr(rollback_decision, "_missing_input", lambda *_: None)
    monkeypatch.setattr(module, "qualified_path", lambda _, path: path)
    monkeypatch.setattr(ClassicSession, "is_active", lambda *_: False)
    monkeypatch.setattr(module, "own_session", lambda *_: None)
    monkeypatch.setattr(module, "decide_rollback", decided)


def decided(facts: RollbackFacts, request: RollbackRequest) -> RollbackDecision:
    """The table of decisions leaves out what its rule says that nobody finds."""
    assert is_possible(facts), facts
    return decide_rollback(facts, request)


@pytest.fixture
def location(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "location")


@pytest.fixture
def inside(location: LocalStorage) -> LocalStorage:
    """The checkpoints directory, inside the location."""
    return location.child(CHECKPOINTS_DIRECTORY)


@pytest.fixture
def epochs(location: LocalStorage, inside: LocalStorage) -> Epochs:
    return Epochs(inside, location.root, OWN_OPERATORS)


def take(runner: CheckpointRunner, epochs: Epochs) -> object:
    epochs.commit()
    return runner.take(epochs.committed_epoch, periodic=False)


def start(inside: LocalStorage) -> CompletedCheckpoints:
    """Claim the checkpoints as a start does."""
    store = CompletedCheckpoints(inside)
    store.claim()
    return store


def unfenced(*drivers: CompletedCheckpoints) -> list[CompletedCheckpoints]:
    found = []
    for each in drivers:
        with suppress(FencedError):
            each.check()
            found.append(each)
    return found


@pytest.mark.parametrize(
    ("operation", "occurrence"),
    [("list .", 1), ("list .", 2), ("list shared", 1), ("list taskowned", 1), ("delete chk-2", 1),
     ("delete shared/", 1), ("delete taskowned/", 1), ("write chk-3/_author", 1),
     ("write chk-3/_metadata", 1)],
)  # fmt: skip
def test_a_driver_that_was_paused_in_a_checkpoint_leaves_what_a_rollback_has_restored(
    location: LocalStorage, inside: LocalStorage, epochs: Epochs, operation: str, occurrence: int
) -> None:
    """It goes on while the new query has fewer terms than the old one had."""
    start(inside)
    start(inside)
    paused = Paused(inside.root)
    one = epochs.runner(paused, num_retained=1)
    for _ in range(2):
        take(one, epochs)
        for _ in range(8):
            epochs.commit()
    paused.pause_at(operation, before=occurrence - 1)
    taking = paused.begin(lambda: take(one, epochs))
    to = max(find_store(inside).ids())
    rollback(str(location.root), f"chk-{to}")
    restored = {path for path in files_of(inside) if not path.startswith("chk-")}
    claimed = [start(inside) for _ in range(2)]
    paused.go_on()
    error = taking.exception(timeout=60)
    assert error is None or isinstance(error, CheckpointAbortedError)
    assert restored <= files_of(inside)
    assert find_store(inside).ids() == []
    with pytest.raises(FencedError):
        one.lease.check()
    claimed[-1].check()


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("starts", range(1, 6))
def test_a_driver_that_was_paused_in_its_start_is_no_second_one_after_a_rollback(
    location: LocalStorage, inside: LocalStorage, epochs: Epochs, returns: bool, starts: int
) -> None:
    """It has found the number of its term, and had not claimed it yet; also if all is undone."""
    take(epochs.runner(), epochs)
    back = rollback(str(location.root), "chk-1") if returns else None
    for _ in range(starts):
        before = start(inside)
    paused = Paused(inside.root, "write drivers/")
    slow = CompletedCheckpoints(paused)
    starting = paused.begin(slow.claim)
    rollback(str(location.root), "chk-1" if back is None else Path(back.kept).name)
    drivers = [before, start(inside)]
    assert unfenced(*drivers) == drivers[-1:]
    paused.go_on()
    starting.result(timeout=60)
    assert unfenced(*drivers, slow) == [slow]
    drivers.append(start(inside))
    assert unfenced(*drivers, slow) == drivers[-1:]


def test_a_driver_whose_location_was_deleted_and_made_anew_is_fenced(
    location: LocalStorage, inside: LocalStorage
) -> None:
    old = [start(inside) for _ in range(3)]
    location.parent().delete_directory(location.name)
    assert unfenced(*old) == []
    new = [start(inside) for _ in range(3)]
    assert unfenced(*old, *new) == new[-1:]


@pytest.mark.parametrize("sign", ["active", "records"])
def test_an_untouched_rollback_is_not_finished_under_a_query_that_runs(
    location: LocalStorage, epochs: Epochs, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    """Its driver was killed before it moved anything, so the query may have gone on."""
    take(epochs.runner(), epochs)
    old = Swap(
        to="chk-1", kept="_before_rollback-1", staged="_rolling_back-1", outgoing=("offsets",),
        incoming=("offsets",),
    )  # fmt: skip
    location.write("_rolling_back-1/offsets/0", [b"x"])
    location.write(ROLLBACK_MARKER, [msgspec.json.encode(old)])

    def runs(*_: object) -> None:
        msg = "the query runs: stop it first"
        raise RestoreError(msg)

    if sign == "active":
        monkeypatch.setattr(ClassicSession, "is_active", lambda *_: True)
    else:
        monkeypatch.setattr(stopped, "check_silent", runs)
    before = files_of(location)
    with pytest.raises(RestoreError, match="stop it first"):
        rollback(str(location.root), "chk-1")
    assert files_of(location) == before
    assert begun_swap(location) == old


def test_a_drain_that_begins_before_the_rollback_fences_its_driver_is_refused(
    location: LocalStorage, epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollback has already found none: it looks once more."""
    take(epochs.runner(), epochs)
    claim = CompletedCheckpoints.claim

    def claims(self: CompletedCheckpoints) -> None:
        location.write(DRAIN_MARKER, [b"{}"])
        claim(self)

    monkeypatch.setattr(CompletedCheckpoints, "claim", claims)
    with pytest.raises(RestoreError, match="drained"):
        rollback(str(location.root), "chk-1")
    assert location.exists(DRAIN_MARKER)
    assert not list(location.root.glob("_before_rollback-*"))


def test_a_rollback_that_is_overtaken_clears_nothing_of_the_later_one(
    location: LocalStorage,
) -> None:
    location.write("_rolling_back-1/offsets/0", [b"x"])

    def overtaken() -> None:
        msg = "another driver has taken over"
        raise FencedError(msg)

    with pytest.raises(FencedError):
        module._clear_leftovers(location, None, LeaseOf(overtaken))
    assert location.exists("_rolling_back-1/offsets/0")

    def about_to_be_overtaken() -> None:
        location.write("_rolling_back-2/offsets/0", [b"x"])

    module._clear_leftovers(location, None, LeaseOf(about_to_be_overtaken))
    assert files_of(location) == {"_rolling_back-2/offsets/0"}


def test_a_rollback_has_the_turn_of_its_location_from_the_first_look_to_the_last_move(
    location: LocalStorage, epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start of this process neither fences it nor meets half of the files."""
    take(epochs.runner(), epochs)
    looks: set[tuple[str, bool]] = set()

    def looked_at(name: str) -> Callable[..., Any]:
        step = getattr(module, name)

        def look(*arguments: Any) -> Any:
            looks.add((name, turn_of(location.url).locked()))
            return step(*arguments)

        return look

    for name in ("inspect_for_rollback", "swap"):
        monkeypatch.setattr(module, name, looked_at(name))
    rollback(str(location.root), "chk-1")
    assert looks == {("inspect_for_rollback", True), ("swap", True)}
    assert not turn_of(location.url).locked()
