"""One subtask: what one call of the Python function does, once per epoch.

``open the local copy -> process the epoch -> barrier -> new handle``
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from pyspark import TaskContext
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.configuration import RUNTIME_KEY
from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.on_disk.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.on_disk.storage import Storage, open_storage
from pyspark_ckpt.operator.barrier import make_base, make_segment, needs_base
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, Runtime, decode_runtime
from pyspark_ckpt.operator.epoch_clock import EpochClock, TimeMode
from pyspark_ckpt.operator.epoch_writes import EpochWrites
from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.input_mode import InputMode
from pyspark_ckpt.operator.input_parts import InputParts
from pyspark_ckpt.operator.key_groups import key_groups_of, subtask_tokens
from pyspark_ckpt.operator.local_copy import (
    executor_local_root,
    open_local_copy,
    subtask_directory,
)
from pyspark_ckpt.operator.processing import EpochProcessing
from pyspark_ckpt.operator.processor_handle import ProcessorHandle
from pyspark_ckpt.operator.state_catalog import schema_text
from pyspark_ckpt.operator.state_table import StateTable

StatefulFunction = Callable[
    [tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]
]

_INPUT_SHARE = 2
_WRITES_SHARE = 4
"""Parts of the memory limit: half for rows, a quarter for writes, the rest for what they become."""


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


class SubtaskFunction:
    """The function given to ``applyInPandasWithState``; called once per subtask and epoch.

    Parameters
    ----------
    processor
        The user's processor; Spark ships a fresh copy to every task.
    descriptor, input_columns, mode
        The operator as the query was built, and how its processor receives rows.
    schemas
        The DDL schemas that the processor's ``init`` uses, parsed.
    migrations
        What brings stored states to new schemas or names, by state.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        descriptor: OperatorDescriptor,
        input_columns: InputColumns,
        mode: InputMode,
        schemas: Mapping[str, T.StructType],
        migrations: Mapping[str, Migration],
    ) -> None:
        self._processor = processor
        self._descriptor = descriptor
        self._input = input_columns
        self._mode = mode
        self._schemas = schemas
        self._migrations = migrations

    def __call__(
        self, token: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Process an epoch's rows and leave the handle of the new version in `state`.

        Everything that the new handle refers to is durable before `state` is updated.
        """
        # PySpark's worker appends an empty frame to every output frame; pandas warns each time.
        warnings.filterwarnings("ignore", "The behavior of DataFrame concat", FutureWarning)
        epoch = self._epoch(int(token[0]), state)
        old = self._checked(state, epoch)
        with open_local_copy(
            epoch.local_directory, epoch.runtime.backend_type, epoch.storage, old
        ) as copy:
            handle = old or self._first_handle(epoch)
            if needs_base(handle):
                base = make_base(epoch.storage, copy.backend, handle, epoch.number)
                handle = msgspec.structs.replace(handle, base=base, segments=())
            writes = EpochWrites(epoch.runtime.memory_limit_bytes // _WRITES_SHARE, copy.scratch)
            table = StateTable(copy.backend, writes=writes)
            try:
                parts = self._parts(frames, epoch, copy.scratch)
                yield from self._process(parts, handle, table, epoch, state)
            finally:
                table.close()

    def _process(
        self,
        parts: Iterator[list[pd.DataFrame]],
        handle: Handle,
        table: StateTable,
        epoch: _Epoch,
        state: GroupState,
    ) -> Iterator[pd.DataFrame]:
        """Run the processor; at the end make the writes durable and leave the new handle."""
        where = f"operator {handle.uid!r}, subtask {epoch.subtask}"
        states = ProcessorHandle(
            table, epoch.clock, where, handle.states, self._schemas, self._migrations
        )
        processing = EpochProcessing(
            self._processor,
            table,
            states,
            epoch.clock,
            self._mode,
            self._input.decode_key,
            f"{where}, epoch {epoch.number}",
        )
        yield from processing.run(parts, epoch.number)
        swept = processing.sweep(handle.sweep_from)
        earliest_timer_ms = states.timers.earliest_ms()
        segment = make_segment(
            epoch.storage,
            handle,
            table.changes(),
            epoch.number,
            epoch.runtime.inline_threshold_bytes,
        )
        segments = handle.segments if segment is None else (*handle.segments, segment)
        handle = msgspec.structs.replace(
            handle,
            epoch=epoch.number,
            segments=segments,
            states=swept.states,
            sweep_from=swept.sweep_from,
        )
        state.update((encode_handle(handle),))
        _set_timeout(state, epoch.clock, earliest_timer_ms)

    def _parts(
        self, frames: Iterator[pd.DataFrame], epoch: _Epoch, scratch: Path
    ) -> Iterator[list[pd.DataFrame]]:
        operator = self._descriptor
        key_groups = key_groups_of(epoch.subtask, operator.parallelism, operator.max_parallelism)
        parts = InputParts(
            self._input.sent_schema,
            key_groups,
            epoch.runtime.memory_limit_bytes // _INPUT_SHARE,
            scratch,
        )
        return parts.split(frame for frame in frames if len(frame))

    def _epoch(self, token: int, state: GroupState) -> _Epoch:
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task only
        uid = self._descriptor.uid
        runtime = decode_runtime(context.getLocalProperty(RUNTIME_KEY), uid)
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        number = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        subtask = subtask_tokens(self._descriptor.parallelism).index(token)
        storage = open_storage(runtime.checkpoints_directory)
        if runtime.query_subdirectory:
            storage = Storage(storage.path(query_id))
        local = subtask_directory(executor_local_root(subtask), query_id, uid, subtask)
        return _Epoch(query_id, subtask, number, runtime, storage, local, self._clock(state))

    def _clock(self, state: GroupState) -> EpochClock:
        has_watermark = self._input.event_time_index is not None
        return EpochClock(
            TimeMode(self._descriptor.time_mode),
            processing_time_ms=state.getCurrentProcessingTimeMs(),
            watermark_ms=state.getCurrentWatermarkMs() if has_watermark else None,
        )

    def _checked(self, state: GroupState, epoch: _Epoch) -> Handle | None:
        """Return the handle that Spark committed last, if it belongs to this operator."""
        if not state.exists:
            return None
        handle = decode_handle(bytes(state.get[0]))
        ours = self._descriptor
        where = f"operator {ours.uid!r}, subtask {epoch.subtask}"
        for what, stored, wanted in (
            ("query id", handle.query_id, epoch.query_id),
            ("uid", handle.uid, ours.uid),
            ("subtask", handle.subtask, epoch.subtask),
            ("parallelism", handle.parallelism, ours.parallelism),
            ("maxParallelism", handle.max_parallelism, ours.max_parallelism),
            ("key schema", schema_text(handle.key_schema), schema_text(ours.key_schema)),
        ):
            if stored != wanted:
                raise IncompatibleStateError(
                    f"{where}: the state was stored with {what} {stored!r}, the query has "
                    f"{wanted!r}; give the query its old {what} back, or start it at a new "
                    "checkpointLocation"
                )
        return handle

    def _first_handle(self, epoch: _Epoch) -> Handle:
        return Handle(
            query_id=epoch.query_id,
            uid=self._descriptor.uid,
            subtask=epoch.subtask,
            parallelism=self._descriptor.parallelism,
            max_parallelism=self._descriptor.max_parallelism,
            epoch=epoch.number,
            key_schema=self._descriptor.key_schema,
        )


def _set_timeout(state: GroupState, clock: EpochClock, earliest_timer_ms: int | None) -> None:
    """Have Spark call the subtask again when its earliest timer is due, rows or not."""
    if earliest_timer_ms is None or clock.timers_now_ms is None:
        return
    # Spark calls when its clock has passed the timeout, a timer is due when it is reached. A timer
    # that was registered too late to fire now fires in the next epoch.
    timeout_ms = max(earliest_timer_ms - 1, clock.timers_now_ms)
    if clock.mode is TimeMode.PROCESSING_TIME:
        state.setTimeoutDuration(max(timeout_ms - clock.processing_time_ms, 1))
    else:
        state.setTimeoutTimestamp(timeout_ms)
