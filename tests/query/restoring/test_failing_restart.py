"""A restart in place fails, is interrupted, or meets another driver: the query goes on, once."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.formats.requests import RequestFiles
from pyspark_ckpt.query import restarts
from pyspark_ckpt.query.restarts import Restarts
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.restarting import staging
from pyspark_ckpt.restore.location import swap
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.query.harness import (
    INLINE,
    INTERVAL,
    Job,
    drop_local_copies,
)
from tests.query.restoring.numbered_job import (
    NUMBERED,
    PARTITIONS,
    Numbered,
    check_numbered,
    epoch_of,
    subtasks_of,
    writer_of,
)
from tests.query.session_conf import session_conf
from tests.unit.query.test_requests import request


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Numbered, output=NUMBERED).using({INLINE: "0b", INTERVAL: "1h"})


@pytest.mark.slow
def test_a_restart_that_fails_half_way(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query stops, its location is swapped, the start fails: it runs as before."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        real, runs = QueryStart.run, []

        def fails_once(self: QueryStart, *arguments: Any) -> Any:
            runs.append(self)
            if len(runs) == 1:
                assert (job.location_path / "state" / "0" / "2").exists()
                msg = "no start"
                raise OSError(msg)
            return real(self, *arguments)

        monkeypatch.setattr(QueryStart, "run", fails_once)
        with pytest.raises(OSError, match="no start"):
            query.rescale(3)
        assert query.isActive
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(query) == {0, 1}
        query.stop()


@pytest.mark.parametrize("another_came", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_restart_that_fails_behind_its_claim(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, another_came: bool
) -> None:
    """The new run has the fence, and cannot have its coordinator: the query runs as before.

    If another driver has claimed the query by then, it is left to that one.
    """
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        with monkeypatch.context() as patched:

            def fails(*_: Any) -> Any:
                if another_came:
                    CompletedCheckpoints(LocalStorage(job.checkpoint_path)).claim()
                patched.undo()
                msg = "no record"
                raise OSError(msg)

            patched.setattr("pyspark_ckpt.query.coordinator.start_record", fails)
            with pytest.raises(OSError, match="no record"):
                query.rescale(3)
        assert query.isActive is not another_came
        if another_came:
            assert "another driver" in str(query.exception())
            return
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(query) == {0, 1}
        assert query.rescale(3).epoch == 2  # after the epoch that the failed restart has begun
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 3)
        query.stop()
        assert query.exception() is None


@pytest.mark.slow
@pytest.mark.parametrize("failures", [1, 2])
def test_a_restart_survives_that_its_checkpoint_fails(
    job: Job, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """It is taken once more. If that fails too, the query runs as before."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        query.triggerCheckpoint()
        epoch_of(job)
        query.processAllAvailable()
        real, left = CheckpointRunner.take, [OSError("the storage is away")] * failures

        def fails(self: CheckpointRunner, *arguments: Any, **named: Any) -> Any:
            if left:
                raise left.pop()
            return real(self, *arguments, **named)

        monkeypatch.setattr(CheckpointRunner, "take", fails)
        if failures == 1:
            assert query.rescale(3).epoch == 1
        else:
            with pytest.raises(OSError, match="the storage is away"):
                query.rescale(3)
        assert not left
        assert query.isActive
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 3)
        assert subtasks_of(query) == set(range(3 if failures == 1 else 2))
        assert query.triggerCheckpoint().epoch == (3 if failures == 1 else 2)
        query.stop()
        assert query.exception() is None


