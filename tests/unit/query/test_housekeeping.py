"""The coordinator looks for requests as often as the storage allows."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.requests import Action, Request, RequestFiles
from pyspark_ckpt.query.coordinator import Housekeeping, remove_leftovers
from pyspark_ckpt.query.requests import Actions, RequestHandler, WorkUnderWay
from pyspark_ckpt.restore.location.swap import Swap, finish_restart, swap
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.memory import MemoryStorage
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.restore.location.paused import Paused, pausing


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("the query has no directory for savepoints, so nothing is carried out")


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.mark.parametrize(("poll_ms", "looks_at_ms"), [(0, [0, 1, 2]), (5000, [0, 5000, 10_001])])
def test_a_request_is_found_at_the_next_look(
    storage: Storage, poll_ms: int, looks_at_ms: list[int]
) -> None:
    files = RequestFiles(storage)
    clock = Clock()
    handler = RequestHandler(storage, None, Actions(refuse, refuse), WorkUnderWay())  # type: ignore[arg-type]
    housekeeping = Housekeeping(handler, lambda: None, Settings(), clock, poll_ms)
    for look_ms in looks_at_ms:
        posted = files.post(
            Request(
                action=Action.SAVEPOINT,
                requested_at_ms=now_ms(),
                expires_at_ms=now_ms() + 60_000,
                requested_by="test",
            )
        )
        if look_ms > 0 and poll_ms > 0:
            clock.now_ms = look_ms - 2  # one turn too early
            housekeeping.do(has_won=True)
            assert files.answer_to(posted) is None
        clock.now_ms = look_ms
        housekeeping.do(has_won=True)
        answer = files.answer_to(posted)
        assert answer is not None
        assert "savepoint-dir" in str(answer.error)


RESTART = Swap(
    to="2 subtasks",
    kept="_before_restart-1",
    staged="_restarting-1",
    outgoing=("offsets", "state"),
    incoming=("offsets", "state"),
    restarts=True,
)
NEW = ("offsets/5", "state/0/6.snapshot", "state/1/6.snapshot")
LEFT = ("_restarting-0/state/0/6.snapshot", "_before_restart-0/state/0/6.delta")

OPERATIONS = ("list", "exists", "read", "delete_directory")
PausedDisk = pausing(LocalStorage, *OPERATIONS)
PausedObjects = pausing(MemoryStorage, *OPERATIONS)
CutDisk = pausing(LocalStorage, "write", "move")
CutObjects = pausing(MemoryStorage, "write", "copy_within")


class KilledError(Exception):
    """The driver is killed."""


def killed() -> None:
    raise KilledError


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize(
    ("first", "second"),
    [(PausedDisk, CutDisk), (PausedObjects, CutObjects)],
    ids=["disk", "objects"],
)
def test_a_paused_driver_removes_nothing_of_a_restart_of_the_next_driver(
    tmp_path: Path, first: Any, second: Any, steps: int
) -> None:
    """It is paused before each of its steps; the next driver is then in the midst of a restart."""
    has_removed = {True: 0, False: 0}
    for at in range(1, 20):
        place = str(tmp_path / str(at)) if first is PausedDisk else secrets.token_hex(8)
        kind = Path if first is PausedDisk else str
        location, other = first(kind(place)), second(kind(place))
        for name in ("offsets/5", "state/0/6.delta", *LEFT):
            other.write(name, [b"old"])
        checkpoints = first(kind(f"{place}/pyspark_ckpt"))
        fence = CompletedCheckpoints(checkpoints)
        fence.claim()

        def restart(other: Any = other) -> None:
            """Start, and be killed in a restart in place once its new content is staged."""
            following = CompletedCheckpoints(other.child("pyspark_ckpt"))
            following.claim()
            for name in NEW:
                other.write(f"{RESTART.staged}/{name}", [b"new"])
            other.paused = Paused(steps, killed)
            with suppress(KilledError):
                swap(other, RESTART, following)
            other.paused = Paused()

        location.paused = checkpoints.paused = paused = Paused(at, restart)
        remove_leftovers(lambda: None, FencedStorage(location, fence))
        has_removed[not any(map(other.exists, LEFT))] += 1
        if paused.left > 0:
            break
        finish_restart(other)  # or give up what nobody has claimed
        staged = "" if other.exists("state/1/6.snapshot") else f"{RESTART.staged}/"
        assert [other.read(f"{staged}{name}") for name in NEW] == [b"new"] * len(NEW)
    else:
        pytest.fail("it was paused before each step, and there were more")
    assert all(has_removed.values())
