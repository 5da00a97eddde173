"""One epoch of one subtask in a query: the Python function that Spark calls.

``open the local copy -> process the rows -> barrier -> new handle``

The driver cannot reach the tasks of a running query. So a task looks for completed checkpoints
itself. A checkpoint is complete if its ``_metadata`` is there, and beside it the author's file or,
if another store keeps the checkpoint, the note that this store has it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.errors import ConfigurationError, IncompatibleStateError, PlanError
from pyspark_ckpt.formats.handle import (
    EpochMetrics,
    Handle,
    decode_handle,
    encode_handle,
    following,
)
from pyspark_ckpt.formats.initial_handles import read_initial_handle
from pyspark_ckpt.formats.layout import (
    AUTHOR_NAME,
    METADATA_NAME,
    POINTED_NAME,
    checkpoint_id_of,
    checkpoint_name,
)
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.descriptor import Runtime, decode_runtime
from pyspark_ckpt.operator.durable.local_copy import (
    copies_root,
    executor_local_root,
    open_local_copy,
    subtask_directory,
)
from pyspark_ckpt.operator.durable.materialization import EpochStart, materializer
from pyspark_ckpt.operator.durable.unused_copies import remove_unused
from pyspark_ckpt.operator.rows.key_groups import subtask_tokens
from pyspark_ckpt.operator.run.barrier import end_epoch
from pyspark_ckpt.operator.run.function import WRITES_SHARE, OperatorFunction
from pyspark_ckpt.operator.run.task_epoch import epoch_of_task
from pyspark_ckpt.operator.run.wake_rows import INITIAL_EPOCH
from pyspark_ckpt.operator.table.catalog import schema_text
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.settings import RUNTIME_KEY
from pyspark_ckpt.storage.base import WorkerStorage
from pyspark_ckpt.storage.open import Storage, open_storage


def checkpoint_to_notify(processor: Any, storage: WorkerStorage) -> int | None:
    """Return the id of the newest completed checkpoint, if the processor wants to know it.

    Called by a task at the start of an epoch; lists the checkpoints directory once, and only for a
    processor with ``notifyCheckpointComplete``.

    Parameters
    ----------
    processor
        The user's processor.
    storage
        The query's checkpoints directory.
    """
    if not hasattr(processor, "notifyCheckpointComplete"):
        return None
    numbers = (checkpoint_id_of(name) for name in storage.list())
    for number in sorted((n for n in numbers if n is not None), reverse=True):
        if _is_completed(storage, checkpoint_name(number)):
            return number
    return None


def _is_completed(storage: WorkerStorage, directory: str) -> bool:
    return storage.exists(f"{directory}/{METADATA_NAME}") and any(
        storage.exists(f"{directory}/{name}") for name in (AUTHOR_NAME, POINTED_NAME)
    )


_GIVE_BACK = "give the query its old {what} back, or start it at a new checkpointLocation"
_RESCALE = (
    "start it at a fresh checkpointLocation with restoreFrom(the newest chk-N or savepoint of "
    "this query), which moves the state to any parallelism"
)
_WAYS_OUT = {"subtask": _RESCALE, "parallelism": _RESCALE}


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Where and when a call of the function runs."""

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


