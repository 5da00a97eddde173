"""A running query is restarted in place: per key 1, 2, 3..., and the sink has each row once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.api.restarts import Restarts
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.requests import POLL_MS
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.restarting import staging
from pyspark_ckpt.restore import exchange
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import (
    BACKEND,
    BACKENDS,
    INLINE,
    INTERVAL,
    Job,
    completed,
    drop_local_copies,
    until,
)
from tests.query.session_conf import session_conf

PARTITIONS = "spark.sql.shuffle.partitions"
SOON = {
    "spark.ckpt.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.state.changelog.materialize.max-segments": "1",
}
NUMBERED = "k string, n long, what string"
KEYS = [f"k{number}" for number in range(20)]


class Numbered(StatefulProcessor):
    """Number the rows of each key."""

    what = "a"

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            n = (self.n.get() or (0,))[0] + 1
            self.n.update((n,))
            yield Row(k=key[0], n=n, what=self.what)

    def close(self) -> None:
        pass


class Mended(Numbered):
    what = "b"


class Other(Numbered):
    """A program whose state has another name."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("m", "n long")
        handle.deleteIfExists("n")


class Renamed(Numbered):
    """A program that does not fit the state."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n string")


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Numbered, output=NUMBERED).using({INLINE: "0b", INTERVAL: "1h"})


def writer_of(job: Job) -> ckpt.CheckpointedStreamWriter:
    """Return the writer of a query that is given as a function."""
    writer = ckpt.write_stream(job.df).format("parquet").outputMode("append")
    writer = writer.option("path", str(job.base / job.out))
    writer = writer.option("checkpointLocation", str(job.location_path))
    for key, value in job.options.items():
        writer = writer.option(key, value)
    return writer


def epoch_of(job: Job) -> None:
    job.feed.add([(key, 0) for key in KEYS])


def check_numbered(job: Job, epochs: int) -> None:
    """Each key has 1, 2, 3... once."""
    found = sorted((k, n) for k, n, _ in job.result())
    assert found == sorted((key, n + 1) for key in KEYS for n in range(epochs))


def subtasks_of(query: ckpt.CheckpointedQuery) -> set[int]:
    query.triggerCheckpoint()
    newest = max(completed(query), key=lambda row: row.checkpoint_id)
    return set(ckpt.subtask_history(newest.path.rpartition("/")[0]).query(
        f"checkpoint_id == {newest.checkpoint_id}"
    )["subtask"])  # fmt: skip


def test_a_live_state_continues_with_the_query(job: Job) -> None:
    """It is read before, during and after restarts, also by a sink, until the query ends."""
    in_sink: list[tuple[int, int]] = []
    seen: list[int] = []
    failures: list[BaseException] = []
    lives: list[ckpt.LiveState] = []
    end = threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.count()
        if epoch:
            in_sink.append((epoch, lives[0].get("k1").epoch))

    def read() -> None:
        try:
            while not end.is_set():
                seen.append(lives[0].get("k1").value["n"])
                assert set(lives[0].to_pandas()["n"]) in ({seen[-1]}, {seen[-1] + 1})
        except BaseException as exc:
            failures.append(exc)

    mended = job.but(processor=Mended)
    with session_conf(job.spark, {PARTITIONS: "2"}):
        writer = ckpt.write_stream(job.df).foreachBatch(sink)
        epoch_of(job)
        query = writer.option("checkpointLocation", str(job.location_path)).start()
        query.processAllAvailable()
        lives.append(query.state("op", "n"))
        thread = threading.Thread(target=read)
        thread.start()
        for number, restart in enumerate(
            (lambda: query.rescale(3), lambda: query.restartWith(mended.df))
        ):
            restart()
            assert lives[0].get("k1").value == {"n": number + 1}
            epoch_of(job)
            query.processAllAvailable()
            assert lives[0].get("k1").value == {"n": number + 2}
            assert query.state("op", "n").get("k1").epoch == number + 1
            assert set(lives[0].to_pandas()["n"]) == {number + 2}
        end.set()
        thread.join()
        assert not failures, failures
        assert seen == sorted(seen)
        assert in_sink == [(1, 0), (2, 1)]
        query.stop()
        with pytest.raises(ckpt.StateUseError, match="the query has ended"):
            lives[0].get("k1")


def test_a_sink_that_reads_state_does_not_hold_up_a_restart(job: Job) -> None:
    """The first epoch of the new run, for which the restart waits, reads the state."""
    in_sink: list[tuple[int, int]] = []
    lives: list[ckpt.LiveState] = []
    has_begun, may_go_on = threading.Event(), threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.count()
        if epoch == 1:
            has_begun.set()
            assert may_go_on.wait(60)
        if epoch:
            in_sink.append((epoch, lives[0].get("k1").epoch))

    with session_conf(job.spark, {PARTITIONS: "2"}):
        writer = ckpt.write_stream(job.df).foreachBatch(sink)
        epoch_of(job)
        query = writer.option("checkpointLocation", str(job.location_path)).start()
        query.processAllAvailable()
        lives.append(query.state("op", "n"))
        epoch_of(job)
        assert has_begun.wait(60)
        epoch_of(job)  # of the new run
        restarts = threading.Thread(target=query.rescale, args=(3,))
        restarts.start()
        try:
            until(lambda: not query._query.isActive, "it does not stop")
            # The coordinator would have ended by now if it took the query for ended.
            query._coordinator._thread.join(2 * POLL_MS / 1000)
            assert query._coordinator._thread.is_alive()
        finally:
            may_go_on.set()
            restarts.join()
        assert in_sink == [(1, 0), (2, 1)]
        assert lives[0].get("k1").value == {"n": 3}
        query.stop()


def test_a_live_state_that_the_new_program_lacks(job: Job) -> None:
    epoch_of(job)
    query = writer_of(job).start()
    query.processAllAvailable()
    live = query.state("op", "n")
    query.restartWith(job.but(processor=Other).df)
    with pytest.raises(ckpt.StateUseError, match="no state 'n': it has 'm'"):
        live.get("k1")
    assert query.state("op", "m").get("k1").value is None
    query.stop()


@pytest.mark.wide_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_up_and_down(job: Job, backend: str) -> None:
    """Databases are divided on the way up; the query's object, id and epochs continue."""
    job = job.using({BACKEND: backend, **SOON})
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        epoch_of(job)
        query.processAllAvailable()
        first_run, query_id = query.runId, query.id
        for number, parallelism in enumerate((4, 3, 1)):
            done = query.rescale(parallelism)
            assert done.parallelism == parallelism
            epoch_of(job)
            query.processAllAvailable()
            check_numbered(job, 3 + number)
            assert subtasks_of(query) == set(range(parallelism))
        assert query.id == query_id
        assert query.runId != first_run
        assert max(row.epoch for row in completed(query)) == 4
        history = ckpt.history(str(job.location_path)).query("kind == 'restart'")
        assert history[["parallelism_before", "parallelism"]].to_numpy().tolist() == [
            [2, 4], [4, 3], [3, 1],
        ]  # fmt: skip
        assert list(history["reason"]) == ["rescale(4)", "rescale(3)", "rescale(1)"]
        assert (history["pause_ms"] > 0).all()
        assert query.checkpoints().where("kind = 'restart'").count() == 3
        query.stop()
        assert not query.isActive
        assert job.spark.conf.get(PARTITIONS) == "2"
        # A driver that starts again continues with what the location has.
        epoch_of(job)
        again = writer_of(job).trigger(availableNow=True).start()
        again.awaitTermination()
        check_numbered(job, 6)
        assert not [p.name for p in job.location_path.iterdir() if "restart" in p.name]


