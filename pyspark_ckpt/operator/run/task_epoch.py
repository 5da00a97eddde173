"""The epoch of a task: which one it is, where it runs, and what is open until it ends.

Which one it is, Spark or ``foreachBatch`` says; it is never a default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.errors import FencedError, UnknownEpochError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.capture.recording import Recording
from pyspark_ckpt.operator.descriptor import Runtime, decode_announced
from pyspark_ckpt.operator.durable.local_copy import LocalCopy
from pyspark_ckpt.operator.durable.materialization import EpochStart
from pyspark_ckpt.operator.run.processing import EpochProcessing
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.settings import EPOCH_KEY
from pyspark_ckpt.storage.open import Storage

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

_INSIDE = (
    "run all actions on the batch DataFrame inside the foreachBatch function, and wait for their "
    "threads before it returns"
)


@dataclass(frozen=True, slots=True)
class TaskEpoch:
    """Where and when a task of an operator runs."""

    query_id: str
    subtask: int
    number: int
    runtime: Runtime
    storage: Storage
    local_directory: Path
    clock: EpochClock
    run_id: str

    @property
    def start(self) -> EpochStart:
        """The part of it that base snapshots depend on."""
        return EpochStart(self.number, self.clock.processing_time_ms, self.run_id)


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """An epoch whose state is open: the handle it starts from, and what works on the state."""

    handle: Handle
    copy: LocalCopy
    table: StateTable
    processing: EpochProcessing
    recording: Recording


def epoch_of_task(
    local_property: Callable[[str], str | None],
    runtime: Runtime,
    timestamp_ms: int | None,
    where: str,
) -> int:
    """Return the epoch that a task computes.

    Spark sets the epoch for tasks that the query's own thread starts. Actions of ``foreachBatch``
    may come from any thread, which may have inherited the setting of an earlier epoch. So the
    library announces the epoch around each call of the function, and the actions carry that.

    `timestamp_ms` is ``None`` if the task has no row. UnknownEpochError means that the epoch is not
    set, or is not the epoch of this plan. FencedError means that another driver has committed the
    epoch that drains the query, and Spark began the next one with new input.
    """
    where = f"query {runtime.query_id}, {where}"
    number = _epoch(local_property, runtime, timestamp_ms, where)
    if runtime.drain is not None and number != runtime.drain.epoch:
        raise FencedError(
            f"{where}: this run is for epoch {runtime.drain.epoch} only, which drains the query, "
            f"and not for epoch {number}: another driver has finished the drain since. Run a "
            "query once at a time: let that driver run it, or start it again"
        )
    return number


def _epoch(
    local_property: Callable[[str], str | None],
    runtime: Runtime,
    timestamp_ms: int | None,
    where: str,
) -> int:
    if runtime.announces_epochs:
        return _announced_epoch(local_property(EPOCH_KEY), timestamp_ms, where)
    query_id, number = local_property(_QUERY_ID), local_property(_BATCH_ID)
    if query_id != runtime.query_id or number is None:
        raise UnknownEpochError(
            f"{where}: Spark runs this task for query {query_id}, epoch {number}; let the query's "
            "own sink read its DataFrame"
        )
    return int(number)


def _announced_epoch(text: str | None, timestamp_ms: int | None, where: str) -> int:
    if text is None:
        raise UnknownEpochError(
            f"{where}: the task was started outside of the foreachBatch function, so its epoch "
            f"is unknown; {_INSIDE}"
        )
    announced = decode_announced(text)
    if timestamp_ms not in (None, announced.timestamp_ms):
        raise UnknownEpochError(
            f"{where}: the task computes the DataFrame of another epoch (timestamp "
            f"{timestamp_ms}) during epoch {announced.epoch} (timestamp "
            f"{announced.timestamp_ms}); {_INSIDE}"
        )
    return announced.epoch
