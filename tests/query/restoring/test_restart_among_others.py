"""A restart in place while others stop, save or ask the query: each can rely on what it is told."""

from __future__ import annotations

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint.cleaning import CleaningHold
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.operator.descriptor import Drain
from pyspark_ckpt.query import query as observed_module
from pyspark_ckpt.query import restarts as rescaling
from pyspark_ckpt.query import start as start_module
from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.query.restarts import Restarts
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.query.stopping.drain import LastEpochs
from pyspark_ckpt.restarting.rules import RescaleRules
from pyspark_ckpt.savepoint.savepoint import NewSavepoint
from tests.query.harness import INLINE, INTERVAL, SAVEPOINT_DIR, Job, until
from tests.query.restoring.numbered_job import (
    KEYS,
    NUMBERED,
    PARTITIONS,
    PATIENCE_S,
    Gate,
    Numbered,
    batch_writer_of,
    check_numbered,
    epoch_of,
    writer_of,
)
from tests.query.session_conf import session_conf


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(processor=Numbered, output=NUMBERED)
    return job.using({INLINE: "0b", INTERVAL: "1h", SAVEPOINT_DIR: str(job.base / "savepoints")})


@pytest.fixture
def gate() -> Any:
    gate = Gate()
    yield gate
    gate.open()


class GatedProgram:
    """The job's program, which waits at a gate when it is built for a restart."""

    def __init__(self, job: Job, gate: Gate) -> None:
        self._job, self._gate, self._built = job, gate, 0

    def __call__(self) -> DataFrame:
        self._built += 1
        if self._built == 2:
            self._gate.wait()
        return self._job.df()


class GatedBatch:
    """A sink whose epoch 1 waits at a gate the first time, and then does something."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.epochs: dict[int, int] = {}

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        self.epochs[epoch] = batch.count()
        if epoch == 1 and not self._gate.is_reached:
            self._gate.wait()
            self.do()

    def do(self) -> None:
        """Do what the test wants."""


@pytest.mark.slow
@pytest.mark.parametrize("asks", ["command line", "Spark"])
def test_a_query_that_is_stopped_while_its_restart_is_prepared_stays_stopped(
    job: Job, gate: Gate, capsys: pytest.CaptureFixture[str], asks: str
) -> None:
    """A rule rescales while somebody else stops: what comes after the savepoint stays unread."""
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(1) as pool:
        epoch_of(job)
        query = writer_of(job, GatedProgram(job, gate)).start()
        query.processAllAvailable()
        restart = pool.submit(query.rescale, 3)
        gate.await_arrival()
        if asks == "command line":
            assert main(["stop", str(job.location_path), "--json", "--timeout", "120"]) == 0
            savepoint = json.loads(capsys.readouterr().out)["path"]
        else:
            job.spark.streams.get(query.id).stop()
        gate.open()
        with pytest.raises(ckpt.errors.CheckpointAbortedError, match="has ended"):
            restart.result(PATIENCE_S)
        assert not query.isActive
        assert query.exception() is None
        epoch_of(job)
        if asks == "command line":
            fork = job.but(location="loc2", out="out2")
            fork.run(restore=savepoint)
            found = sorted((k, n) for k, n, _ in job.result() + fork.result())
            assert found == sorted((key, n) for key in KEYS for n in (1, 2))


def test_two_stops_at_once_run_no_epoch_behind_the_savepoint(
    job: Job, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last epoch was interrupted: one finishes it, and the other must not run one more."""
    both, one_has_run = threading.Barrier(2), threading.Event()
    ran: list[int] = []
    real_run = LastEpochs._run_epoch

    def run_epoch(self: LastEpochs, drained: Drain | None) -> None:
        ran.append(threading.get_ident())
        if len(ran) > 1:
            assert one_has_run.wait(PATIENCE_S)
        real_run(self, drained)
        epoch_of(job)  # comes after the savepoint
        one_has_run.set()

    def stop() -> Savepoint:
        both.wait(PATIENCE_S)
        return query._coordinator.stops.with_savepoint(None, SavepointFormat.NATIVE, drain=False)

    class Fails(GatedBatch):
        def do(self) -> None:
            msg = "interrupted"
            raise OSError(msg)

    monkeypatch.setattr(LastEpochs, "_run_epoch", run_epoch)
    sink = Fails(gate)
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = batch_writer_of(job, sink).start()
        query.processAllAvailable()
        epoch_of(job)
        gate.await_arrival()
        gate.open()
        until(lambda: not query._query.isActive, "the epoch does not fail")
        stops = [pool.submit(stop) for _ in range(2)]
        assert [each.result(PATIENCE_S).epoch for each in stops] == [1, 1]
    assert set(sink.epochs) == {0, 1}


