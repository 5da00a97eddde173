"""A run has one state: what it says of a stop, a restart and its end never contradicts itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pyspark_ckpt.errors import CheckpointAbortedError, FailedCheckpointsError, SessionEndedError
from pyspark_ckpt.query.stopping.run_state import RunState
from pyspark_ckpt.sessions.classic import ClassicSession

PATIENCE_S = 30
NO_CHECKPOINT = FailedCheckpointsError("no last checkpoint")


class Run:
    """Spark's query, of which a server may not tell whether it is active."""

    id = "q"

    def __init__(self) -> None:
        self.is_active = True
        self.error: Exception | None = None

    @property
    def isActive(self) -> bool:  # as in PySpark
        if self.error is not None:
            raise self.error
        return self.is_active

    def stop(self) -> None:
        self.is_active = False


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def noted() -> list[Exception]:
    return []


@pytest.fixture
def state(run: Run, noted: list[Exception]) -> RunState:
    return state_of(run, noted)


def state_of(
    run: Run,
    noted: list[Exception],
    session_error: Callable[[], SessionEndedError | None] = lambda: None,
) -> RunState:
    session = ClassicSession(cast("Any", None))
    return RunState(cast("Any", run), session, noted.append, session_error)


def fail_within(
    context: AbstractContextManager[None],
    error: BaseException,
    first: Callable[[], None] = lambda: None,
) -> None:
    def fail() -> None:
        with context:
            first()
            raise error

    with pytest.raises(type(error)):
        fail()


@contextmanager
def refused(context: AbstractContextManager[None], match: str) -> Iterator[None]:
    with pytest.raises(CheckpointAbortedError, match=match), context:
        pytest.fail("two stopped the run")
    yield


@pytest.mark.parametrize("error", [OSError("store: connection reset"), KeyboardInterrupt()])
def test_a_run_that_goes_on_is_not_being_restarted(state: RunState, error: BaseException) -> None:
    fail_within(state.restarting(), error)
    assert not state.is_for_restart
    with state.saving():
        pass


def test_a_run_that_cannot_be_asked_counts_as_going_on(run: Run, state: RunState) -> None:
    def lose_server() -> None:
        run.error = ConnectionError("server: out of reach")

    fail_within(state.restarting(), OSError("store: connection reset"), lose_server)
    assert not state.is_for_restart


def test_a_run_that_was_stopped_before_the_error_is_still_restarted(
    run: Run, state: RunState
) -> None:
    fail_within(state.restarting(), KeyboardInterrupt(), run.stop)
    assert state.is_for_restart
    assert state.may_start_again()


def test_a_restart_that_could_not_stop_the_run_does_not_answer_for_its_end(
    run: Run, state: RunState
) -> None:
    fail_within(state.restarting(), OSError("store: connection reset"))
    assert state.may_start_again()  # what it asked Spark for may come late
    run.is_active = False
    state.begin_restart()
    assert not state.may_start_again()


def test_a_run_that_somebody_else_stopped_is_not_restarted(run: Run, state: RunState) -> None:
    run.is_active = False
    with refused(state.restarting(), "query q has ended"):
        assert not state.is_for_restart
        assert not state.may_start_again()


def test_a_restart_is_refused_while_somebody_saves_the_run(state: RunState) -> None:
    with state.saving(), refused(state.restarting(), "is being stopped"):
        assert not state.is_for_restart
    with state.restarting():  # the other one could not stop it
        assert state.is_for_restart


def test_a_savepoint_is_refused_while_the_run_is_restarted(run: Run, state: RunState) -> None:
    with state.restarting(), refused(state.saving(), "being restarted"):
        run.is_active = False
    with refused(state.saving(), "being restarted"):
        state.give_up_restart()
    with state.saving():
        pass


def test_a_restart_that_gives_up_leaves_the_stop_of_somebody_else(state: RunState) -> None:
    with state.saving():
        state.give_up_restart()
        with refused(state.restarting(), "is being stopped"):
            assert state.ended is None


