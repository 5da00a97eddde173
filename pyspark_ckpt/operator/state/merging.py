"""Reducing and aggregating state: values are merged into one as they are added, as in Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.values.codec import Value

ReduceFunction = Callable[[Value, Value], Value]


class AggregateFunction(ABC):
    """How an aggregating state merges values; Flink's AggregateFunction.

    Accumulators are tuples of the state's accumulator schema. Methods are called on executors.
    """

    @abstractmethod
    def create(self) -> Value:
        """Return the accumulator of no values."""

    @abstractmethod
    def add(self, value: Any, accumulator: Value) -> Value:
        """Return the accumulator with one more value."""

    @abstractmethod
    def getResult(self, accumulator: Value) -> Any:
        """Return what the state shows for an accumulator."""

    @abstractmethod
    def merge(self, a: Value, b: Value) -> Value:
        """Return the accumulator of the values of two."""


class ReducingState:
    """One tuple per key, merged from all that were added; the methods of Flink's ReducingState."""

    def __init__(self, value: ValueState, reduce: ReduceFunction) -> None:
        self._value = value
        self._reduce = reduce

    def exists(self) -> bool:
        """Tell whether anything was added for the key."""
        return self._value.exists()

    def get(self) -> Value | None:
        """Return the merged value, ``None`` if nothing was added."""
        return self._value.get()

    def add(self, value: Value) -> None:
        """Merge one more value in."""
        merged = self._value.get()
        self._value.update(value if merged is None else self._reduce(merged, value))

    def clear(self) -> None:
        """Forget all that was added for the key."""
        self._value.clear()


class AggregatingState:
    """An accumulator per key and its result; the methods of Flink's AggregatingState."""

    def __init__(self, accumulator: ValueState, aggregate: AggregateFunction) -> None:
        self._accumulator = accumulator
        self._aggregate = aggregate

    def exists(self) -> bool:
        """Tell whether anything was added for the key."""
        return self._accumulator.exists()

    def get(self) -> Any:
        """Return the result for all values added, ``None`` if there are none."""
        accumulator = self._accumulator.get()
        return None if accumulator is None else self._aggregate.getResult(accumulator)

    def add(self, value: Any) -> None:
        """Add one value."""
        accumulator = self._accumulator.get()
        if accumulator is None:
            accumulator = self._aggregate.create()
        self._accumulator.update(self._aggregate.add(value, accumulator))

    def merge(self, accumulator: Value) -> None:
        """Merge an accumulator that was made elsewhere in, such as one from an earlier state."""
        own = self._accumulator.get()
        self._accumulator.update(
            accumulator if own is None else self._aggregate.merge(own, accumulator)
        )

    def clear(self) -> None:
        """Forget all that was added for the key."""
        self._accumulator.clear()
