"""Spark's file sink under a restored query: a path of its own, whose log Spark can always read."""

from __future__ import annotations

import shutil

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.restore.location import sink_path
from pyspark_ckpt.spark.sink import COMPACT_INTERVAL, FileSinkLog
from tests.query.harness import Job, refused
from tests.query.model import Count
from tests.query.session_conf import session_conf

OUTPUT = "k string, n long"
OLD_EPOCHS = 4
"""Of the query that the savepoint is of; its log has a compaction at epoch 2, and the next at 5."""


class DriverDiedError(BaseException):
    """The driver is killed, so nothing handles the error."""


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Count, output=OUTPUT)


def run_epochs(job: Job, number: int) -> None:
    job.feed.add(*[[("a", 1)]] * number)
    job.run()


def savepoint_of(job: Job) -> str:
    job.feed.add(*[[("a", 1)]] * OLD_EPOCHS)
    with job.running() as query:
        query.processAllAvailable()
        return query.triggerSavepoint(str(job.base / "savepoints")).path


def die_before_spark(job: Job, savepoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore a job's location, whose driver dies before Spark begins."""

    def die(*_: object) -> None:
        raise DriverDiedError

    with monkeypatch.context() as patch:
        patch.setattr(QueryStart, "_fence_others", die)
        with pytest.raises(DriverDiedError):
            job.run(savepoint)


def rows(first: int, last: int) -> list[tuple[str, int]]:
    return [("a", n) for n in range(first, last + 1)]


def test_a_path_is_of_one_restored_query(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two forks have the same epochs, so each would skip what the other one has written."""
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        savepoint = savepoint_of(job)
        first = job.but(location="fork1", out="fork-out")
        first.run(savepoint)  # there is no input yet: the log has no rows
        second = job.but(location="fork2", out="fork-out")
        with refused(ckpt.RestoreError, "fork-out", "new path", unchanged=job.base):
            second.run(savepoint)
        with monkeypatch.context() as patch:  # the first one starts just after the check
            patch.setattr("pyspark_ckpt.restore.location.start_location.check_fresh", lambda *_: 0)
            with pytest.raises(ckpt.RestoreError, match="new path"):
                second.run(savepoint)
        run_epochs(first, 6)  # Spark compacts its log beside the claim
        second = second.but(out="fork-out2")
        second.run(savepoint)
    wanted = rows(OLD_EPOCHS + 1, OLD_EPOCHS + 6)
    assert first.result() == second.result() == wanted


def test_of_two_claims_at_once_one_counts(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both drivers have found the path free; the slower one writes nothing there."""
    savepoint = savepoint_of(job)
    fork = job.but(location="fork1", out="fork-out")
    path, claim = job.base / fork.out / "_spark_metadata", sink_path._claim

    def late(sink: FileSinkLog, ids: tuple[str, ...]) -> None:
        claim(sink, ("another",))
        claim(sink, ids)

    monkeypatch.setattr(sink_path, "_claim", late)
    with pytest.raises(ckpt.RestoreError, match="query another"):
        fork.run(savepoint)
    assert [each.name for each in path.iterdir()] == [sink_path.CLAIM_NAME]


def test_a_restored_query_does_not_start_into_the_path_of_another(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver died before the first epoch, and the next start names a path that is in use."""
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        savepoint = savepoint_of(job)
        other = job.but(location="other", out="other-out")
        other.run()
        for n, used in enumerate((job, other)):
            fork = job.but(location=f"fork{n}", out=f"fork-out{n}")
            die_before_spark(fork, savepoint, monkeypatch)
            with refused(ckpt.RestoreError, used.out, "new path", unchanged=job.base):
                fork.but(out=used.out).run(savepoint)
            with refused(ckpt.RestoreError, used.out, "new path", unchanged=job.base):
                fork.but(out=used.out).run()
            fork.run()  # its own path is filled already
        run_epochs(fork, 3)
    assert fork.result() == rows(OLD_EPOCHS + 1, OLD_EPOCHS + 3)


def test_a_later_start_with_another_path(job: Job) -> None:
    """A new path is filled as at the restore; one that lacks epochs is refused."""
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        savepoint = savepoint_of(job)
        fork = job.but(location="fork", out="fork-out")
        fork.run(savepoint)
        run_epochs(fork, 2)
        moved = fork.but(out="fork-out2")
        run_epochs(moved, 4)
        assert fork.result() == rows(OLD_EPOCHS + 1, OLD_EPOCHS + 2)
        assert moved.result() == rows(OLD_EPOCHS + 3, OLD_EPOCHS + 6)
        for used in (fork, job):  # its own earlier path, and that of another query
            with refused(ckpt.RestoreError, used.out, "lacks epochs", unchanged=job.base):
                fork.but(out=used.out).run()
        shutil.rmtree(job.base / moved.out)  # the user clears the output
        run_epochs(moved, 4)
    assert moved.result() == rows(OLD_EPOCHS + 7, OLD_EPOCHS + 10)


def test_a_query_that_is_rolled_back_keeps_its_path(job: Job) -> None:
    """Its log ends with the epoch of the checkpoint, and has the claim of the id before."""
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        savepoint = savepoint_of(job)
        fork = job.but(location="fork", out="fork-out")
        fork.run(savepoint)
        for query, wanted in ((job, 1), (fork, OLD_EPOCHS + 1)):
            with query.running() as running:
                running.processAllAvailable()
                checkpoint = running.triggerCheckpoint()
            ckpt.rollback(str(query.location_path), f"chk-{checkpoint.checkpoint_id}")
            run_epochs(query, 4)
            assert query.result() == rows(wanted, len(job.feed.rows))