def test_savepoints_after_the_end_do_not_begin_the_run_again(run: Run, state: RunState) -> None:
    run.stop()
    state.close()
    second_is_there, second_may_end = threading.Event(), threading.Event()

    def second() -> None:
        second_is_there.set()
        with state.saving():
            assert second_may_end.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        with state.saving():
            stop = pool.submit(second)
            assert second_is_there.wait(PATIENCE_S)
            assert state.ended is not None
        assert state.ended is not None
        second_may_end.set()
        stop.result(PATIENCE_S)
    assert state.ended is not None


def test_a_run_that_is_to_stay_stopped_is_not_restarted(run: Run, state: RunState) -> None:
    with state.restarting():
        state.keep_stopped()
    assert not state.may_start_again()
    with pytest.raises(CheckpointAbortedError, match="has ended"):
        state.check_wanted()
    state.give_up_restart()
    with refused(state.restarting(), "has ended"):
        assert run.is_active


def test_one_stop_with_a_savepoint_at_a_time(state: RunState) -> None:
    """A restart is refused until the last of them is over."""
    second_has_begun, second_may_end = threading.Event(), threading.Event()
    second_is_there = threading.Event()

    def second() -> None:
        second_is_there.set()
        with state.saving():
            second_has_begun.set()
            assert second_may_end.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        with state.saving():
            stop = pool.submit(second)
            assert second_is_there.wait(PATIENCE_S)
            assert not second_has_begun.wait(0.2)
        assert second_has_begun.wait(PATIENCE_S)
        with refused(state.restarting(), "is being stopped"):
            second_may_end.set()
        stop.result(PATIENCE_S)
    with state.restarting():
        assert state.is_for_restart


@pytest.mark.parametrize("stops_first", [False, True])
def test_a_failed_last_checkpoint_is_told_if_somebody_stops_the_query_during_a_restart(
    run: Run, state: RunState, noted: list[Exception], *, stops_first: bool
) -> None:
    """The restart does not take it once more."""
    with state.restarting():
        run.is_active = False
    if stops_first:
        state.keep_stopped()
    state.note_without_checkpoint(NO_CHECKPOINT)
    assert bool(noted) == stops_first
    state.keep_stopped()
    assert noted == [NO_CHECKPOINT]


def test_a_last_checkpoint_that_a_restart_took_is_not_missing(run: Run, state: RunState) -> None:
    with state.restarting():
        run.is_active = False
    state.note_without_checkpoint(NO_CHECKPOINT)
    state.note_checkpoint()
    state.keep_stopped()
    assert state.failure is None


@pytest.mark.parametrize("session_is_first", [False, True])
def test_the_first_error_of_a_run_stays(run: Run, *, session_is_first: bool) -> None:
    of_session, of_spark = SessionEndedError("it was stopped"), ValueError("of the processor")
    found: list[SessionEndedError] = [of_session] if session_is_first else []
    state = state_of(run, [], lambda: found[0] if found else None)
    run.is_active = False
    state.fail(of_spark)
    found.append(of_session)
    first = of_session if session_is_first else of_spark
    state.note(FailedCheckpointsError("checkpoints stay"))
    state.close()
    assert state.ended is not None
    assert (state.ended.error, state.error) == (first, first)
    assert state.session_error() is (of_session if session_is_first else None)


