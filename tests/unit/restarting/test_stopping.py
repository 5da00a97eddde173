"""A run that a restart in place could not stop is as before; one that it stopped stays stopped."""

from __future__ import annotations

from typing import Any, cast

import pytest

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
    stop = RestartStop(cast("Any", run))
    with pytest.raises(type(error)):
        fail_within(stop, error)
    return stop


def fail_within(stop: RestartStop, error: BaseException) -> None:
    with stop.stopping():
        assert stop.is_under_way
        raise error


@pytest.mark.parametrize("error", [OSError("store: connection reset"), KeyboardInterrupt()])
def test_a_run_that_goes_on_is_not_being_restarted(run: Run, error: BaseException) -> None:
    assert not stop_that_fails(run, error).is_under_way


def test_a_run_that_cannot_be_asked_counts_as_going_on(run: Run) -> None:
    run.error = ConnectionError("server: out of reach")
    assert not stop_that_fails(run, OSError("store: connection reset")).is_under_way


def test_a_run_that_was_stopped_before_the_error_is_still_restarted(run: Run) -> None:
    run.is_active = False
    assert stop_that_fails(run, KeyboardInterrupt()).is_under_way


def test_a_run_that_was_stopped_is_restarted(run: Run) -> None:
    stop = RestartStop(cast("Any", run))
    with stop.stopping():
        run.is_active = False
    assert stop.is_under_way