class SubtaskFunction:
    """The function given to ``applyInPandasWithState``; called once per subtask and epoch.

    Parameters
    ----------
    function
        The operator.
    """

    def __init__(self, function: OperatorFunction) -> None:
        self._function = function
        self._descriptor = function.descriptor

    @marks_errors
    def __call__(
        self, token: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Process an epoch's rows and leave the handle of the new version in `state`.

        Everything that the new handle refers to is durable before `state` is updated.
        """
        # PySpark's worker appends an empty frame to every output frame; pandas warns each time.
        warnings.filterwarnings("ignore", "The behavior of DataFrame concat", FutureWarning)
        epoch = self._epoch(int(token[0]), state)
        old = self._checked(state, epoch) or self._initial_handle(epoch)
        limit_bytes = epoch.runtime.memory_limit_bytes
        began = time.monotonic()
        copies = copies_root(executor_local_root(epoch.subtask))
        with open_local_copy(
            epoch.local_directory, epoch.runtime.backend_type, epoch.storage, old, copies
        ) as copy:
            handle = old or self._descriptor.first_handle(
                epoch.query_id, epoch.subtask, epoch.number
            )
            handle = materializer(copy, epoch.storage, epoch.runtime.materialization).advance(
                handle, epoch.start
            )
            remove_unused(copies)
            opened = time.monotonic()
            writes = EpochWrites(limit_bytes // WRITES_SHARE, copy.scratch)
            table = StateTable(copy.backend, writes=writes)
            try:
                processing = self._function.processing(handle, table, epoch.clock, epoch.number)
                processing.completed_checkpoint_id = checkpoint_to_notify(
                    self._function.processor, epoch.storage
                )
                read = partial(
                    self._function.read_stream, frames, epoch.subtask, limit_bytes, copy.scratch
                )
                yield from processing.run(read, epoch.number)
                handle = end_epoch(
                    epoch.storage,
                    handle,
                    processing.states,
                    epoch.number,
                    epoch.runtime.inline_threshold_bytes,
                    EpochMetrics(
                        rows=processing.rows,
                        keys=processing.keys,
                        reads=table.reads,
                        cache_hits=table.cache_hits,
                        timers_fired=processing.timers_fired,
                        rebuilds=int(copy.is_rebuilt),
                        lost_attributes=processing.lost_attributes or msgspec.UNSET,
                        open_ms=round(1000 * (opened - began)),
                        process_ms=round(1000 * (time.monotonic() - opened)),
                    ),
                )
            finally:
                table.close()
        handle = following(handle, old)
        state.update((encode_handle(handle),))
        set_timeout(state, handle, epoch.clock.processing_time_ms)

    def _epoch(self, token: int, state: GroupState) -> _Epoch:
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task only
        uid = self._descriptor.uid
        runtime = decode_runtime(context.getLocalProperty(RUNTIME_KEY), uid)
        query_id = runtime.query_id
        subtask = subtask_tokens(self._descriptor.parallelism).index(token)
        clock = self._clock(state, runtime)
        where = f"operator {uid!r}, subtask {subtask}"
        number = epoch_of_task(context.getLocalProperty, runtime, clock.processing_time_ms, where)
        storage = _checkpoints_storage(runtime, where)
        if runtime.query_subdirectory:
            storage = storage.child(query_id)
        local = subtask_directory(executor_local_root(subtask), query_id, uid, subtask)
        return _Epoch(query_id, subtask, number, runtime, storage, local, clock, runtime.run)

    def _clock(self, state: GroupState, runtime: Runtime) -> EpochClock:
        has_watermark = self._function.columns.event_time_index is not None
        watermark_ms = state.getCurrentWatermarkMs() if has_watermark else None
        drained_at_ms = None
        if watermark_ms is not None and runtime.drained_from_ms is not None:
            watermark_ms, drained_at_ms = runtime.drained_from_ms, watermark_ms
        return EpochClock(
            self._descriptor.time_mode,
            processing_time_ms=state.getCurrentProcessingTimeMs(),
            watermark_ms=watermark_ms,
            drained_at_ms=drained_at_ms,
        )

    def _initial_handle(self, epoch: _Epoch) -> Handle | None:
        """Return the handle of the subtask's initial state, in the epoch that starts from it."""
        if self._function.initial is None or epoch.number != INITIAL_EPOCH:
            return None
        uid = self._descriptor.uid
        reference = epoch.runtime.initial_handles
        if reference is None:
            raise PlanError(
                f"operator {uid!r}, subtask {epoch.subtask}: its initial state was not made; start "
                "the query with pyspark_ckpt.write_stream(df)"
            )
        return read_initial_handle(epoch.storage, reference, uid, epoch.subtask)

    def _checked(self, state: GroupState, epoch: _Epoch) -> Handle | None:
        """Return the handle that Spark committed last, if it belongs to this operator."""
        if not state.exists:
            return None
        handle = decode_handle(bytes(state.get[0]))
        own = self._descriptor
        where = f"operator {own.uid!r}, subtask {epoch.subtask}"
        for what, stored, wanted in (
            ("query id", handle.query_id, epoch.query_id),
            ("uid", handle.uid, own.uid),
            ("subtask", handle.subtask, epoch.subtask),
            ("parallelism", handle.parallelism, own.parallelism),
            ("maxParallelism", handle.max_parallelism, own.max_parallelism),
            ("timeMode", handle.time_mode, own.time_mode),
            ("key schema", schema_text(handle.key_schema), schema_text(own.key_schema)),
        ):
            if stored != wanted:
                raise IncompatibleStateError(
                    f"{where}: the state was stored with {what} {stored!r}, the query has "
                    f"{wanted!r}; {_WAYS_OUT.get(what, _GIVE_BACK.format(what=what))}"
                )
        return handle


def set_timeout(state: GroupState, handle: Handle, processing_time_ms: int) -> None:
    """Have Spark call a subtask again when its earliest timer is due, also without rows."""
    if handle.timeout_ms is None:
        return
    if handle.time_mode == TimeMode.PROCESSING_TIME:
        state.setTimeoutDuration(max(handle.timeout_ms - processing_time_ms, 1))
    else:
        state.setTimeoutTimestamp(max(handle.timeout_ms, 1))


def _checkpoints_storage(runtime: Runtime, where: str) -> Storage:
    """Return the storage of all queries' checkpoints, which the driver has opened before.

    Raises
    ------
    ConfigurationError
        If this executor lacks the library of the storage.
    """
    try:
        return open_storage(runtime.checkpoints_directory)
    except ConfigurationError as exc:
        raise ConfigurationError(
            f"{where}: {exc}. Executors write state to {runtime.checkpoints_directory}, by default "
            "inside the checkpointLocation: install the library in their Python too, or set "
            "spark.ckpt.execution.checkpointing.dir to a directory that they reach"
        ) from exc
