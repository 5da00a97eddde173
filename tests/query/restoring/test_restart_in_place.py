"""A running query is restarted in place: per key 1, 2, 3..., and the sink has each row once."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_ckpt as ckpt
from pyspark_ckpt.query import restarts
from pyspark_ckpt.query.requests import POLL_MS
from pyspark_ckpt.query.stopping import stops
from pyspark_ckpt.restarting.staging import change_in_place
from tests.query.harness import (
    BACKEND,
    BACKENDS,
    CHECKPOINT_DIR,
    INLINE,
    INTERVAL,
    RETAINED,
    Feed,
    Job,
    completed,
    until,
)
from tests.query.restoring.numbered_job import (
    NUMBERED,
    PARTITIONS,
    SOON,
    Mended,
    Numbered,
    Other,
    Renamed,
    check_numbered,
    epoch_of,
    subtasks_of,
    writer_of,
)
from tests.query.session_conf import session_conf

SHARED = ("shared", "taskowned")


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Numbered, output=NUMBERED).using({INLINE: "0b", INTERVAL: "1h"})


@pytest.mark.soak
def test_a_live_state_continues_with_the_query(job: Job) -> None:
    """It is read before, during and after restarts, also by a sink, until the query ends."""
    in_sink: list[tuple[int, int]] = []
    seen: list[int] = []
    failures: list[BaseException] = []
    lives: list[ckpt.results.LiveState] = []
    end = threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.count()
        if epoch:
            in_sink.append((epoch, lives[0].get_with_epoch("k1").epoch))

    def read() -> None:
        try:
            while not end.is_set():
                seen.append(lives[0].get("k1")["n"])
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
            assert lives[0].get("k1") == {"n": number + 1}
            epoch_of(job)
            query.processAllAvailable()
            assert lives[0].get("k1") == {"n": number + 2}
            assert query.state("op", "n").get_with_epoch("k1").epoch == number + 2
            assert set(lives[0].to_pandas()["n"]) == {number + 2}
        end.set()
        thread.join()
        assert not failures, failures
        assert seen == sorted(seen)
        assert in_sink == [(1, 0), (2, 1), (3, 2)]  # the first one has no rows
        query.stop()
        with pytest.raises(ckpt.errors.StateUseError, match="the query has ended"):
            lives[0].get("k1")


def test_a_run_keeps_the_files_of_a_savepoint_that_the_run_before_it_copies(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The savepoint begins once the restart has stopped the query; the hold stands for it."""
    copies = ExitStack()

    def change(*arguments: Any) -> Any:
        copies.enter_context(query._coordinator.hold.held())
        return change_in_place(*arguments)

    def checkpointed() -> set[str]:
        epoch_of(job)
        query.processAllAvailable()
        directory = Path(query.triggerCheckpoint().path).parent
        return {path.name for path in directory.glob("*/*") if path.parent.name in SHARED}

    monkeypatch.setattr(restarts, "change_in_place", change)
    with session_conf(job.spark, {PARTITIONS: "2"}), copies:
        query = writer_of(job.using({RETAINED: 1})).start()
        before = checkpointed()
        query.rescale(3)
        assert before <= checkpointed() & checkpointed()
        copies.close()
        assert not before <= checkpointed()
        query.stop()


@pytest.mark.soak
def test_a_sink_that_reads_state_does_not_hold_up_a_restart(job: Job) -> None:
    """The first epoch of the new run, for which the restart waits, reads the state."""
    in_sink: list[tuple[int, int]] = []
    lives: list[ckpt.results.LiveState] = []
    has_begun, may_go_on = threading.Event(), threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.count()
        if epoch == 1:
            has_begun.set()
            assert may_go_on.wait(60)
        if epoch:
            in_sink.append((epoch, lives[0].get_with_epoch("k1").epoch))

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
        query.processAllAvailable()
        assert in_sink == [(1, 0), (2, 1), (3, 2)]  # the second one has no rows
        assert lives[0].get("k1") == {"n": 3}
        query.stop()


