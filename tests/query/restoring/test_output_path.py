"""Spark's file sink under a query: its own path, whose log Spark can always read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.location_files import Writer, add_writer, writer_path
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.restore.location import facts, sink_path
from pyspark_ckpt.spark.sink import COMPACT_INTERVAL
from pyspark_ckpt.storage.open import Storage
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
        with refused(ckpt.errors.RestoreError, "fork-out", "new path", unchanged=job.base):
            second.run(savepoint)
        with monkeypatch.context() as patch:  # the first one starts just after the check
            patch.setattr(facts, "restored_path_facts", lambda *_: None)
            with pytest.raises(ckpt.errors.RestoreError, match="new path"):
                second.run(savepoint)
        run_epochs(first, 6)  # Spark compacts its log next to the claim
        second = second.but(out="fork-out2")
        second.run(savepoint)
    wanted = rows(OLD_EPOCHS + 1, OLD_EPOCHS + 6)
    assert first.result() == second.result() == wanted


def test_of_two_claims_at_once_one_counts(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both drivers have found the path free; the slower one writes nothing there."""
    savepoint = savepoint_of(job)
    fork = job.but(location="fork1", out="fork-out")
    path = job.base / fork.out / "_spark_metadata"
    other = job.base / "other"
    other.mkdir()
    (other / "metadata").write_text('{"id":"another"}')
    claim = Writer(query_id="another", location=str(other), path=str(path.parent), after=-1)

    def late(log: Storage, *claims: Any) -> None:
        add_writer(log, 1, claim)
        add_writer(log, *claims)

    monkeypatch.setattr(sink_path, "add_writer", late)
    with pytest.raises(ckpt.errors.RestoreError, match="query another"):
        fork.run(savepoint)
    assert [each.name for each in path.iterdir()] == [writer_path(1)]


@pytest.mark.slow
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
            with refused(ckpt.errors.RestoreError, used.out, "new path", unchanged=job.base):
                fork.but(out=used.out).run(savepoint)
            with refused(ckpt.errors.RestoreError, used.out, "new path", unchanged=job.base):
                fork.but(out=used.out).run()
            fork.run()  # its own path is filled already
        run_epochs(fork, 3)
    assert fork.result() == rows(OLD_EPOCHS + 1, OLD_EPOCHS + 3)


@pytest.mark.slow
def test_a_later_start_with_another_path(job: Job) -> None:
    """A new path is filled as at the restore; its earlier one continues after the others' epochs.

    The log of a path has no row of an epoch that went elsewhere. That of another query is refused.
    """
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        savepoint = savepoint_of(job)
        fork = job.but(location="fork", out="fork-out")
        fork.run(savepoint)
        run_epochs(fork, 2)
        moved = fork.but(out="fork-out2")
        run_epochs(moved, 4)
        assert fork.result() == rows(OLD_EPOCHS + 1, OLD_EPOCHS + 2)
        assert moved.result() == rows(OLD_EPOCHS + 3, OLD_EPOCHS + 6)
        with refused(ckpt.errors.RestoreError, job.out, "another query", unchanged=job.base):
            fork.but(out=job.out).run()
        shutil.rmtree(job.base / moved.out)  # the user clears the output
        run_epochs(moved, 4)
        run_epochs(fork, 3)
    assert moved.result() == rows(OLD_EPOCHS + 7, OLD_EPOCHS + 10)
    later = rows(OLD_EPOCHS + 11, OLD_EPOCHS + 13)
    assert fork.result() == [*rows(OLD_EPOCHS + 1, OLD_EPOCHS + 2), *later]


@pytest.mark.slow
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
            ckpt.location(str(query.location_path)).rollback(f"chk-{checkpoint.checkpoint_id}")
            run_epochs(query, 4)
            assert query.result() == rows(wanted, len(job.feed.rows))


class Called:
    """A ``foreachBatch`` function that keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    def __call__(self, df: DataFrame, _: int) -> None:
        self.rows += [tuple(row) for row in df.collect()]


def call_epochs(job: Job, number: int) -> list[tuple[str, int]]:
    """Run epochs of a job into another sink than its file sink; return their rows."""
    job.feed.add(*[[("a", 1)]] * number)
    called = Called()
    writer = ckpt.write_stream(job.df()).option("checkpointLocation", str(job.location_path))
    writer.foreachBatch(called).trigger(availableNow=True).start().awaitTermination()
    return called.rows


@pytest.mark.slow
def test_epochs_that_went_to_another_sink(job: Job) -> None:
    """Spark reads the path, before and after its compactions, which are at epochs 2, 5, 8 and 11.

    Without their entries in its log, it fails: ``_spark_metadata/0 doesn't exist``.
    """
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        assert call_epochs(job, 4) == rows(1, 4)
        run_epochs(job, 1)
        assert job.result() == rows(5, 5)
        assert call_epochs(job, 5) == rows(6, 10)
        run_epochs(job, 3)
    assert job.result() == [*rows(5, 5), *rows(11, 13)]


@pytest.mark.slow
def test_a_log_continues_with_another_interval(job: Job) -> None:
    """Spark looks for compactions where the interval says, and there were none with the longer."""
    run_epochs(job, 6)
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        run_epochs(job, 4)
        assert job.result() == rows(1, 10)
    assert job.result() == rows(1, 10)


def newest_of(job: Job) -> str:
    """Return the name of the newest checkpoint at a job's location."""
    found = (path.parent.name for path in job.checkpoint_path.glob("chk-*/_metadata"))
    return max(found, key=lambda name: int(name.removeprefix("chk-")))


