"""A rollback waits whether a run without an end gives a sign of life, whatever the clocks say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.history.run_log import RUNS, SILENCE_MS, RunEnded, RunLog, RunNote, RunStarted
from pyspark_ckpt.restarting.stopped import check_silent
from pyspark_ckpt.storage.open import LocalStorage

HOUR_MS = 3_600_000
NOTES_MS = 30_000


class Driver:
    """A driver of a query on a host whose clock is apart."""

    def __init__(self, storage: LocalStorage, run: str, apart_ms: int = 0) -> None:
        self._log, self._run, self._apart_ms = RunLog(storage), run, apart_ms
        self._log.write(
            RunStarted(run_id=run, at_ms=self._now_ms, query_id="q", started_by="a@host")
        )

    @property
    def _now_ms(self) -> int:
        return now_ms() + self._apart_ms

    def note(self, epoch: int | None = None) -> None:
        epochs = 0 if epoch is None else 1
        note = RunNote(run_id=self._run, at_ms=self._now_ms, epoch=epoch, other_epochs=epochs)
        self._log.write(note)

    def end(self, error: str | None = None) -> None:
        self._log.write(RunEnded(run_id=self._run, at_ms=self._now_ms, error=error))


class Wait:
    """The time in which a rollback waits, and what drivers do during it."""

    def __init__(self, checkpoints: LocalStorage) -> None:
        self._checkpoints = checkpoints
        self.waited_ms = 0
        self.does: Callable[[], object] = lambda: None
        self.at_ms = NOTES_MS

    def _sleep(self, seconds: float) -> None:
        before, self.waited_ms = self.waited_ms, self.waited_ms + round(seconds * 1000)
        if before < self.at_ms <= self.waited_ms:
            self.does()

    def check(self) -> None:
        location = self._checkpoints.parent()
        check_silent(location, self._checkpoints, clock=lambda: self.waited_ms, sleep=self._sleep)


@pytest.fixture
def checkpoints(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "location" / "pyspark_ckpt")


@pytest.fixture
def wait(checkpoints: LocalStorage) -> Wait:
    return Wait(checkpoints)


apart = pytest.mark.parametrize("apart_ms", [-HOUR_MS, 0, HOUR_MS], ids=["behind", "same", "ahead"])


@apart
def test_a_driver_that_notes_is_running(
    checkpoints: LocalStorage, wait: Wait, apart_ms: int
) -> None:
    driver = Driver(checkpoints, "a", apart_ms)
    driver.note(epoch=3)
    wait.does = driver.note
    with pytest.raises(RestoreError, match=r"sign of life.*run a, started by a@host"):
        wait.check()


@apart
def test_a_driver_that_was_killed_is_silent(
    checkpoints: LocalStorage, wait: Wait, apart_ms: int
) -> None:
    Driver(checkpoints, "a", apart_ms).note(epoch=3)
    wait.check()
    assert wait.waited_ms > SILENCE_MS


@apart
def test_a_driver_beside_another_one_that_has_ended_is_running(
    checkpoints: LocalStorage, wait: Wait, apart_ms: int
) -> None:
    """The other one was fenced: the run that was started last has ended, and the first has not."""
    first = Driver(checkpoints, "a", apart_ms)
    first.note(epoch=3)
    Driver(checkpoints, "b").end("fenced")
    wait.does = first.note
    with pytest.raises(RestoreError, match="sign of life"):
        wait.check()


def test_a_driver_that_starts_meanwhile_is_running(checkpoints: LocalStorage, wait: Wait) -> None:
    Driver(checkpoints, "a").note(epoch=3)
    wait.does = lambda: Driver(checkpoints, "b")
    with pytest.raises(RestoreError, match="sign of life"):
        wait.check()


def test_a_driver_that_ends_meanwhile_is_not_waited_for(
    checkpoints: LocalStorage, wait: Wait
) -> None:
    driver = Driver(checkpoints, "a")
    driver.note(epoch=3)
    wait.does = driver.end
    wait.check()
    assert wait.waited_ms == NOTES_MS


def test_nobody_waits_for_runs_that_have_ended(checkpoints: LocalStorage, wait: Wait) -> None:
    """Nor for one that was killed before another run took the query over."""
    wait.check()
    Driver(checkpoints, "killed").note(epoch=3)
    last = Driver(checkpoints, "last")
    last.note(epoch=4)
    last.end()
    wait.check()
    assert not wait.waited_ms


@pytest.mark.parametrize("notes", [False, True])
def test_a_run_whose_start_cannot_be_read_may_go_on(
    checkpoints: LocalStorage, wait: Wait, notes: bool
) -> None:
    """It may be of a newer version, whose records are left out."""
    driver = Driver(checkpoints, "newer")
    (start,) = (checkpoints.root / RUNS).glob("*-started-*.json")
    start.write_bytes(start.read_bytes().replace(b'"version":1', b'"version":2'))
    if notes:
        wait.does = driver.note
        with pytest.raises(RestoreError, match="cannot be read"):
            wait.check()
    else:
        wait.check()
        assert wait.waited_ms > SILENCE_MS


def test_a_run_of_which_only_a_note_is_known_may_go_on(
    checkpoints: LocalStorage, wait: Wait
) -> None:
    Driver(checkpoints, "a").note(epoch=3)
    (start,) = (checkpoints.root / RUNS).glob("*-started-*.json")
    start.unlink()
    wait.check()
    assert wait.waited_ms > SILENCE_MS
