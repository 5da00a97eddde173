"""Reducing and aggregating state: merged as values come, as Flink does it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.state.merging import AggregateFunction, AggregatingState, ReducingState
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs

SUM_AND_COUNT = T.StructType([T.StructField("s", T.LongType()), T.StructField("n", T.LongType())])


def later_minus_earlier(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Tells which of its arguments is which."""
    return (b[0] - a[0],)


class Average(AggregateFunction):
    def create(self) -> tuple[int, ...]:
        return (0, 0)

    def add(self, value: int, accumulator: tuple[int, ...]) -> tuple[int, ...]:
        return (accumulator[0] + value, accumulator[1] + 1)

    def getResult(self, accumulator: tuple[int, ...]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return (a[0] + b[0], a[1] + b[1])


class Epochs:
    def __init__(self, epochs: SubtaskEpochs, ttl: int | None) -> None:
        self.subtask = epochs
        self.ttl = ttl
        self.begin()

    def begin(self) -> None:
        handle = self.subtask.begin()
        self.reducing: ReducingState = handle.getReducingState(
            "r", NUMBER, later_minus_earlier, self.ttl
        )
        self.average: AggregatingState = handle.getAggregatingState(
            "a", SUM_AND_COUNT, Average(), self.ttl
        )

    def end(self) -> None:
        self.subtask.end()
        self.begin()


@pytest.fixture(params=[None, 100], ids=["no ttl", "ttl"])
def epochs(request: pytest.FixtureRequest, subtask_epochs: SubtaskEpochs) -> Epochs:
    return Epochs(subtask_epochs, request.param)


@pytest.fixture(params=[False, True], ids=["same epoch", "next epoch"])
def later(request: pytest.FixtureRequest, epochs: Epochs) -> Callable[[], object]:
    return epochs.end if request.param else lambda: None


def test_without_values_there_is_nothing(epochs: Epochs) -> None:
    for state in (epochs.reducing, epochs.average):
        assert not state.exists()
        assert state.get() is None
        state.clear()
    assert sum(map(len, epochs.subtask.end())) == 2, "two deletes of nothing"


def test_a_reducing_state_merges_the_older_with_the_newer(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    expected = None
    for number in (5, 7, 1, 1):
        epochs.reducing.add((number,))
        expected = number if expected is None else number - expected
        later()
        assert epochs.reducing.exists()
        assert epochs.reducing.get() == (expected,)


def test_an_aggregating_state_shows_the_result_and_keeps_the_accumulator(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    for number in (1, 2, 6):
        epochs.average.add(number)
        later()
    assert epochs.average.exists()
    assert epochs.average.get() == 3
    epochs.average.merge((7, 1))
    later()
    assert epochs.average.get() == 4
    epochs.average.clear()
    later()
    assert not epochs.average.exists()
    epochs.average.merge((10, 4))
    later()
    assert epochs.average.get() == 2.5


def test_keys_do_not_mix(epochs: Epochs, later: Callable[[], object]) -> None:
    for position in range(3):
        epochs.subtask.to_key(position)
        epochs.reducing.add((position,))
        epochs.average.add(position)
    later()
    for position in range(3):
        epochs.subtask.to_key(position)
        assert epochs.reducing.get() == (position,)
        assert epochs.average.get() == position
        if position == 1:
            epochs.reducing.clear()
            epochs.average.clear()
    later()
    for position in range(3):
        epochs.subtask.to_key(position)
        assert epochs.reducing.exists() == epochs.average.exists() == (position != 1)


def test_a_merged_value_that_does_not_fit_is_refused_and_changes_nothing(epochs: Epochs) -> None:
    epochs.reducing.add((1,))
    epochs.average.add(1)
    for add in (
        lambda: epochs.reducing.add((0.5,)),
        lambda: epochs.average.merge((1,)),
    ):
        with pytest.raises((StateValueError, IndexError)):
            add()
    assert epochs.reducing.get() == (1,)
    assert epochs.average.get() == 1


@pytest.mark.parametrize("since_last_ms", [99, 100])
def test_what_was_added_expires_as_a_whole(
    subtask_epochs: SubtaskEpochs, since_last_ms: int
) -> None:
    subtask_epochs.set_time(1000)
    epochs = Epochs(subtask_epochs, 100)
    for time_ms in (1090, 1180):
        epochs.reducing.add((1,))
        epochs.average.add(1)
        subtask_epochs.set_time(time_ms)
        epochs.end()
    subtask_epochs.set_time(1090 + since_last_ms)
    epochs.end()
    alive = since_last_ms < 100
    assert epochs.reducing.exists() == epochs.average.exists() == alive
    epochs.reducing.add((5,))
    epochs.average.add(7)
    assert epochs.reducing.get() == ((5,) if not alive else (5 - 0,))
    assert epochs.average.get() == (7 if not alive else 3)
