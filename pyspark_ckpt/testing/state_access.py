"""How a test looks into states and sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.state.merging import AggregatingState, ReducingState
from pyspark_ckpt.operator.state.operator_states import RawState
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.values.codec import Value
from pyspark_ckpt.testing.given_keys import GivenKeys
from pyspark_ckpt.testing.harness_clock import HarnessClock
from pyspark_ckpt.testing.harness_subtask import HarnessSubtask

OF_OPERATOR: Any = object()
"""In place of a key, for state that belongs to none; ``None`` is a key."""


class StateAccess:
    """The part of :class:`ProcessorHarness` that reads and writes single states.

    Keys are values, or tuples of values where the harness has several key columns. A state is
    read at the harness's time, so expired entries are not seen, and reading changes nothing. Each
    update and delete is an epoch of its own, without rows and timers. A state that ``init`` does
    not ask for, or of another kind, raises ``HarnessUseError``.
    """

    def __init__(self, subtask: HarnessSubtask, keys: GivenKeys, clock: HarnessClock) -> None:
        self._subtask = subtask
        self._keys = keys
        self._clock = clock

    def peek(self, stateName: str, key: Any = OF_OPERATOR) -> Any:
        """Return what a state of any kind holds.

        Parameters
        ----------
        stateName
            The state.
        key
            Whose state it is; left out for operator list and broadcast state.

        Returns
        -------
        tuple, list, dict or None
            A tuple of value and reducing state, the result of aggregating state, a list of list
            and operator list state, a dict of map and broadcast state.
        """
        return self._peek(stateName, key)

    def peekValueState(self, stateName: str, key: Any) -> Value | None:
        """Return a key's value, ``None`` if it has none."""
        value: Value | None = self._peek(stateName, key, ValueState)
        return value

    def peekListState(self, stateName: str, key: Any) -> list[Value]:
        """Return a key's list, empty if it has none."""
        values: list[Value] = self._peek(stateName, key, ListState)
        return values

    def peekMapState(self, stateName: str, key: Any) -> dict[Value, Value]:
        """Return a key's map, empty if it has none."""
        entries: dict[Value, Value] = self._peek(stateName, key, MapState)
        return entries

    def peekTimers(self, key: Any) -> list[int]:
        """Return a key's timers in milliseconds, earliest first."""
        given = self._keys.given(key)
        return self._subtask.look(
            self._clock.now(), lambda states: list(states.listTimers()), given
        )

    def peekRawState(self) -> bytes | None:
        """Return what ``snapshotState`` wrote last, ``None`` if it never wrote."""
        streams = self._subtask.look(
            self._clock.now(), lambda states: RawState(states.table).streams()
        )
        return streams[0] if streams else None

    def updateValueState(self, stateName: str, key: Any, value: Value) -> None:
        """Set a key's value."""
        self._edit(stateName, key, lambda state: state.update(value), ValueState)

    def updateListState(self, stateName: str, key: Any, value: Iterable[Value]) -> None:
        """Set a key's list."""
        self._edit(stateName, key, lambda state: state.put(value), ListState)

    def updateMapState(self, stateName: str, key: Any, value: Mapping[Value, Value]) -> None:
        """Set a key's map."""

        def put(state: MapState) -> None:
            state.clear()
            for entry in value.items():
                state.updateValue(*entry)

        self._edit(stateName, key, put, MapState)

    def deleteState(self, stateName: str, key: Any) -> None:
        """Remove what a state of any kind holds for a key."""
        self._edit(stateName, key, lambda state: state.clear())

    def _peek(self, name: str, key: Any, *kinds: type) -> Any:
        given = None if key is OF_OPERATOR else self._keys.given(key)
        return self._subtask.look(
            self._clock.now(), lambda states: content_of(states.noted(name, *kinds)), given
        )

    def _edit(self, name: str, key: Any, change: Callable[[Any], None], *kinds: type) -> None:
        self._subtask.edit(
            self._clock.now(),
            [(self._keys.given(key), name)],
            lambda _processor, states, _key, name: change(states.noted(name, *kinds)),
        )


def content_of(state: Any) -> Any:
    """Return all that a state holds for the current key, or for the subtask."""
    if isinstance(state, ListState):
        return list(state.get())
    if isinstance(state, MapState):
        return dict(state.iterator())
    assert isinstance(state, ValueState | ReducingState | AggregatingState)
    return state.get()