@pytest.mark.slow
def test_a_live_state_that_the_new_program_lacks(job: Job) -> None:
    epoch_of(job)
    query = writer_of(job).start()
    query.processAllAvailable()
    live = query.state("op", "n")
    query.restartWith(job.but(processor=Other).df)
    with pytest.raises(ckpt.errors.StateUseError, match="no state 'n': it has 'm'"):
        live.get("k1")
    assert query.state("op", "m").get("k1") is None
    query.stop()


@pytest.mark.slow
@pytest.mark.soak_variants
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
        assert max(row.epoch for row in completed(query)) == 7
        history = ckpt.location(str(job.location_path)).history().query("kind == 'restart'")
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


@pytest.mark.slow
def test_up_and_down_while_the_query_is_idle(job: Job) -> None:
    """The newest checkpoint is of the same epoch, and of the subtasks before the last restart."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        for parallelism in (4, 2):
            assert query.rescale(parallelism).parallelism == parallelism
            assert query.state("op", "n").get("k1") == {"n": 1}
        epoch_of(job)
        query.processAllAvailable()
        check_numbered(job, 2)
        assert subtasks_of(query) == {0, 1}
        query.stop()


class Waiting(Numbered):
    """Wait in the second epoch until a file is there."""

    go = Path()

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        if self.n.get() is not None:
            until(self.go.exists, f"{self.go} never came")
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.mark.slow
def test_an_epoch_that_the_stop_has_interrupted_gets_its_checkpoint(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed after the coordinator's end; the new run knows the checkpoint's epoch."""
    go = job.base / "go"

    def interrupt(spark: SparkSession, query: StreamingQuery, timeout_ms: int) -> None:
        until((job.location_path / "offsets" / "1").exists, "the epoch does not begin")
        query.stop()
        go.touch()

    monkeypatch.setattr(Waiting, "go", go)
    monkeypatch.setattr(stops, "stop_between_epochs", interrupt)
    job = job.but(processor=Waiting)
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        query.triggerCheckpoint()
        epoch_of(job)
        assert query.rescale(3).epoch == 1
        newest = max(completed(query), key=lambda row: row.checkpoint_id)
        assert newest.epoch == 1
        query.stop()
    check_numbered(job, 2)


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
        with pytest.raises(ckpt.errors.ConfigurationError, match=r"function.*restartWith"):
            query.rescale(3)
        with pytest.raises(ckpt.errors.ConfigurationError, match="number of subtasks"):
            query.rescale(0)
        run = query.runId
        with pytest.raises(ckpt.errors.IncompatibleStateError):
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
        until(lambda: 3 in seen, "the listener is not called")
        assert waiter.is_alive()
        query.stop()
        waiter.join(30)
        assert ended == [True]
        with pytest.raises(ckpt.errors.CheckpointAbortedError, match="has ended"):
            query.restartWith(job.df())


@pytest.mark.slow
def test_a_restart_keeps_the_settings_of_the_start(job: Job) -> None:
    """The session's conf may be for another query by then, with another directory."""
    first, second = job.base / "first", job.base / "second"
    epoch_of(job)
    with session_conf(job.spark, {CHECKPOINT_DIR: str(first), RETAINED: "7", PARTITIONS: "2"}):
        query = writer_of(job).start()
        query.processAllAvailable()
    other = {CHECKPOINT_DIR: str(second), RETAINED: "1", BACKEND: "heap", PARTITIONS: "2"}
    with session_conf(job.spark, other):
        for restart in (
            lambda: query.restartWith(job.but(processor=Mended).df),
            lambda: query.rescale(3),
        ):
            restart()
            epoch_of(job)
            query.processAllAvailable()
            query.triggerCheckpoint()
    query.stop()
    assert len(completed(query)) >= 3
    assert query._coordinator.files.backend_type == "rocksdb"
    assert not second.exists()
    assert (first / query.id / "shared").is_dir()
    check_numbered(job, 3)


