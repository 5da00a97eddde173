"""Rows that make Spark call every subtask in an epoch, also a subtask without rows of the stream.

In epoch 0 a subtask with an initial state puts its first handle into Spark's state store. Otherwise
the first checkpoint would lack the state of keys without rows, and their timers would never fire.

In an epoch that releases quarantined keys, every subtask releases its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.descriptor import decode_runtime
from pyspark_ckpt.operator.quarantine.releases import release_files
from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN
from pyspark_ckpt.operator.rows.sides import NO_KEY_GROUP, SideRows
from pyspark_ckpt.operator.run.task_epoch import epoch_of_task
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.settings import RUNTIME_KEY
from pyspark_ckpt.values.time_zones import arrow_schema

INITIAL_EPOCH = 0
"""The epoch that starts from the initial state."""

_TIMESTAMP_MS = "__ckpt_timestamp_ms"


@dataclass(frozen=True, slots=True)
class _Epochs:
    """The epochs that wake the subtasks: the first, and those that release keys."""

    first: bool
    releasing: bool


class WakeRows:
    """The rows that wake subtasks; they come in addition to the rows of an operator."""

    def __init__(self, uid: str, *, has_initial_state: bool, releases: bool) -> None:
        self._uid = uid
        self._gives = _Epochs(has_initial_state, releases)
        self.side = SideRows("wake")

    def plan(self, keyed: DataFrame, row: DataFrame, tokens: Sequence[int]) -> DataFrame:
        """Return the keyed rows and, in some epochs, a row for each token. Driver only."""
        schema = keyed.select(KEY_GROUP, TOKEN).schema
        # Spark replaces the time by the epoch's time, as in the plan of the operator.
        timed = row.select(F.unix_millis(F.current_timestamp()).alias(_TIMESTAMP_MS))
        return self.side.union(
            keyed, timed.mapInArrow(_Gate(self._uid, tuple(tokens), self._gives), schema)
        )

    def plan_within(self, keyed: DataFrame, tokens: Sequence[int]) -> DataFrame:
        """Return the keyed rows and, in some epochs, a row for each token and task. Driver only.

        For Spark Connect, which has no row that comes in each epoch. All rows pass through Python.
        """
        marked = keyed.select("*", F.expr("false").alias(self.side.flag))
        schema = T.StructType(
            [
                T.StructField(field.name, field.dataType, nullable=True, metadata=field.metadata)
                for field in marked.schema
            ]
        )
        adding = _Adding(self._uid, tuple(tokens), self._gives, self.side.flag, schema)
        timed = marked.withColumn(_TIMESTAMP_MS, F.unix_millis(F.current_timestamp()))
        return timed.mapInArrow(adding, schema)


class _Gate:
    """The function given to ``mapInArrow``: from the row of an epoch to the rows that wake."""

    def __init__(self, uid: str, tokens: tuple[int, ...], gives: _Epochs) -> None:
        self._uid = uid
        self._tokens = tokens
        self._gives = gives

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for timestamp_ms in batch.column(0).to_pylist():
                if self._wakes(timestamp_ms):
                    groups = pa.array([NO_KEY_GROUP] * len(self._tokens), pa.int32())
                    tokens = pa.array(self._tokens, pa.int32())
                    yield pa.RecordBatch.from_pydict({KEY_GROUP: groups, TOKEN: tokens})

    def _wakes(self, timestamp_ms: int | None) -> bool:
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task only
        runtime = decode_runtime(context.getLocalProperty(RUNTIME_KEY), self._uid)
        where = f"operator {self._uid!r}"
        epoch = epoch_of_task(context.getLocalProperty, runtime, timestamp_ms, where)
        if self._gives.first and epoch == INITIAL_EPOCH:
            return True
        if not self._gives.releasing:
            return False
        return bool(len(release_files(runtime).decide(epoch).releases_of(self._uid)))


class _Adding(_Gate):
    """The function given to ``mapInArrow``: the rows of an epoch, and the rows that wake."""

    def __init__(
        self,
        uid: str,
        tokens: tuple[int, ...],
        gives: _Epochs,
        flag: str,
        schema: T.StructType,
    ) -> None:
        super().__init__(uid, tokens, gives)
        self._values: dict[str, list[Any]] = {field.name: [None] * len(tokens) for field in schema}
        self._values |= {KEY_GROUP: [NO_KEY_GROUP] * len(tokens), TOKEN: list(tokens)}
        self._values |= {flag: [True] * len(tokens)}
        self._schema = arrow_schema(schema)

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema, timestamp_ms = self._schema, None
        for batch in batches:
            if len(batch):
                timestamp_ms = batch.column(_TIMESTAMP_MS)[0].as_py()
                passed = batch.select(self._schema.names)
                schema = passed.schema
                yield passed
        if self._wakes(timestamp_ms):
            yield pa.record_batch(
                [pa.array(self._values[field.name], field.type) for field in schema], schema
            )
