"""The handle, states and contexts that a processor gets, to be named in type hints.

The library makes all of these objects. A processor does not call their constructors.

Examples
--------
>>> from pyspark.sql.streaming import StatefulProcessor
>>> from pyspark_ckpt.typing import ProcessorHandle, ValueState
>>> class Count(StatefulProcessor):
...     def init(self, handle: ProcessorHandle) -> None:
...         self.count: ValueState = handle.getValueState("count", "n long")
...
...     def handleInputRows(self, key, rows, timerValues):
...         return iter([])
...
...     def close(self) -> None: ...
"""

from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.state.merging import AggregatingState, ReducingState
from pyspark_ckpt.operator.state.operator_states import (
    BroadcastState,
    OperatorListState,
    StateInitializationContext,
    StateSnapshotContext,
)
from pyspark_ckpt.operator.state.value import ValueState

__all__ = [
    "AggregatingState",
    "BroadcastState",
    "ListState",
    "MapState",
    "OperatorListState",
    "ProcessorHandle",
    "ReducingState",
    "StateInitializationContext",
    "StateSnapshotContext",
    "ValueState",
]