def test_restart_with_another_program(job: Job) -> None:
    """Who waits for the query waits on, a listener stays, a bad program changes nothing."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = job.start()
        query.processAllAvailable()
        seen: list[int] = []

        class Listener(ckpt.CheckpointListener):
            def onCheckpointCompleted(self, checkpoint: Any) -> None:
                seen.append(checkpoint.epoch)

        query.addCheckpointListener(Listener())
        ended: list[bool] = []
        waiter = threading.Thread(target=lambda: ended.append(bool(query.awaitTermination(100))))
        waiter.start()
        with pytest.raises(ckpt.ConfigurationError, match=r"function.*restartWith"):
            query.rescale(3)
        with pytest.raises(ckpt.ConfigurationError, match="number of subtasks"):
            query.rescale(0)
        run = query.runId
        with pytest.raises(ckpt.IncompatibleStateError):
            query.restartWith(job.but(processor=Renamed).df())
        assert query.isActive
        assert query.runId == run
        done = query.restartWith(job.but(processor=Mended).df)
        assert (done.parallelism_before, done.parallelism) == (2, 2)
        epoch_of(job)
        query.processAllAvailable()
        with session_conf(job.spark, {PARTITIONS: "4"}):
            df = job.but(processor=Mended).df()
        assert query.restartWith(df).parallelism == 4
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 3)
        assert {(n, what) for _, n, what in job.result()} == {(1, "a"), (2, "b"), (3, "b")}
        query.triggerCheckpoint()
        until(lambda: 2 in seen, "the listener is not called")
        assert waiter.is_alive()
        query.stop()
        waiter.join(30)
        assert ended == [True]
        with pytest.raises(ckpt.CheckpointAbortedError, match="has ended"):
            query.restartWith(job.df())


def test_a_restart_that_fails_half_way(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query stops, its location is exchanged, the start fails: it runs as before."""
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
        assert isinstance(query.exception(), ckpt.FailedCheckpointsError)
        with pytest.raises(ckpt.FailedCheckpointsError, match=r"restart in place.*no start"):
            query.awaitTermination()
        epoch_of(job)
        again = writer_of(job).start()
        again.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(again) == {0, 1}
        again.stop()


