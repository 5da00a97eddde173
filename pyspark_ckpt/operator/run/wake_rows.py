"""Rows that make Spark call every subtask in epoch 0, also a subtask without rows of the stream.

A subtask with an initial state puts its first handle into Spark's state store then. Otherwise the
first checkpoint would lack the state of keys without rows, and their timers would never fire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_ckpt.operator.descriptor import decode_runtime
from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN
from pyspark_ckpt.operator.rows.sides import NO_KEY_GROUP, SideRows
from pyspark_ckpt.operator.run.task_epoch import epoch_of_task
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.settings import RUNTIME_KEY

INITIAL_EPOCH = 0
"""The epoch that starts from the initial state."""

_TIMESTAMP_MS = "__ckpt_timestamp_ms"


class WakeRows:
    """The rows that wake subtasks, beside the rows of an operator.

    Parameters
    ----------
    uid
        The operator.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self.side = SideRows("wake")

    def plan(self, keyed: DataFrame, row: DataFrame, tokens: Sequence[int]) -> DataFrame:
        """Return the keyed rows and, in epoch 0, a row for each token. Driver only.

        Parameters
        ----------
        keyed
            The rows, with key group and token.
        row
            One row in each epoch.
        tokens
            Those of all subtasks.
        """
        schema = keyed.select(KEY_GROUP, TOKEN).schema
        # Spark replaces the time by the epoch's time, as in the plan of the operator.
        timed = row.select(F.unix_millis(F.current_timestamp()).alias(_TIMESTAMP_MS))
        return self.side.union(keyed, timed.mapInArrow(_Gate(self._uid, tuple(tokens)), schema))


class _Gate:
    """The function given to ``mapInArrow``: from the row of an epoch to the rows that wake."""

    def __init__(self, uid: str, tokens: tuple[int, ...]) -> None:
        self._uid = uid
        self._tokens = tokens

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for timestamp_ms in batch.column(0).to_pylist():
                if self._epoch(timestamp_ms) == INITIAL_EPOCH:
                    yield self._rows()

    def _epoch(self, timestamp_ms: int) -> int:
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task only
        runtime = decode_runtime(context.getLocalProperty(RUNTIME_KEY), self._uid)
        where = f"operator {self._uid!r}"
        return epoch_of_task(context.getLocalProperty, runtime, timestamp_ms, where)

    def _rows(self) -> pa.RecordBatch:
        groups = pa.array([NO_KEY_GROUP] * len(self._tokens), pa.int32())
        return pa.record_batch({KEY_GROUP: groups, TOKEN: pa.array(self._tokens, pa.int32())})
