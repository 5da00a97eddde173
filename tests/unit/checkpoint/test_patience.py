"""Repeated work may fail for a while before its failure is raised; the log stays short."""

from __future__ import annotations

import logging

import pytest

from pyspark_ckpt.checkpoint.runner import Patience
from tests.unit.checkpoint.still_clock import StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def patience(clock: StillClock) -> Patience:
    return Patience("looking for requests", 1000, clock)


def fail(patience: Patience, text: str, times: int = 1) -> None:
    for _ in range(times):
        patience.failed(PermissionError(text))


def test_equal_failures_are_logged_once(
    patience: Patience, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged again only if it changes, or comes back after a success."""
    with caplog.at_level(logging.DEBUG):
        patience.succeeded()
        fail(patience, "no", times=50)
        fail(patience, "not so", times=50)
        clock.now_ms = 500
        patience.succeeded()
        patience.succeeded()
        fail(patience, "no", times=50)
    assert [record.getMessage() for record in caplog.records] == [
        "looking for requests failed, and is tried again: PermissionError: no",
        "looking for requests failed, and is tried again: PermissionError: not so",
        "looking for requests succeeds again after 0.5 s",
        "looking for requests failed, and is tried again: PermissionError: no",
    ]


def test_a_failure_that_lasts_is_raised(patience: Patience, clock: StillClock) -> None:
    fail(patience, "no")
    clock.now_ms = 999
    fail(patience, "no")
    patience.succeeded()
    fail(patience, "no")
    clock.now_ms = 1999
    with pytest.raises(PermissionError):
        fail(patience, "no")