@pytest.mark.slow
def test_a_restart_that_leaves_the_query_stopped_is_a_failure_of_the_query(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for its end gets the failure, not only the caller of the restart."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()

        def fails(*_: Any) -> Any:
            msg = "no start"
            raise OSError(msg)

        with monkeypatch.context() as patched:
            patched.setattr(QueryStart, "run", fails)
            with pytest.raises(OSError, match="no start"):
                query.rescale(3)
        assert not query.isActive
        assert isinstance(query.exception(), ckpt.errors.FailedCheckpointsError)
        with pytest.raises(ckpt.errors.FailedCheckpointsError, match=r"restart in place.*no start"):
            query.awaitTermination()
        assert query.stopWithSavepoint(str(job.base / "savepoints")).epoch == 1
        epoch_of(job)
        again = writer_of(job).start()
        again.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(again) == {0, 1}
        again.stop()


@pytest.mark.slow
@pytest.mark.parametrize("why", ["somebody stops it", "its run has failed"])
def test_a_restart_that_leaves_the_query_stopped_refuses_requests_and_lets_it_be_saved(
    job: Job, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It ends while it is restarted, and does not start again as it was."""
    files = RequestFiles(LocalStorage(job.checkpoint_path))
    posted: list[str] = []

    def ends(*_: Any) -> None:
        coordinator = query._coordinator
        posted.append(files.post(request()))
        if why == "somebody stops it":
            coordinator.state.keep_stopped()
        else:
            coordinator.state.note(ckpt.errors.FailedCheckpointsError("no luck"))
        msg = "no swap"
        raise OSError(msg)

    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        monkeypatch.setattr(restarts, "change_in_place", ends)
        with pytest.raises(OSError, match="no swap"):
            query.rescale(3)
        assert not query.isActive
        answer = files.answer_to(posted[0])
        assert answer is not None
        assert "the query has ended" in str(answer.error)
        assert query.stopWithSavepoint(str(job.base / "savepoints")).epoch == 0


@pytest.mark.slow
@pytest.mark.parametrize("errors", [[KeyboardInterrupt()], [OSError("no"), KeyboardInterrupt()]])
def test_a_restart_that_the_user_interrupts(
    job: Job, monkeypatch: pytest.MonkeyPatch, errors: list[BaseException]
) -> None:
    """The query runs as before, or it has failed: it never looks like one that ended well."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        real, left = QueryStart.run, list(errors)

        def interrupted(self: QueryStart, *arguments: Any) -> Any:
            if left:
                raise left.pop(0)
            return real(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(QueryStart, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                query.rescale(3)
        assert not left
        epoch_of(job)
        if len(errors) == 1:
            query.processAllAvailable()
            check_numbered(job, 2)
            query.stop()
        else:
            assert not query.isActive
            assert isinstance(query.exception(), ckpt.errors.FailedCheckpointsError)
            with pytest.raises(ckpt.errors.FailedCheckpointsError, match="restart in place"):
                query.awaitTermination()


def test_an_swap_that_fails_in_its_midst_is_undone(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is away for one move; the query runs on with the subtasks that it had."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        real, moves = LocalStorage.move, []

        def fails_once(self: LocalStorage, relative: str, target: str) -> None:
            moves.append(relative)
            if len(moves) == 2:
                msg = "the storage is away"
                raise OSError(msg)
            real(self, relative, target)

        monkeypatch.setattr(LocalStorage, "move", fails_once)
        with pytest.raises(OSError, match="the storage is away"):
            query.rescale(3)
        assert len(moves) > 2
        assert query.isActive
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(query) == {0, 1}
        query.stop()


def test_a_query_that_could_not_be_stopped_for_a_restart_runs_on_and_saves(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is out of reach at the check of the fence."""

    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        store: Any = type(query._coordinator.lease)
        me, real = threading.get_ident(), store.check

        def out_of_reach(self: Any) -> None:
            if threading.get_ident() == me:  # the coordinator's thread has the store all the time
                msg = "connection reset"
                raise OSError(msg)
            real(self)

        with monkeypatch.context() as patched:
            patched.setattr(store, "check", out_of_reach)
            with pytest.raises(OSError, match="connection reset"):
                query.rescale(3)
        assert query.isActive
        assert query.stopWithSavepoint(str(job.base / "savepoints")).epoch == 0


@pytest.mark.soak
def test_a_rescale_at_an_epoch_that_ran_again_after_a_power_loss(job: Job) -> None:
    """Its state is that of the epoch with more rows, not that of the epoch that was lost."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        epoch_of(job)
        query.processAllAvailable()
        lost = query.triggerCheckpoint()
        query.stop()
        _lose_epoch(job, 1)
        assert drop_local_copies(job.spark)
        epoch_of(job)
        job.feed.files_per_epoch = 2
        query = writer_of(job).start()
        query.processAllAvailable()
        check_numbered(job, 3)
        assert query.rescale(3).epoch == 1 == lost.epoch
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 4)
        query.stop()


def _lose_epoch(job: Job, epoch: int) -> None:
    """Delete what Spark, which syncs no file, wrote in the newest epoch."""
    location = job.location_path
    paths = [location / "offsets" / f"{epoch}", location / "commits" / f"{epoch}"]
    paths += [*location.glob(f"sources/*/{epoch}"), *location.glob(f"state/*/*/{epoch + 1}.delta")]
    paths.append(job.base / job.out / "_spark_metadata" / f"{epoch}")
    for path in paths:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_location_that_is_half_swapped_starts(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that ends within the swap leaves a location that the next start finishes."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()

        class EndedError(BaseException):
            pass

        def ends(*arguments: Any) -> None:
            raise EndedError

        monkeypatch.setattr(swap, "_move_out", ends)
        monkeypatch.setattr(Restarts, "_start_as_before", lambda *_: None)
        with pytest.raises(EndedError):
            query.rescale(3)
        monkeypatch.undo()
        assert (job.location_path / "_rollback").exists()
        epoch_of(job)
        again = writer_of(job).start()
        again.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(again) == {0, 1, 2}
        again.stop()


@pytest.mark.soak
def test_a_driver_that_starts_meanwhile_keeps_its_location(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver is paused before it swaps anything; the other one commits an epoch."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        others: list[ckpt.CheckpointedQuery] = []

        def paused(*arguments: Any) -> None:
            epoch_of(job)
            others.append(writer_of(job).start())
            others[0].processAllAvailable()
            swap.swap(*arguments)

        monkeypatch.setattr(staging, "swap", paused)
        monkeypatch.setattr(QueryStart, "alone", lambda _: nullcontext())  # as in two processes
        with pytest.raises(ckpt.errors.FencedError):
            query.rescale(3)
        assert not (job.location_path / "_rollback").exists()
        epoch_of(job)
        others[0].processAllAvailable()
        check_numbered(job, 3)
        assert subtasks_of(others[0]) == {0, 1}
        others[0].stop()


def test_an_epoch_that_another_driver_has_begun_is_not_lost(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused while this driver took the query over, and begins an epoch before the swap."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        offsets = job.location_path / "offsets"
        begun = (offsets / "0").read_text()  # without further input

        def late(*arguments: Any) -> None:
            (offsets / "1").write_text(begun)
            swap.swap(*arguments)

        monkeypatch.setattr(staging, "swap", late)
        with pytest.raises(ckpt.errors.FencedError, match="has begun an epoch after epoch 0"):
            query.rescale(3)
        assert not query.isActive
        assert not (job.location_path / "_rollback").exists()
        assert (offsets / "1").read_text() == begun
        epoch_of(job)
        again = writer_of(job).start()
        again.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(again) == {0, 1}
        again.stop()


@pytest.mark.slow
def test_a_second_start_that_spark_refuses_leaves_the_query_as_it_is(job: Job) -> None:
    """The name is taken. The query is not fenced: it takes checkpoints and is rescaled."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).queryName("taken").start()
        query.processAllAvailable()
        with pytest.raises(Exception, match="already active"):
            writer_of(job).queryName("taken").start()
        epoch_of(job)
        query.processAllAvailable()
        assert query.triggerCheckpoint().epoch == 1
        query.rescale(3)
        check_numbered(job, 2)
        query.stop()