@pytest.mark.slow
def test_an_undone_rollback_leaves_both_paths_to_their_epochs(job: Job) -> None:
    """The path that was written in between has void epochs, so the sink would leave out the next.

    It did, and Spark committed an epoch whose state was never written.
    """
    run_epochs(job, 2)
    checkpoint = newest_of(job)
    run_epochs(job, 2)
    location, other = str(job.location_path), job.but(out="out2")
    back = ckpt.location(location).rollback(checkpoint)
    run_epochs(other, 1)
    assert other.result() == rows(3, 5)
    undone = ckpt.location(location).rollback(Path(back.kept).name)
    with refused(ckpt.errors.RestoreError, other.out, "new path", unchanged=job.base):
        other.run()
    job.run()
    assert job.result() == rows(1, 5)
    ckpt.location(location).rollback(Path(undone.kept).name)
    with refused(ckpt.errors.RestoreError, job.out, "void", unchanged=job.base):
        job.run()
    run_epochs(other, 1)
    assert other.result() == rows(3, 6)


def copied(job: Job, location: str) -> Job:
    shutil.copytree(job.location_path, job.base / location)
    return job.but(location=location)


def test_two_queries_never_write_one_path(job: Job) -> None:
    """Neither was restored. The path is known again by another spelling, and so is a copy."""
    run_epochs(job, 2)
    (job.base / "link").symlink_to(job.base / job.out)
    other = job.but(location="other")
    for out in (job.out, "link", f"nothing/../{job.out}"):
        with refused(ckpt.errors.RestoreError, job.location_path, "new path", unchanged=job.base):
            other.but(out=out).run()
    copy = copied(job, "copy")
    with refused(ckpt.errors.RestoreError, "a copy", job.location_path, unchanged=job.base):
        copy.run()
    other, copy = other.but(out="out2"), copy.but(out="out3")
    run_epochs(other, 1)  # as many epochs as the other one, in the end
    copy.run()
    for query, used in ((job, other), (other, job), (copy, other)):
        with refused(ckpt.errors.RestoreError, used.out, "new path", unchanged=job.base):
            query.but(out=used.out).run()
    with refused(ckpt.errors.RestoreError, "link", f"{job.out}, or a new path", unchanged=job.base):
        job.but(out="link").run()  # Spark would not read these rows together with the others
    job.run()
    assert job.result() == other.result() == rows(1, 3)
    assert copy.result() == rows(3, 3)


def test_a_path_that_spark_has_written_without_this_library(job: Job) -> None:
    """It has no claim; a location that has noted its own paths does not take it for its own."""
    job.feed.add([("a", 1)], [("a", 1)])
    writer = job.stream().writeStream.option("checkpointLocation", str(job.base / "plain"))
    writer.trigger(availableNow=True).start(str(job.base / "plain-out")).awaitTermination()
    plain = job.but(out="plain-out")
    with refused(ckpt.errors.RestoreError, "another query", "new path", unchanged=job.base):
        plain.run()
    job.run()
    with refused(ckpt.errors.RestoreError, "another query", "new path", unchanged=job.base):
        plain.run()
    run_epochs(job, 1)
    assert job.result() == rows(1, 3)


@pytest.mark.slow
def test_a_path_that_could_not_be_seen_stays_that_of_its_query(job: Job) -> None:
    """It has no claim, and the location no note: the newest epoch shows whose path it is."""
    run_epochs(job, 2)
    shutil.rmtree(job.location_path / "_output_paths")
    (job.base / job.out / "_spark_metadata" / writer_path(1)).unlink()
    run_epochs(job, 1)
    assert job.result() == rows(1, 3)
    with refused(ckpt.errors.RestoreError, job.location_path, "new path", unchanged=job.base):
        job.but(location="other").run()


@pytest.mark.slow
def test_an_entry_that_is_gone_is_not_filled(job: Job) -> None:
    """An empty entry in its place would leave out the epoch's rows; a new path is the way out."""
    run_epochs(job, 3)
    (job.base / job.out / "_spark_metadata" / "1").rename(job.base / "aside")
    with refused(
        ckpt.errors.CorruptFileError, "lacks epochs", ": 1.", "new path", unchanged=job.base
    ):
        job.run()
    run_epochs(job.but(out="out2"), 1)
    (job.base / "aside").rename(job.base / job.out / "_spark_metadata" / "1")
    run_epochs(job, 1)
    assert job.result() == [*rows(1, 3), *rows(5, 5)]


@pytest.mark.slow
def test_tables_have_one_writer_too(job: Job) -> None:
    """A table that does not exist is made as Spark does it, and read by its name."""

    def run(job: Job, table: str) -> None:
        job.feed.add([("a", 1)])
        writer = ckpt.write_stream(job.df()).option("checkpointLocation", str(job.location_path))
        writer.option("path", str(job.base / table)).trigger(availableNow=True)
        writer.toTable(table, format="parquet").awaitTermination()

    other = job.but(location="other")
    try:
        run(job, "one_writer")
        with pytest.raises(ckpt.errors.RestoreError, match="new path or table"):
            run(other, "one_writer")
        assert call_epochs(other, 0) == rows(1, 2)
        run(other, "other_writer")
        with pytest.raises(ckpt.errors.RestoreError, match="new path or table"):
            run(other, "one_writer")
        run(job, "one_writer")
        for table, wanted in (("one_writer", rows(1, 5)), ("other_writer", rows(3, 3))):
            assert sorted(map(tuple, job.spark.read.table(table).collect())) == wanted
    finally:
        for table in ("one_writer", "other_writer"):
            job.spark.sql(f"DROP TABLE IF EXISTS {table}")
