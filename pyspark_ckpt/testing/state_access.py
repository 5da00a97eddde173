"""How a test looks into states and sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.state.operator_states import RawState
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.values.codec import Value
from pyspark_ckpt.testing.given_keys import GivenKeys
from pyspark_ckpt.testing.harness_clock import HarnessClock
from pyspark_ckpt.testing.harness_subtask import HarnessSubtask
from pyspark_ckpt.testing.noted_states import NotedStates

OF_OPERATOR: Any = object()
"""Replaces the key where a state belongs to no key, because ``None`` is a key."""


class StateAccess:
    """The part of :class:`ProcessorHarness` that reads and writes single states.

    Keys are values, or tuples of values if the harness has several key columns. A state is read at
    the harness's time, so expired entries are not returned. Reading has no effect. Each update and
    each delete is a separate epoch, without rows and timers. ``HarnessUseError`` is raised for a
    state that ``init`` does not ask for, and for a state of another kind.
    """

    def __init__(self, subtask: HarnessSubtask, keys: GivenKeys, clock: HarnessClock) -> None:
        self._subtask = subtask
        self._keys = keys
        self._clock = clock

    def peek(self, stateName: str, key: Any = OF_OPERATOR) -> Any:
        """Return what a state of any kind holds.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object, optional
            Whose state it is; left out for operator list and broadcast state.

        Returns
        -------
        tuple, list, dict or None
            A tuple for value and reducing state, the result for aggregating state, a list for list
            and operator list state, a dict for map and broadcast state.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state.

        Examples
        --------
        >>> harness.peek("cities", "ada")
        [('Oslo',), ('Rome',)]
        """
        return self._peek(stateName, key)

    def peekValueState(self, stateName: str, key: Any) -> Value | None:
        """Return a key's value.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        tuple or None
            ``None`` if the key has no value.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.

        Examples
        --------
        >>> harness.peekValueState("count", "ada")
        (2,)
        """
        value: Value | None = self._peek(stateName, key, ValueState)
        return value

    def peekListState(self, stateName: str, key: Any) -> list[Value]:
        """Return a key's list.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        list of tuple
            Empty if the key has no list.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.

        Examples
        --------
        >>> harness.peekListState("cities", "bob")
        []
        """
        values: list[Value] = self._peek(stateName, key, ListState)
        return values

    def peekMapState(self, stateName: str, key: Any) -> dict[Value, Value]:
        """Return a key's map.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        dict of tuple to tuple
            Empty if the key has no map.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.

        Examples
        --------
        >>> harness.peekMapState("by_city", "ada")
        {}
        """
        entries: dict[Value, Value] = self._peek(stateName, key, MapState)
        return entries

    def peekTimers(self, key: Any) -> list[int]:
        """Return a key's timers, earliest first.

        Parameters
        ----------
        key : object
            A value; a tuple of values if the harness has several key columns.

        Returns
        -------
        list of int
            Milliseconds of the operator's time mode.

        Raises
        ------
        TimeModeError
            If the harness has ``timeMode="None"``.

        Examples
        --------
        >>> harness.peekTimers("ada")
        [60000]
        """
        given = self._keys.given(key)
        return self._subtask.look(
            self._clock.now(), lambda states: list(states.listTimers()), given
        )

    def peekRawState(self) -> bytes | None:
        """Return what ``snapshotState`` wrote last.

        Returns
        -------
        bytes or None
            ``None`` if ``snapshotState`` never wrote.

        Examples
        --------
        >>> class Raw(Visits):
        ...     def snapshotState(self, context):
        ...         context.getRawOperatorStateOutput().write(b"3 files")
        >>> harness = ProcessorHarness(Raw(), timeMode="ProcessingTime")
        >>> harness.test("ada", [])
        [Row(user='ada', n=0)]
        >>> harness.peekRawState()
        b'3 files'
        """
        streams = self._subtask.look(
            self._clock.now(), lambda states: RawState(states.table).streams()
        )
        return streams[0] if streams else None

    def updateValueState(self, stateName: str, key: Any, value: Value) -> None:
        """Set a key's value, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.
        value : tuple
            One value per field of the schema.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.
        StateValueError
            If the value does not fit the schema.

        Examples
        --------
        >>> harness.updateValueState("count", "ada", (10,))
        >>> harness.peekValueState("count", "ada")
        (10,)
        """
        self._edit(stateName, key, lambda state: state.update(value), ValueState)

    def updateListState(self, stateName: str, key: Any, value: Iterable[Value]) -> None:
        """Set a key's list, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.
        value : iterable of tuple
            The values in order.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.
        StateValueError
            If a value does not fit the schema.

        Examples
        --------
        >>> harness.updateListState("cities", "ada", [("Lima",)])
        >>> harness.peekListState("cities", "ada")
        [('Lima',)]
        """
        self._edit(stateName, key, lambda state: state.put(value), ListState)

    def updateMapState(self, stateName: str, key: Any, value: Mapping[Value, Value]) -> None:
        """Set a key's map, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.
        value : Mapping of tuple to tuple
            All entries.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state, or the state is of another kind.
        StateValueError
            If a key or value does not fit the schema.

        Examples
        --------
        >>> harness.updateMapState("by_city", "ada", {("Oslo",): (1,)})
        >>> harness.peekMapState("by_city", "ada")
        {('Oslo',): (1,)}
        """

        def put(state: MapState) -> None:
            state.clear()
            for entry in value.items():
                state.updateValue(*entry)

        self._edit(stateName, key, put, MapState)

    def deleteState(self, stateName: str, key: Any) -> None:
        """Remove what a state of any kind holds for a key, in a separate epoch.

        Parameters
        ----------
        stateName : str
            The name of a state that ``init`` asks for.
        key : object
            A value; a tuple of values if the harness has several key columns.

        Raises
        ------
        HarnessUseError
            If ``init`` asks for no such state.

        Examples
        --------
        >>> harness.deleteState("count", "ada")
        >>> print(harness.peekValueState("count", "ada"))
        None
        """
        self._edit(stateName, key, lambda state: state.clear())

    def _peek(self, name: str, key: Any, *classes: type) -> Any:
        given = None if key is OF_OPERATOR else self._keys.given(key)

        def content(states: NotedStates) -> Any:
            noted = states.noted(name, *classes)
            try:
                return noted.kind.content_of(noted.state)
            except TypeError as exc:
                raise HarnessUseError(
                    f"the keys of state {name!r} hold lists or dicts, so no dict has them ({exc}): "
                    "read it in the processor, with iterator()"
                ) from exc

        return self._subtask.look(self._clock.now(), content, given)

    def _edit(self, name: str, key: Any, change: Callable[[Any], None], *classes: type) -> None:
        self._subtask.edit(
            self._clock.now(),
            [(self._keys.given(key), name)],
            lambda _processor, states, _key, name: change(states.noted(name, *classes).state),
        )
