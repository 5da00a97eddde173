"""What a run of a query leaves for who looks at it later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.history.run_log import RecordedRuns, RunEnded, RunStarted
from pyspark_ckpt.settings import PARALLELISM
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import INTERVAL, OFTEN, Job
from tests.query.model import Count
from tests.query.restoring.numbered_job import writer_of
from tests.query.session_conf import session_conf


class Failing(Count):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if key[0] == "bad":
            raise ValueError("this key is bad")
        yield from super().handleInputRows(key, rows, timerValues)


def runs_of(job: Job) -> RecordedRuns:
    return RecordedRuns(LocalStorage(job.checkpoint_path))


def test_a_run_leaves_its_start_its_epochs_its_checkpoints_and_its_end(job: Job) -> None:
    job = job.but(processor=Count, output="k string, n long").using(OFTEN)
    job.feed.add([("a", 1), ("b", 2)])
    with job.running() as query:
        query.processAllAvailable()
        query.triggerCheckpoint()
        job.feed.add([("a", 3)])
        query.processAllAvailable()
    runs = runs_of(job)
    started, ended = runs.starts_and_ends()
    assert isinstance(started, RunStarted)
    assert isinstance(ended, RunEnded)
    assert ended.error is None
    assert ended.run_id == started.run_id == query.runId
    assert (started.query_id, started.operators) == (query.id, ("op",))
    assert "@" in started.started_by
    notes = runs.notes(100)
    epochs = [epoch for note in notes for epoch in note.epochs]
    assert [epoch.epoch for epoch in epochs] == [0, 1]
    assert [epoch.rows for epoch in epochs] == [2, 1]
    assert all("addBatch" in epoch.phases_ms for epoch in epochs)
    checkpoints = [each for note in notes for each in note.checkpoints]
    assert [each.epoch for each in checkpoints][-1] == 1
    (operator,) = checkpoints[-1].operators
    assert operator.uid == "op"
    recorded = {each.checkpoint_id for each in checkpoints}
    assert set(ckpt.location(str(job.location_path)).history()["checkpoint_id"]) <= recorded


def test_phases_are_recorded_of_epochs_without_a_checkpoint_too(job: Job) -> None:
    job = job.but(processor=Count, output="k string, n long").using({INTERVAL: "1h"})
    job.feed.add([("a", 1)])
    with job.running() as query:
        for number in range(3):
            query.processAllAvailable()
            job.feed.add([("a", number)])
        query.processAllAvailable()
        checkpoint = query.triggerCheckpoint()
        (progress,) = query.lastOperatorProgress
    notes = runs_of(job).notes(100)
    done = [each for note in notes for each in note.operator_epochs]
    assert [(each.uid, each.epoch) for each in done] == [("op", number) for number in range(4)]
    assert checkpoint.epoch == 3
    assert done[-1].barrier_ms <= progress["barrierTimeMs"]
    took = {each.epoch: each.duration_ms for note in notes for each in note.epochs}
    assert all(0 < each.total_ms <= took[each.epoch] for each in done)
    assert all(0 <= each.began_ms <= took[each.epoch] for each in done)


@pytest.mark.slow
def test_a_failed_run_leaves_the_reason_and_the_line_of_the_processor(job: Job) -> None:
    job = job.but(processor=Failing, output="k string, n long")
    job.feed.add([("good", 1)])
    job.run()
    job.feed.add([("bad", 1)])
    with pytest.raises(ckpt.errors.ProcessorError):
        job.run()
    ended = [each for each in runs_of(job).starts_and_ends() if isinstance(each, RunEnded)]
    assert [each.error is None for each in ended] == [True, False]
    assert ended[-1].error_kind == "ProcessorError"
    assert ended[-1].error is not None
    assert "this key is bad" in ended[-1].error
    assert "test_run_log.py" in ended[-1].error
    assert 'raise ValueError("this key is bad")' in ended[-1].error


def test_a_start_says_where_each_setting_came_from(job: Job) -> None:
    job = job.but(processor=Count, output="k string, n long").using({INTERVAL: "45s"})
    job.feed.add([("a", 1)])
    job.spark.conf.set("spark.ckpt.execution.checkpointing.num-retained", "7")
    try:
        job.run()
    finally:
        job.spark.conf.unset("spark.ckpt.execution.checkpointing.num-retained")
    (started, _) = runs_of(job).starts_and_ends()
    assert isinstance(started, RunStarted)
    found = {each.key: (each.value, each.source) for each in started.settings}
    assert found[INTERVAL] == ("45s", "option")
    assert found["spark.ckpt.execution.checkpointing.num-retained"] == ("7", "conf")
    assert found["spark.ckpt.execution.checkpointing.timeout"] == ("10min", "default")


def test_a_restored_query_records_that_and_a_new_run_gets_its_own_records(job: Job) -> None:
    job = job.but(processor=Count, output="k string, n long")
    job.feed.add([("a", 1)])
    job.run()
    newest = ckpt.location(str(job.location_path)).history().iloc[-1]["path"]
    fork = job.but(location="fork", out="fork_out")
    fork.run(restore=newest)
    job.feed.add([("a", 2)])
    fork.run()
    records = runs_of(fork).starts_and_ends()
    starts = [each for each in records if isinstance(each, RunStarted)]
    assert len({each.run_id for each in starts}) == 2
    (path,) = [each for each in starts[0].settings if each.key.endswith("state-recovery.path")]
    assert path.source == "restoreFrom"
    assert path.value == newest
    with session_conf(job.spark, {path.key: "/elsewhere"}):  # what is called for wins
        other = job.but(location="other", out="other_out")
        other.run(restore=newest)
    (started, _) = runs_of(other).starts_and_ends()
    assert isinstance(started, RunStarted)
    assert path in started.settings
    assert [type(each) for each in records] == [RunStarted, RunEnded] * 2


@pytest.mark.slow
def test_a_rescaled_run_says_that_its_parallelism_is_that_of_the_location(job: Job) -> None:
    job = job.but(processor=Count, output="k string, n long").using({INTERVAL: "1h"})
    job.feed.add([("a", 1)])
    with session_conf(job.spark, {PARALLELISM: "2"}):
        query = writer_of(job).start()
        query.processAllAvailable()
        query.rescale(3)
        query.stop()
    found = [
        (each.value, each.source)
        for record in runs_of(job).starts_and_ends()
        if isinstance(record, RunStarted)
        for each in record.settings
        if each.key == PARALLELISM
    ]
    assert found == [("2", "conf"), ("3", "location")]