class Lives(RuleBasedStateMachine):
    """What may come to a run, in any order, and what it then says."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run()
        self.records: list[Exception] = []
        self.session: SessionEndedError | None = None
        self.state = state_of(self.run, self.records, lambda: self.session)
        self.saves: list[AbstractContextManager[None]] = []
        self.restart: AbstractContextManager[None] | None = None
        self.is_closed = self.is_stopped = False
        self.spark_error: Exception | None = None
        self.first: Exception | None = None
        self.said: Exception | None = None
        self.has_ended = self.is_over = False

    @rule(error=st.sampled_from([None, ValueError("of the processor")]))
    @precondition(lambda self: self.run.is_active)
    def spark_ends_the_query(self, error: Exception | None) -> None:
        self.run.is_active, self.spark_error = False, error

    @rule()
    @precondition(lambda self: not self.run.is_active and not self.is_closed)
    def coordinator_closes(self) -> None:
        if self.state.session_error() is None:
            self.state.end()
        self.coordinator_hears_of_the_end()
        self.state.close()
        self.is_closed = True

    @rule()
    @precondition(lambda self: not self.run.is_active and not self.is_closed)
    def coordinator_hears_of_the_end(self) -> None:
        if self.spark_error is not None:
            if self.state.session_error() is None:
                self.first = self.first or self.spark_error
            self.state.fail(self.spark_error)
            self.is_stopped = True

    @rule()
    def library_stops_the_query(self) -> None:
        self.is_stopped = self.is_stopped or self.run.is_active or bool(self.records)
        self.state.stop(FailedCheckpointsError("too many failed"))

    @rule()
    @precondition(lambda self: not self.is_closed)
    def last_checkpoint_fails(self) -> None:
        self.state.note_without_checkpoint(FailedCheckpointsError("the last failed"))

    @rule()
    def session_ends(self) -> None:
        self.session = self.session or SessionEndedError("it was stopped")

    @rule()
    def user_stops_it(self) -> None:
        self.state.keep_stopped()
        self.run.stop()

    @rule()
    @precondition(lambda self: not self.saves)
    def save_begins(self) -> None:
        context = self.state.saving()
        try:
            context.__enter__()
        except CheckpointAbortedError:
            assert self.state.is_for_restart
        else:
            assert not self.state.is_for_restart
            self.saves.append(context)

    @rule(fails=st.booleans())
    @precondition(lambda self: self.saves)
    def save_ends(self, *, fails: bool) -> None:
        if fails and not self.is_closed:
            self.state.note(FailedCheckpointsError("no savepoint"))
        self.saves.pop().__exit__(None, None, None)

    @rule(stops=st.booleans(), fails=st.booleans())
    @precondition(lambda self: not self.state.is_for_restart)
    def restart_stops_the_run(self, *, stops: bool, fails: bool) -> None:
        self.state.begin_restart()
        try:
            with self.state.restarting():
                assert not self.saves
                if stops:
                    self.run.stop()
                if fails:
                    msg = "no connection"
                    raise OSError(msg)
        except CheckpointAbortedError:
            assert not self.state.may_start_again()
        except OSError:
            assert self.state.is_for_restart == stops

    @rule()
    @precondition(lambda self: self.state.is_for_restart)
    def restart_gives_up(self) -> None:
        if not self.has_ended:
            self.state.note(FailedCheckpointsError("not restarted"))
        self.state.give_up_restart()

    @invariant()
    def it_has_ended_when_nobody_is_at_its_end_any_more(self) -> None:
        is_free = not self.saves and not self.state.is_for_restart
        self.is_over = self.is_over or ((self.is_closed or self.is_stopped) and is_free)
        session_error = self.state.session_error()
        assert (self.state.ended is None) == (session_error is None and not self.is_over)

    @invariant()
    def an_end_stays(self) -> None:
        ended = self.state.ended
        if ended is None:
            assert not self.has_ended
            return
        if self.has_ended and self.said is not None:
            assert ended.error is self.said
        self.has_ended, self.said = True, ended.error

    @invariant()
    def the_first_error_is_told_and_each_failure_recorded(self) -> None:
        ended, failure = self.state.ended, self.state.failure
        assert failure is (self.records[0] if self.records else None)
        self.first = self.first or failure
        assert self.state.error is self.first
        if ended is not None:
            assert ended.error is self.first


def test_in_every_order_of_events_a_run_tells_one_story() -> None:
    run_state_machine_as_test(Lives, settings=settings(max_examples=200, stateful_step_count=30))  # type: ignore[no-untyped-call]