@pytest.mark.slow
def test_a_stop_in_a_batch_that_a_restart_waits_for(job: Job, gate: Gate) -> None:
    """It does not wait for the restart, which does not start the query again."""

    class Stops(GatedBatch):
        def do(self) -> None:
            query.stop()

    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(1) as pool:
        epoch_of(job)
        query = batch_writer_of(job, Stops(gate)).start()
        query.processAllAvailable()
        epoch_of(job)
        gate.await_arrival()
        restart = pool.submit(query.rescale, 3)
        until(lambda: not query._query.isActive, "the restart does not stop the query")
        gate.open()
        with pytest.raises(ckpt.errors.CheckpointAbortedError, match="has ended"):
            restart.result(PATIENCE_S)
        assert not query.isActive
        assert query.exception() is None


@pytest.mark.slow
@pytest.mark.parametrize("call", ["rescale", "stopWithSavepoint"])
def test_a_batch_that_would_wait_for_itself_is_told(job: Job, gate: Gate, call: str) -> None:
    told: list[Exception] = []

    class Asks(GatedBatch):
        def do(self) -> None:
            try:
                query.rescale(3) if call == "rescale" else query.stopWithSavepoint()
            except Exception as exc:
                told.append(exc)

    gate.open()
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = batch_writer_of(job, Asks(gate)).start()
        query.processAllAvailable()
        epoch_of(job)
        query.processAllAvailable()
        query.stop()
    assert len(told) == 1
    assert isinstance(told[0], ckpt.errors.ConfigurationError)
    assert f"{call}" in str(told[0])


