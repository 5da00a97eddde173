"""A processor's handle that remembers the states it gave out, for a test to look into."""

from __future__ import annotations

from typing import Any, TypeVar

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.list_state import ListState
from pyspark_ckpt.operator.map_state import MapState
from pyspark_ckpt.operator.merging_states import (
    AggregateFunction,
    AggregatingState,
    ReduceFunction,
    ReducingState,
)
from pyspark_ckpt.operator.operator_states import SPLIT, BroadcastState, OperatorListState
from pyspark_ckpt.operator.processor_handle import ProcessorHandle, Schema, Ttl
from pyspark_ckpt.operator.value_state import ValueState

State = TypeVar("State")


class NotedStates(ProcessorHandle):
    """The library's own handle; what it gave out is found again by name."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._noted: dict[str, Any] = {}

    def noted(self, name: str, *kinds: type) -> Any:
        """Return a state that ``init`` asked for.

        Raises
        ------
        PlanError
            If there is none of that name and kind.
        """
        state = self._noted.get(name)
        if state is None:
            raise PlanError(
                f"{self._where}: init asks for no state {name!r}, but for {sorted(self._noted)}"
            )
        if kinds and not isinstance(state, kinds):
            raise PlanError(
                f"{self._where}: state {name!r} is a {type(state).__name__}, no "
                f"{' or '.join(kind.__name__ for kind in kinds)}"
            )
        return state

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: Ttl = None
    ) -> ValueState:
        """As in the library."""
        return self._note(stateName, super().getValueState(stateName, schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: Ttl = None) -> ListState:
        """As in the library."""
        return self._note(stateName, super().getListState(stateName, schema, ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: Ttl = None,
    ) -> MapState:
        """As in the library."""
        state = super().getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        return self._note(stateName, state)

    def getReducingState(
        self, stateName: str, schema: Schema, reduce: ReduceFunction, ttlDurationMs: Ttl = None
    ) -> ReducingState:
        """As in the library."""
        state = super().getReducingState(stateName, schema, reduce, ttlDurationMs)
        return self._note(stateName, state)

    def getAggregatingState(
        self,
        stateName: str,
        accumulatorSchema: Schema,
        aggregate: AggregateFunction,
        ttlDurationMs: Ttl = None,
    ) -> AggregatingState:
        """As in the library."""
        state = super().getAggregatingState(stateName, accumulatorSchema, aggregate, ttlDurationMs)
        return self._note(stateName, state)

    def getOperatorListState(
        self, stateName: str, schema: Schema, redistribution: str = SPLIT
    ) -> OperatorListState:
        """As in the library."""
        state = super().getOperatorListState(stateName, schema, redistribution)
        return self._note(stateName, state)

    def getBroadcastState(
        self, stateName: str, keySchema: Schema, valueSchema: Schema
    ) -> BroadcastState:
        """As in the library."""
        return self._note(stateName, super().getBroadcastState(stateName, keySchema, valueSchema))

    def deleteIfExists(self, stateName: str) -> None:
        """As in the library."""
        super().deleteIfExists(stateName)
        self._noted.pop(stateName, None)

    def _note(self, name: str, state: State) -> State:
        self._noted[name] = state
        return state