def test_an_exchange_that_fails_in_its_midst_is_undone(
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


def test_a_batch_may_ask_the_query_while_it_is_stopped_or_restarted(job: Job) -> None:
    """A stop waits for the batch, so the batch must not wait for the stop."""
    queries: list[ckpt.CheckpointedQuery] = []
    has_begun, may_go_on = threading.Event(), threading.Event()
    asked = []

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.count()
        if epoch in (1, 3):
            has_begun.set()
            assert may_go_on.wait(60)
        if epoch:
            queries[0].addCheckpointListener(ckpt.CheckpointListener())
            asked.append(queries[0].triggerCheckpoint().epoch)

    with session_conf(job.spark, {PARTITIONS: "2"}):
        writer = ckpt.write_stream(job.df).foreachBatch(sink)
        epoch_of(job)
        query = writer.option("checkpointLocation", str(job.location_path)).start()
        queries.append(query)
        query.processAllAvailable()
        for end in (partial(query.rescale, 3), query.stop):
            has_begun.clear()
            may_go_on.clear()
            epoch_of(job)
            assert has_begun.wait(60)
            ending = threading.Thread(target=end)
            ending.start()
            try:
                until(lambda: not query._query.isActive, "it does not stop")
            finally:
                epoch_of(job)  # of the new run
                may_go_on.set()
                ending.join(120)
            assert not ending.is_alive()
        assert asked[0] == 0


def test_a_query_that_could_not_be_stopped_for_a_restart_runs_on_and_saves(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is out of reach at the check of the fence."""

    def out_of_reach(_: CheckpointCoordinator) -> None:
        msg = "connection reset"
        raise OSError(msg)

    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointCoordinator, "check_not_fenced", out_of_reach)
            with pytest.raises(OSError, match="connection reset"):
                query.rescale(3)
        assert query.isActive
        assert query.stopWithSavepoint(str(job.base / "savepoints")).epoch == 0


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


def test_a_location_that_is_half_exchanged_starts(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that ends within the exchange leaves a location that the next start finishes."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()

        class EndedError(BaseException):
            pass

        def ends(*arguments: Any) -> None:
            raise EndedError

        monkeypatch.setattr(exchange, "_move_out", ends)
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


def test_a_driver_that_starts_meanwhile_keeps_its_location(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver is paused before it exchanges anything; the other one commits an epoch."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        others: list[ckpt.CheckpointedQuery] = []

        def paused(*arguments: Any) -> None:
            epoch_of(job)
            others.append(writer_of(job).start())
            others[0].processAllAvailable()
            exchange.exchange(*arguments)

        monkeypatch.setattr(staging, "exchange", paused)
        monkeypatch.setattr(QueryStart, "alone", lambda _: nullcontext())  # as in two processes
        with pytest.raises(ckpt.FencedError):
            query.rescale(3)
        assert not (job.location_path / "_rollback").exists()
        epoch_of(job)
        others[0].processAllAvailable()
        check_numbered(job, 3)
        assert subtasks_of(others[0]) == {0, 1}
        others[0].stop()


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


@pytest.mark.wide
def test_by_rule(job: Job) -> None:
    """Epochs above the limit double the subtasks, up to the most; the history says why."""
    job = job.using({
        "spark.ckpt.rescale.enabled": "true",
        "spark.ckpt.rescale.max-parallelism": "3",
        "spark.ckpt.rescale.scale-up.epoch-duration": "2ms",
        "spark.ckpt.rescale.scale-down.epoch-duration": "1ms",
        "spark.ckpt.rescale.window": "2",
        "spark.ckpt.rescale.min-interval": "1ms",
    })  # fmt: skip
    with session_conf(job.spark, {PARTITIONS: "2"}):
        given = ckpt.write_stream(job.df()).option("checkpointLocation", str(job.location_path))
        given = given.option("path", str(job.base / job.out))
        for key, value in job.options.items():
            given = given.option(key, value)
        with pytest.raises(ckpt.ConfigurationError, match="give write_stream a function"):
            given.start()
        query = writer_of(job).start()
        epochs = 0

        def restarts() -> list[Row]:
            """Run one more epoch and return the restarts so far."""
            nonlocal epochs
            epoch_of(job)
            epochs += 1
            query.processAllAvailable()
            found: list[Row] = query.checkpoints().where("kind = 'restart'").collect()
            return found

        until(lambda: bool(restarts()), "no rule restarted the query")
        for _ in range(3):
            (row,) = restarts()  # three are the most
        query.stop()
    assert (row.parallelism_before, row.parallelism) == (2, 3)
    assert "rule: epochs" in row.reason
    check_numbered(job, epochs)