@pytest.mark.soak
def test_two_interrupts_and_a_stop(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one leaves a thread that starts the query as it was: the stop outlasts it."""
    again = Gate()
    ended, real = threading.Event(), QueryStart.run
    runs: list[QueryStart] = []
    main_thread = threading.get_ident()

    def run(self: QueryStart, *arguments: Any) -> Any:
        runs.append(self)
        if len(runs) == 1:
            raise KeyboardInterrupt
        again.wait()
        return real(self, *arguments)

    def interrupt() -> None:
        again.await_arrival()
        signal.pthread_kill(main_thread, signal.SIGINT)

    real_again = Restarts._start_as_before

    def start_as_before(self: Restarts, *arguments: Any) -> None:
        real_again(self, *arguments)
        ended.set()

    monkeypatch.setattr(QueryStart, "run", run)
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        with monkeypatch.context() as without:
            without.setattr(QueryStart, "run", real)
            query = writer_of(job).start()
        query.processAllAvailable()
        monkeypatch.setattr(Restarts, "_start_as_before", start_as_before)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            query.rescale(3)
        thread.join()
        query.stop()
        again.open()
        assert ended.wait(PATIENCE_S)
        assert len(runs) == 2
        assert not query.isActive


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_new_run_that_is_stopped_as_soon_as_it_began_is_a_failure_of_the_query(
    job: Job, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    real, calls = start_module.remember, []

    def remember(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            msg = "awkward"
            raise error(msg)
        real(*arguments)

    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(1) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        waits = pool.submit(query.awaitTermination)
        monkeypatch.setattr(start_module, "remember", remember)
        with pytest.raises(error, match="awkward"):
            query.rescale(3)
        with pytest.raises(
            ckpt.errors.FailedCheckpointsError, match="restart in place, which failed"
        ):
            waits.result(PATIENCE_S)
        assert not query.isActive
        assert query.exception() is not None


@pytest.mark.soak
def test_a_savepoint_that_is_asked_for_while_the_last_epoch_runs_is_completed_first(
    job: Job, gate: Gate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing, done = Gate(), []
    real, real_wait, real_run = NewSavepoint._publish, CleaningHold.wait, QueryStart.run

    def publish(self: NewSavepoint, metadata: bytes) -> Any:
        publishing.wait()
        done.append("published")
        return real(self, metadata)

    def wait(self: CleaningHold, timeout_seconds: float | None = None) -> bool:
        done.append("waits")
        return real_wait(self, timeout_seconds)

    def run(self: QueryStart, *arguments: Any) -> Any:
        done.append("starts")
        return real_run(self, *arguments)

    monkeypatch.setattr(NewSavepoint, "_publish", publish)
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = batch_writer_of(job, GatedBatch(gate)).start()
        query.processAllAvailable()
        epoch_of(job)
        gate.await_arrival()
        monkeypatch.setattr(CleaningHold, "wait", wait)
        monkeypatch.setattr(QueryStart, "run", run)
        restart = pool.submit(query.rescale, 3)
        until(lambda: not query._query.isActive, "the restart does not stop the query")
        arguments = ["savepoint", str(job.location_path), "--json", "--timeout", "120"]
        answer = pool.submit(main, arguments)
        publishing.await_arrival()
        gate.open()
        until(lambda: len(done) > 1, "the restart does not get behind the last epoch")
        publishing.open()
        assert restart.result(PATIENCE_S).epoch == 1
        assert done == ["waits", "waits", "published", "starts"]
        assert answer.result(PATIENCE_S) == 0
        assert json.loads(capsys.readouterr().out)["epoch"] == 0
        query.stop()


@pytest.mark.soak
def test_a_checkpoint_listener_may_ask_the_query_that_is_restarted(job: Job) -> None:
    """The restart takes a checkpoint, and does not wait for the listener, which waits for it."""
    saved: list[int] = []

    class Saves(ckpt.CheckpointListener):
        def onCheckpointCompleted(self, checkpoint: Any) -> None:  # as in the base class
            saved.append(query.triggerSavepoint().epoch)

    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(1) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        query.addCheckpointListener(Saves())
        pool.submit(query.rescale, 3).result(PATIENCE_S)
        until(lambda: bool(saved), "the listener gets no savepoint")
        query.stop()
    check_numbered(job, 1)


@pytest.mark.soak
def test_a_streaming_listener_may_add_a_listener_when_the_query_starts_again(job: Job) -> None:
    added = threading.Event()

    class Adds(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            query.addCheckpointListener(ckpt.CheckpointListener())
            added.set()

        def onQueryProgress(self, event: Any) -> None: ...

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    listener = Adds()
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(1) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        job.spark.streams.addListener(listener)
        try:
            pool.submit(query.rescale, 3).result(PATIENCE_S)
        finally:
            job.spark.streams.removeListener(listener)
        assert added.is_set()
        query.stop()


@pytest.mark.soak
def test_a_rule_does_not_override_who_was_first(
    job: Job, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, done = threading.Event(), threading.Event()
    real = rescaling._Follower._restart

    def restart(self: Any, proposal: Any) -> None:
        asks.set()
        real(self, proposal)
        done.set()

    monkeypatch.setattr(rescaling._Follower, "_restart", restart)
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(1) as pool:
        epoch_of(job)
        query = writer_of(job, GatedProgram(job, gate)).start()
        query.processAllAvailable()
        mine = pool.submit(query.rescale, 3)
        gate.await_arrival()
        rescaling.follow(query, RescaleRules(1, 8, 0, None, 0, 1, 0))
        assert asks.wait(PATIENCE_S)
        gate.open()
        assert mine.result(PATIENCE_S).parallelism == 3
        assert done.wait(PATIENCE_S)
        assert [each.reason for each in query._coordinator.restarts] == ["rescale(3)"]
        query.stop()


@pytest.mark.soak
def test_a_checkpoint_that_is_asked_for_just_before_a_restart_is_of_the_next_run(
    job: Job, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks: list[int] = []
    real = CheckpointTaker.take

    def take(self: CheckpointTaker, **options: Any) -> Any:
        if threading.get_ident() in asks:
            gate.wait()
        return real(self, **options)

    def trigger() -> Any:
        asks.append(threading.get_ident())
        return query.triggerCheckpoint()

    monkeypatch.setattr(CheckpointTaker, "take", take)
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(1) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        taken = pool.submit(trigger)
        gate.await_arrival()
        query.rescale(3)
        epoch_of(job)
        query.processAllAvailable()
        gate.open()
        assert taken.result(PATIENCE_S).epoch == 2  # the restart has one of its own
        query.stop()


@pytest.mark.soak
def test_a_capture_that_is_asked_for_during_a_restart_is_of_the_next_run(
    job: Job, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = start_module.start_with_conf

    def start(*arguments: Any) -> Any:
        gate.wait()
        return real(*arguments)

    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        monkeypatch.setattr(start_module, "start_with_conf", start)
        restart = pool.submit(query.rescale, 3)
        gate.await_arrival()
        capture = pool.submit(query.capture, range(10))
        assert not capture.done()
        gate.open()
        restart.result(PATIENCE_S)
        found = capture.result(PATIENCE_S)
        epoch_of(job)
        query.processAllAvailable()
        assert found.captured() == [2]  # the restart has an epoch without rows
        query.stop()


@pytest.mark.soak
def test_two_captures_at_once(job: Job, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    real = observed_module.change_conf

    def change(*arguments: Any) -> Any:
        gate.wait()
        return real(*arguments)

    monkeypatch.setattr(observed_module, "change_conf", change)
    with session_conf(job.spark, {PARTITIONS: "2"}), ThreadPoolExecutor(2) as pool:
        epoch_of(job)
        query = writer_of(job).start()
        query.processAllAvailable()
        first = pool.submit(query.capture, [1])
        gate.await_arrival()
        second = pool.submit(query.capture, [2])
        gate.open()
        captures = [each.result(PATIENCE_S) for each in (first, second)]
        for _ in range(2):
            epoch_of(job)
            query.processAllAvailable()
        assert [each.captured() for each in captures] == [[1], [2]]
        query.stop()
