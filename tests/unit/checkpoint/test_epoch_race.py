"""Which of several runs of a query has committed the newest epoch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ckpt.checkpoint import epoch_race
from pyspark_ckpt.checkpoint.epoch_race import EpochRace, Standing
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.local import LocalStorage


class Run:
    """A run of a query, and the epochs that are committed at its location."""

    def __init__(self, location: Path) -> None:
        (location / "commits").mkdir()
        self._commits = location / "commits"
        self.commit(4)
        self.location = location
        self.belongs_to("ours")
        self.query: Any = SimpleNamespace(
            isActive=True, lastProgress=None, recentProgress=[], id="ours"
        )
        self.race = EpochRace(self.query, SparkLog(LocalStorage(location)))

    def commit(self, epoch: int) -> None:
        (self._commits / str(epoch)).touch()

    def belongs_to(self, query_id: str) -> None:
        (self.location / "metadata").write_text(json.dumps({"id": query_id}))

    def reports(self, epoch: int, *, idle: bool = False) -> None:
        durations = {"latestOffset": 1, "triggerExecution": 1}
        self.query.lastProgress = {
            "batchId": epoch,
            "durationMs": durations if idle else {**durations, "addBatch": 5},
        }
        self.query.recentProgress.append(self.query.lastProgress)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(epoch_race, "REPORTED_WITHIN_SECONDS", 0.0)
    return Run(tmp_path)


def test_before_its_first_epoch_a_run_neither_wins_nor_loses(run: Run) -> None:
    assert run.race.standing() is Standing.OPEN
    run.reports(5, idle=True)
    assert run.race.standing() is Standing.OPEN
    assert not run.race.has_won
    assert not run.race.is_lost
    run.commit(5)
    assert run.race.standing() is Standing.ANOTHERS
    assert run.race.is_lost


def test_a_run_without_reports_does_not_know_that_it_has_lost(run: Run) -> None:
    run.commit(5)
    assert not run.race.is_lost


def test_a_run_whose_epoch_nobody_has_seen_has_not_lost(run: Run) -> None:
    """Spark reports an epoch, and then that nothing came, while a checkpoint takes long."""
    run.commit(5)
    run.reports(5)
    run.reports(6, idle=True)
    assert not run.race.is_lost
    run.commit(6)
    assert run.race.is_lost


def test_the_run_that_has_committed_the_newest_epoch_has_won(run: Run) -> None:
    run.commit(5)
    run.reports(5)
    assert run.race.standing() is Standing.OURS
    assert run.race.has_won
    run.commit(6)
    assert run.race.standing() is Standing.ANOTHERS
    assert run.race.has_won


def test_a_run_has_lost_once_its_location_is_rolled_back(run: Run) -> None:
    """The epochs are another query's, and older than what the run has committed."""
    run.commit(5)
    run.reports(5)
    run.belongs_to("another")
    assert run.race.standing() is Standing.ANOTHERS
    (run.location / "metadata").unlink()  # in the midst of it
    assert run.race.standing() is Standing.ANOTHERS


def test_a_run_without_input_still_has_its_epochs(run: Run) -> None:
    run.commit(5)
    run.reports(5)
    assert run.race.has_won
    run.commit(6)
    run.reports(7, idle=True)  # nobody looked between epoch 6 and this report
    assert run.race.standing() is Standing.OURS
    run.commit(7)
    assert run.race.standing() is Standing.ANOTHERS


def test_a_run_that_has_ended_is_not_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_race, "REPORTED_WITHIN_SECONDS", 1e9)
    run.commit(5)
    run.query.isActive = False
    assert run.race.standing() is Standing.ANOTHERS