def reading(job: Job, *feeds: Feed) -> DataFrame:
    """Return the query of a program that reads feeds at several places."""
    rows = [feed.stream(job.spark) for feed in dict.fromkeys(feeds)]
    read = dict(zip(dict.fromkeys(feeds), rows, strict=True))
    first, *others = (read[feed] for feed in feeds)
    for each in others:
        first = first.union(each)
    return job.process(ckpt.key_by(first, *job.keys))


@pytest.mark.slow
def test_sources_that_are_read_at_other_places_are_refused(job: Job) -> None:
    """Spark keeps offsets by places, so one source would continue at the offset of another."""
    left, right = job.feed, Feed(job.base / "right")
    left.add([("a", 0)])
    query = job.but(plan=lambda job: reading(job, left, right, left)).start()
    try:
        right.add([("b", 0)])
        query.processAllAvailable()
        run = query.runId
        for feeds in ((left, left, right), (left, right), (left, right, left, right)):
            with pytest.raises(
                ckpt.errors.NotBuiltYetError, match=r"other places.*stopWithSavepoint"
            ):
                query.restartWith(reading(job, *feeds))
            assert (query.isActive, query.runId) == (True, run)
        query.restartWith(reading(job.but(processor=Mended), left, right, left))
        right.add([("b", 0)])
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(job.result()) == [("a", 1, "a"), ("a", 2, "a"), ("b", 1, "a"), ("b", 2, "b")]


class Hundreds(Numbered):
    """Its state is a hundred times the number."""

    schema = "n decimal(10, 0)"

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", self.schema)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for _ in rows:
            n = (self.n.get() or (0,))[0] + 100
            self.n.update((n,))
            yield Row(k=key[0], n=int(n), what=self.what)


class Widened(Hundreds):
    schema = "n decimal(12, 0)"


@pytest.mark.slow
def test_what_a_restore_was_allowed_is_not_for_later_restarts(job: Job) -> None:
    """Its migrations are done, and an operator is left out by nobody's leave."""
    epoch_of(job)
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    fork = job.but(location="fork", out="fork-out", processor=Hundreds)
    times = ckpt.Migration(value=lambda row: (100 * row.n,))
    query = (
        fork.writer()
        .restoreFrom(savepoint, allowNonRestoredState=True, migrations={"op": {"n": times}})
        .start()
    )
    try:
        for program in (None, fork.but(processor=Widened)):
            if program is not None:
                query.restartWith(program.df())
            epoch_of(job)
            query.processAllAvailable()
        with pytest.raises(ckpt.errors.RestoreError, match="allowNonRestoredState"):
            query.restartWith(fork.but(processor=Widened, uid="other").df())
        assert query.isActive
    finally:
        query.stop()
    assert sorted({n for _, n, _ in fork.result()}) == [200, 300]


@pytest.mark.soak
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


@pytest.mark.soak
def test_by_rule(job: Job) -> None:
    """Epochs above the limit double the subtasks, up to the most; the history says why."""
    job = job.using({
        "spark.ckpt.rescale.enabled": "true",
        "spark.ckpt.rescale.max-parallelism": "3",
        "spark.ckpt.rescale.scale-up.epoch-duration": "2ms",
        "spark.ckpt.internal.rescale.scale-down.epoch-duration": "1ms",
        "spark.ckpt.internal.rescale.window": "2",
        "spark.ckpt.internal.rescale.min-interval": "1ms",
    })  # fmt: skip
    with session_conf(job.spark, {PARTITIONS: "2"}):
        given = ckpt.write_stream(job.df()).option("checkpointLocation", str(job.location_path))
        given = given.option("path", str(job.base / job.out))
        for key, value in job.options.items():
            given = given.option(key, value)
        with pytest.raises(ckpt.errors.ConfigurationError, match="give write_stream a function"):
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
