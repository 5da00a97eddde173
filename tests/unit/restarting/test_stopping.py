"""A run that a restart in place could not stop is as before; one that it stopped stays stopped."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.restarting.stopping import RestartStop


class Run:
    """A run of a query, of which a server may not tell whether it is active."""

    def __init__(self) -> None:
        self.is_active = True
        self.error: Exception | None = None

    @property
    def isActive(self) -> bool:  # as in PySpark
        if self.error is not None:
            raise self.error
        return self.is_active


@pytest.fixture
def run() -> Run:
    return Run()


def stop_that_fails(run: Run, error: BaseException) -> RestartStop:
    stop = RestartStop("q", cast("Any", run))
    with pytest.raises(type(error)):
        fail_within(stop, error)
    return stop


def fail_within(stop: RestartStop, error: BaseException) -> None:
    with stop.stopping():
        assert stop.is_under_way
        raise error


def interrupt_after_stop(stop: RestartStop, run: Run) -> None:
    with stop.stopping():
        run.is_active = False
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [OSError("store: connection reset"), KeyboardInterrupt()])
def test_a_run_that_goes_on_is_not_being_restarted(run: Run, error: BaseException) -> None:
    assert not stop_that_fails(run, error).is_under_way


def test_a_run_that_cannot_be_asked_counts_as_going_on(run: Run) -> None:
    run.error = ConnectionError("server: out of reach")
    assert not stop_that_fails(run, OSError("store: connection reset")).is_under_way


def test_a_run_that_was_stopped_before_the_error_is_still_restarted(run: Run) -> None:
    stop = RestartStop("q", cast("Any", run))
    with pytest.raises(KeyboardInterrupt):
        interrupt_after_stop(stop, run)
    assert stop.is_under_way
    assert stop.has_begun


def test_a_run_that_was_stopped_is_restarted(run: Run) -> None:
    stop = RestartStop("q", cast("Any", run))
    with stop.stopping():
        run.is_active = False
    assert stop.is_under_way


def test_a_run_that_somebody_else_stopped_is_not_restarted(run: Run) -> None:
    stop = stop_that_fails(run, OSError("store: connection reset"))
    run.is_active = False
    with pytest.raises(CheckpointAbortedError, match="query q has ended"), stop.stopping():
        pytest.fail("a run that has ended was stopped")
    assert not stop.is_under_way
    assert not stop.has_begun


def test_a_restart_is_refused_while_somebody_else_stops_the_run(run: Run) -> None:
    stop = RestartStop("q", cast("Any", run))
    with stop.left_out():
        with pytest.raises(CheckpointAbortedError, match="is being stopped"), stop.stopping():
            pytest.fail("two stopped the run")
        assert not stop.is_under_way
    with stop.stopping():  # the other one could not stop it
        assert stop.is_under_way


def test_a_stop_is_refused_while_the_run_is_restarted(run: Run) -> None:
    stop = RestartStop("q", cast("Any", run))
    with stop.stopping():
        with pytest.raises(CheckpointAbortedError, match="being restarted"), stop.left_out():
            pytest.fail("two stopped the run")
        run.is_active = False
    with pytest.raises(CheckpointAbortedError, match="being restarted"), stop.left_out():
        pytest.fail("the run was stopped for good after it was restarted")


def test_a_run_that_is_to_stay_stopped_is_not_restarted(run: Run) -> None:
    stop = RestartStop("q", cast("Any", run))
    with stop.stopping():
        stop.is_unwanted = True
    with pytest.raises(CheckpointAbortedError, match="has ended"):
        stop.check_wanted()
    run.is_active = True
    with pytest.raises(CheckpointAbortedError, match="has ended"), stop.stopping():
        pytest.fail("an unwanted run was stopped for a restart")
