"""Reducing and aggregating state: values are merged into one as they are added, as in Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.values.codec import Value

ReduceFunction = Callable[[Value, Value], Value]
AsTuple = Callable[[Any], Value]
"""Returns a tuple for it, or for the value of its only field."""


class AggregateFunction(ABC):
    """How an aggregating state merges values; Flink's AggregateFunction.

    Subclass it and pass an instance to ``handle.getAggregatingState``. Its methods are called on
    executors. Accumulators are tuples of the state's accumulator schema.

    Examples
    --------
    >>> from pyspark_ckpt import AggregateFunction
    >>> class Mean(AggregateFunction):
    ...     def create(self):
    ...         return (0.0, 0)
    ...
    ...     def add(self, value, accumulator):
    ...         return (accumulator[0] + value, accumulator[1] + 1)
    ...
    ...     def getResult(self, accumulator):
    ...         return accumulator[0] / accumulator[1]
    ...
    ...     def merge(self, a, b):
    ...         return (a[0] + b[0], a[1] + b[1])
    >>> mean = Mean()
    >>> mean.getResult(mean.add(4.0, mean.add(2.0, mean.create())))
    3.0
    """

    @abstractmethod
    def create(self) -> Value:
        """Return the accumulator of no values.

        Returns
        -------
        tuple
            One value per field of the accumulator schema.

        Examples
        --------
        >>> mean.create()
        (0.0, 0)
        """

    @abstractmethod
    def add(self, value: Any, accumulator: Value) -> Value:
        """Return the accumulator with one more value.

        Parameters
        ----------
        value : object
            What was passed to the state's ``add``.
        accumulator : tuple
            The accumulator of the values before.

        Returns
        -------
        tuple
            The new accumulator.

        Examples
        --------
        >>> mean.add(2.0, (4.0, 1))
        (6.0, 2)
        """

    @abstractmethod
    def getResult(self, accumulator: Value) -> Any:
        """Return what the state's ``get`` returns for an accumulator.

        Parameters
        ----------
        accumulator : tuple
            The accumulator of at least one value.

        Returns
        -------
        object
            The result, of any type.

        Examples
        --------
        >>> mean.getResult((6.0, 2))
        3.0
        """

    @abstractmethod
    def merge(self, a: Value, b: Value) -> Value:
        """Return the accumulator of the values of two accumulators.

        Parameters
        ----------
        a : tuple
            One accumulator.
        b : tuple
            The other accumulator.

        Returns
        -------
        tuple
            The new accumulator.

        Examples
        --------
        >>> mean.merge((4.0, 1), (2.0, 1))
        (6.0, 2)
        """


class ReducingState:
    """One tuple per key, merged from all that were added; the methods of Flink's ReducingState.

    ``handle.getReducingState`` returns it in ``init``. A processor calls its methods on executors,
    for the key that it handles. Changes are durable when the epoch is committed.

    Parameters
    ----------
    value : ValueState
        Holds the merged tuple.
    reduce : callable
        Returns one tuple for two.
    as_tuple : callable
        Returns the tuple that was given, or that was meant by the value of the only field.

    Examples
    --------
    >>> total = handle.getReducingState("total", "n long", lambda a, b: (a[0] + b[0],))
    >>> total.add((2,))
    >>> total.add((3,))
    >>> total.get()
    (5,)
    """

    def __init__(self, value: ValueState, reduce: ReduceFunction, as_tuple: AsTuple) -> None:
        self._value = value
        self._reduce = reduce
        self._as_tuple = as_tuple

    def exists(self) -> bool:
        """Return whether something was added for the key.

        Returns
        -------
        bool
            False also if the merged tuple has expired.

        Examples
        --------
        >>> total = handle.getReducingState("total", "n long", lambda a, b: (a[0] + b[0],))
        >>> total.exists()
        False
        """
        return self._value.exists()

    def get(self) -> Value | None:
        """Return the merged tuple of the key.

        Returns
        -------
        tuple or None
            One value per field of the schema; ``None`` if nothing was added.

        Examples
        --------
        >>> total = handle.getReducingState("total", "n long", lambda a, b: (a[0] + b[0],))
        >>> print(total.get())
        None
        """
        return self._value.get()

    def add(self, value: Value) -> None:
        """Merge one more tuple into the key's.

        Parameters
        ----------
        value : tuple
            One value per field of the schema.

        Raises
        ------
        StateValueError
            If the merged tuple does not fit the schema.

        Examples
        --------
        >>> total = handle.getReducingState("total", "n long", lambda a, b: (a[0] + b[0],))
        >>> total.add((2,))
        >>> total.get()
        (2,)
        """
        added, merged = self._as_tuple(value), self._value.get()
        self._value.update(added if merged is None else self._reduce(merged, added))

    def clear(self) -> None:
        """Remove what was added for the key.

        Examples
        --------
        >>> total = handle.getReducingState("total", "n long", lambda a, b: (a[0] + b[0],))
        >>> total.add((2,))
        >>> total.clear()
        >>> total.exists()
        False
        """
        self._value.clear()


class AggregatingState:
    """An accumulator per key and its result; the methods of Flink's AggregatingState.

    ``handle.getAggregatingState`` returns it in ``init``. A processor calls its methods on
    executors, for the key that it handles. Changes are durable when the epoch is committed.

    Parameters
    ----------
    accumulator : ValueState
        Holds the accumulator.
    aggregate : AggregateFunction
        Makes, fills and reads accumulators.
    as_tuple : callable
        Returns the tuple that was given, or that was meant by the value of the only field.

    Examples
    --------
    `Mean` is the example of :class:`pyspark_ckpt.AggregateFunction`.

    >>> mean = handle.getAggregatingState("mean", "total double, n long", Mean())
    >>> mean.add(2.0)
    >>> mean.add(4.0)
    >>> mean.get()
    3.0
    """

    def __init__(
        self, accumulator: ValueState, aggregate: AggregateFunction, as_tuple: AsTuple
    ) -> None:
        self._accumulator = accumulator
        self._aggregate = aggregate
        self._as_tuple = as_tuple

    def exists(self) -> bool:
        """Return whether something was added for the key.

        Returns
        -------
        bool
            False also if the accumulator has expired.

        Examples
        --------
        >>> mean = handle.getAggregatingState("mean", "total double, n long", Mean())
        >>> mean.exists()
        False
        """
        return self._accumulator.exists()

    def get(self) -> Any:
        """Return the result for all values that were added.

        Returns
        -------
        object
            What ``getResult`` of the aggregate function returns; ``None`` if nothing was added.

        Examples
        --------
        >>> mean = handle.getAggregatingState("mean", "total double, n long", Mean())
        >>> print(mean.get())
        None
        """
        accumulator = self._accumulator.get()
        return None if accumulator is None else self._aggregate.getResult(accumulator)

    def add(self, value: Any) -> None:
        """Add one value to the key's accumulator.

        Parameters
        ----------
        value : object
            What ``add`` of the aggregate function takes.

        Raises
        ------
        StateValueError
            If the accumulator does not fit its schema.

        Examples
        --------
        >>> mean = handle.getAggregatingState("mean", "total double, n long", Mean())
        >>> mean.add(2.0)
        >>> mean.get()
        2.0
        """
        accumulator = self._accumulator.get()
        if accumulator is None:
            accumulator = self._as_tuple(self._aggregate.create())
        self._accumulator.update(self._aggregate.add(value, accumulator))

    def merge(self, accumulator: Value) -> None:
        """Merge an accumulator that was made elsewhere into the key's.

        Parameters
        ----------
        accumulator : tuple
            One value per field of the accumulator schema.

        Raises
        ------
        StateValueError
            If the accumulator does not fit its schema.

        Examples
        --------
        >>> mean = handle.getAggregatingState("mean", "total double, n long", Mean())
        >>> mean.add(2.0)
        >>> mean.merge((10.0, 2))
        >>> mean.get()
        4.0
        """
        given, own = self._as_tuple(accumulator), self._accumulator.get()
        self._accumulator.update(given if own is None else self._aggregate.merge(own, given))

    def clear(self) -> None:
        """Remove what was added for the key.

        Examples
        --------
        >>> mean = handle.getAggregatingState("mean", "total double, n long", Mean())
        >>> mean.add(2.0)
        >>> mean.clear()
        >>> mean.exists()
        False
        """
        self._accumulator.clear()
