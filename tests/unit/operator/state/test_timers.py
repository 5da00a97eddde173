"""Timers: registered, listed and deleted per key, taken in the order of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyspark_ckpt.errors import PlanError, StateError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.state.timers import DueTimer
from pyspark_ckpt.operator.time import EpochClock
from tests.unit.operator.subtask_epochs import KEYS, SubtaskEpochs

FIRST, LAST = -(2**63), 2**63 - 1


class Epochs:
    def __init__(self, epochs: SubtaskEpochs) -> None:
        self.subtask = epochs
        self.begin()

    def begin(self) -> None:
        self.timers = self.subtask.begin().timers

    def end(self) -> None:
        self.subtask.end()
        self.begin()

    def of_key(self, position: int) -> list[int]:
        self.subtask.to_key(position)
        return list(self.timers.of_current_key())

    def register(self, position: int, *times_ms: int) -> None:
        self.subtask.to_key(position)
        for time_ms in times_ms:
            self.timers.register(time_ms)

    def fire(
        self,
        now_ms: int,
        most: int = 100,
        handle: Callable[[int, int], None] = lambda time_ms, position: None,
    ) -> list[tuple[int, int]]:
        """Fire all due timers; return their times and the places of their keys."""
        fired = []
        while due := self.timers.take_due(now_ms, most):
            assert len(due) <= most
            for timer in due:
                fired.append((timer.time_ms, KEYS.index(timer.key)))
                self.subtask.to_key(fired[-1][1])
                handle(*fired[-1])
                self.timers.delete(timer.time_ms)
        return fired


@pytest.fixture
def epochs(subtask_epochs: SubtaskEpochs) -> Epochs:
    return Epochs(subtask_epochs)


@pytest.fixture(params=[False, True], ids=["same epoch", "next epoch"])
def later(request: pytest.FixtureRequest, epochs: Epochs) -> Callable[[], object]:
    return epochs.end if request.param else lambda: None


def test_timers_of_a_key_are_listed_in_the_order_of_time(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    epochs.register(0, 30, -5, 10, 30, LAST, FIRST)
    epochs.register(1, 20)
    later()
    assert epochs.of_key(0) == [FIRST, -5, 10, 30, LAST]
    assert epochs.of_key(1) == [20]
    assert epochs.of_key(2) == []
    epochs.subtask.to_key(0)
    epochs.timers.delete(10)
    epochs.timers.delete(20)
    later()
    assert epochs.of_key(0) == [FIRST, -5, 30, LAST]
    assert epochs.of_key(1) == [20]
    assert epochs.timers.earliest_ms() == FIRST


def test_timers_fire_once_in_the_order_of_time_over_all_keys(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    epochs.register(3, 5, 40)
    epochs.register(0, 30, 10)
    epochs.register(4, 10, -20)
    later()
    epochs.register(1, 31, 10)
    assert epochs.fire(30) == [(-20, 4), (5, 3), (10, 0), (10, 1), (10, 4), (30, 0)]
    assert epochs.timers.earliest_ms() == 31
    epochs.end()
    assert epochs.fire(30) == []
    assert epochs.fire(40) == [(31, 1), (40, 3)]
    assert epochs.timers.earliest_ms() is None
    epochs.subtask.end()
    assert epochs.subtask.entries() == {}


def test_timers_of_many_keys_are_those_of_each(epochs: Epochs, later: Callable[[], object]) -> None:
    def many(*timers: tuple[int, int]) -> tuple[Any, Any]:
        return tuple(np.array(timers, np.int64).T)

    register, delete = epochs.timers.register_many, epochs.timers.delete_many
    register(*many((0, 30), (3, -5), (0, LAST), (4, FIRST), (1, 10)))
    register(*many((0, 30), (1, 20)))
    delete(*many((1, 10), (2, 10), (0, LAST)))
    later()
    assert [epochs.of_key(position) for position in range(5)] == [[30], [20], [], [-5], [FIRST]]
    assert epochs.timers.earliest_ms() == FIRST
    assert epochs.fire(30) == [(FIRST, 4), (-5, 3), (20, 1), (30, 0)]


def test_timers_of_many_keys_change_while_timers_fire_as_those_of_each(epochs: Epochs) -> None:
    """A due one waits for the next epoch, and one that is to fire fires although it is deleted."""
    for position in range(2):
        epochs.register(position, 10, 20, 30)
    first = epochs.timers.take_due(20, 1)
    assert [timer.time_ms for timer in first] == [10]
    positions = np.array([0, 1])
    epochs.timers.register_many(positions, np.array([5, 40]))
    epochs.timers.delete_many(positions, np.array([20, 30]))
    epochs.timers.delete_many(positions[:1], np.array([10]))
    due = epochs.timers.take_due(20, 10)
    assert [(timer.time_ms, KEYS.index(timer.key)) for timer in due] == [(10, 1), (20, 0), (20, 1)]
    epochs.timers.delete_many(np.array([1, 0, 1]), np.array([10, 20, 20]))
    assert epochs.timers.take_due(20, 10) == []
    epochs.end()
    assert [epochs.of_key(position) for position in range(2)] == [[5, 30], [40]]
    assert epochs.fire(20) == [(5, 0)]


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_any_number_of_timers_can_be_taken_at_once(
    epochs: Epochs, later: Callable[[], object], most: int
) -> None:
    for position in range(3):
        epochs.register(position, *range(10))
    later()
    assert epochs.fire(5, most) == [(time, key) for time in range(6) for key in range(3)]
    assert epochs.timers.earliest_ms() == 6


def test_a_timer_registered_while_timers_fire_waits_for_the_next_epoch(epochs: Epochs) -> None:
    epochs.register(0, 10)
    (timer,) = epochs.timers.take_due(100, 10)
    epochs.subtask.to_key(0)
    epochs.timers.register(50)
    epochs.timers.register(101)
    epochs.timers.delete(timer.time_ms)
    assert epochs.timers.take_due(100, 10) == []
    assert epochs.of_key(0) == [50, 101]
    assert epochs.timers.earliest_ms() == 50
    epochs.end()
    assert epochs.fire(100) == [(50, 0)]


def test_registering_a_due_timer_again_while_timers_fire_changes_nothing(epochs: Epochs) -> None:
    epochs.register(0, 10, 20)
    (first,) = epochs.timers.take_due(100, 1)
    epochs.timers.register(20)
    epochs.timers.delete(first.time_ms)
    assert [timer.time_ms for timer in epochs.timers.take_due(100, 1)] == [20]


def test_a_taken_timer_that_is_deleted_and_registered_again_fires_once_more(
    epochs: Epochs,
) -> None:
    epochs.register(0, 10, 20, 30)
    epochs.end()
    first, second, third = epochs.timers.take_due(30, 10)
    epochs.timers.delete(20)
    epochs.timers.delete(30)
    assert epochs.of_key(0) == [10]
    epochs.timers.register(30)
    epochs.timers.delete(first.time_ms)
    epochs.timers.delete(second.time_ms)
    assert epochs.timers.take_due(30, 10) == []
    assert epochs.timers.earliest_ms() == third.time_ms
    epochs.end()
    assert epochs.fire(30) == [(30, 0)]


def test_a_due_timer_that_is_deleted_fires_however_many_are_taken_at_once(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    found = []
    for most in (1, 2, 3, 100):
        epochs.register(0, 10, 20, 30, 40, 1000)
        epochs.register(1, 20)
        later()

        def change(time_ms: int, position: int) -> None:
            if (time_ms, position) == (10, 0):
                for deleted_ms in (20, 30, 30, 40, 50):
                    epochs.timers.delete(deleted_ms)
                epochs.timers.register(30)
                assert epochs.of_key(0) == [10, 30, 1000]

        epochs.subtask.to_key(0)
        epochs.timers.delete(40)  # before they fire
        found.append(epochs.fire(100, most, change))
        assert epochs.timers.earliest_ms() == 1000
        epochs.end()
        assert epochs.fire(100) == []
        assert epochs.of_key(0) == [1000]
        epochs.end()
        assert len(epochs.subtask.entries()) == 2
    assert found == [[(10, 0), (20, 0), (20, 1), (30, 0)]] * 4


@pytest.mark.parametrize("most", [1, 100])
def test_a_timer_that_has_fired_can_be_registered_for_the_next_epoch(
    epochs: Epochs, most: int
) -> None:
    epochs.register(0, 10, 20, 30)

    def change(time_ms: int, position: int) -> None:
        if time_ms == 20:
            epochs.timers.register(10)
            epochs.timers.register(25)
            epochs.timers.register(26)
            epochs.timers.delete(26)  # was not due when timers began to fire

    assert epochs.fire(100, most, change) == [(10, 0), (20, 0), (30, 0)]
    epochs.end()
    assert epochs.fire(100) == [(10, 0), (25, 0)]


def test_what_is_taken_names_time_and_key(epochs: Epochs) -> None:
    epochs.register(2, 10)
    assert epochs.timers.take_due(10, 1) == [DueTimer(10, KEYS[2])]


def test_timers_can_be_deleted_while_they_are_listed(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    epochs.register(0, *range(5))
    later()
    epochs.subtask.to_key(0)
    for time_ms in epochs.timers.of_current_key():
        epochs.timers.delete(time_ms)
        epochs.timers.register(time_ms + 10)
    assert epochs.of_key(0) == [10, 11, 12, 13, 14]


def test_timers_fire_once_however_the_clock_jumps(epochs: Epochs) -> None:
    """Scenario 29: a jump forward fires what became due, a jump back fires nothing twice."""
    hour_ms, start_ms = 3_600_000, 10_000_000
    epochs.register(0, start_ms + 1, start_ms + hour_ms, start_ms + hour_ms + 1)
    epochs.end()
    assert epochs.fire(start_ms - hour_ms) == []
    epochs.end()
    assert epochs.fire(start_ms + hour_ms) == [(start_ms + 1, 0), (start_ms + hour_ms, 0)]
    epochs.end()
    for now_ms in (start_ms, start_ms - hour_ms, start_ms + hour_ms):
        assert epochs.fire(now_ms) == []
        epochs.end()
    assert epochs.fire(start_ms + hour_ms + 1) == [(start_ms + hour_ms + 1, 0)]


@pytest.mark.parametrize("use", [
    lambda timers: timers.register(1), lambda timers: timers.delete(1),
    lambda timers: timers.of_current_key(),
], ids=["registerTimer", "deleteTimer", "listTimers"])  # fmt: skip
class TestRefusals:
    def test_timers_need_a_clock(
        self, subtask_epochs: SubtaskEpochs, use: Callable[..., object]
    ) -> None:
        subtask_epochs.clock = EpochClock(TimeMode.NONE, 1, 1)
        timers = subtask_epochs.begin().timers
        with pytest.raises(PlanError, match=r"operator 'u': (\w+)Timers? needs a clock"):
            use(timers)

    def test_timers_need_a_key(
        self, subtask_epochs: SubtaskEpochs, use: Callable[..., object]
    ) -> None:
        timers = subtask_epochs.begin().timers
        subtask_epochs.leave_key()
        with pytest.raises(StateError, match="outside a key"):
            use(timers)


def test_a_fired_timer_that_stays_is_an_error_and_does_not_fire_for_ever(epochs: Epochs) -> None:
    epochs.register(0, 10, 30)
    epochs.register(1, 20)
    first = epochs.timers.take_due(100, most=2)
    assert [timer.time_ms for timer in first] == [10, 20]
    epochs.subtask.to_key(1)
    epochs.timers.delete(20)
    with pytest.raises(StateError, match=r"timer of 10 ms .* second time in one epoch"):
        epochs.timers.take_due(100, most=2)
