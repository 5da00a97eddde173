"""One subtask: what one call of the Python function does, once per epoch.

``rows by key -> open the local copy -> process each key -> barrier -> new handle``
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
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.configuration import RUNTIME_KEY
from pyspark_ckpt.errors import CkptError, IncompatibleStateError, ProcessorError
from pyspark_ckpt.on_disk.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.on_disk.storage import Storage, open_storage
from pyspark_ckpt.operator.barrier import make_base, make_segment, needs_base
from pyspark_ckpt.operator.codec import key_encoder
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, Runtime, decode_runtime
from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.key_groups import subtask_tokens
from pyspark_ckpt.operator.local_copy import (
    executor_local_root,
    open_local_copy,
    subtask_directory,
)
from pyspark_ckpt.operator.output_rows import CHUNK_ROWS, OutputRows
from pyspark_ckpt.operator.processor_handle import ProcessorHandle, schema_text
from pyspark_ckpt.operator.state_table import StateTable, encode_key_group
from state_backends import StateBackendError

StatefulFunction = Callable[
    [tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]
]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Where and when a call of the function runs."""

    query_id: str
    subtask: int
    number: int
    runtime: Runtime
    storage: Storage
    local_directory: Path


@dataclass(frozen=True, slots=True)
class _KeyRows:
    """The rows of one key in one epoch."""

    key_group: bytes
    encoded_key: bytes
    key: tuple[Any, ...]
    rows: list[Any]


class SubtaskFunction:
    """The function given to ``applyInPandasWithState``; called once per subtask and epoch.

    Parameters
    ----------
    processor
        The user's processor; Spark ships a fresh copy to every task.
    descriptor, input_columns, output_rows
        The operator as the query was built.
    schemas
        The DDL schemas that the processor's ``init`` uses, parsed.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        descriptor: OperatorDescriptor,
        input_columns: InputColumns,
        output_rows: OutputRows,
        schemas: Mapping[str, T.StructType],
    ) -> None:
        self._processor = processor
        self._descriptor = descriptor
        self._input = input_columns
        self._output = output_rows
        self._schemas = schemas

    def __call__(
        self, token: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Process an epoch's rows and leave the handle of the new version in `state`.

        Everything that the new handle refers to is durable before `state` is updated.
        """
        # PySpark's worker appends an empty frame to every output frame; pandas warns each time.
        warnings.filterwarnings("ignore", "The behavior of DataFrame concat", FutureWarning)
        epoch = self._epoch(int(token[0]))
        old = self._checked(state, epoch)
        key_rows = self._rows_by_key(frames)
        with open_local_copy(
            epoch.local_directory, epoch.runtime.backend_type, epoch.storage, old
        ) as backend:
            handle = old or self._first_handle(epoch)
            if needs_base(handle):
                base = make_base(epoch.storage, backend, handle, epoch.number)
                handle = msgspec.structs.replace(handle, base=base, segments=())
            table = StateTable(backend, [(item.key_group, item.encoded_key) for item in key_rows])
            where = f"operator {handle.uid!r}, subtask {epoch.subtask}"
            states = ProcessorHandle(table, where, handle.states, self._schemas)
            yield from self._process(key_rows, table, states, epoch)
            changes = table.changes()
        if len(changes):
            segment = make_segment(
                epoch.storage, handle, changes, epoch.number, epoch.runtime.inline_threshold_bytes
            )
            handle = msgspec.structs.replace(handle, segments=(*handle.segments, segment))
        handle = msgspec.structs.replace(handle, epoch=epoch.number, states=states.descriptors)
        state.update((encode_handle(handle),))

    def _epoch(self, token: int) -> _Epoch:
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
        return _Epoch(query_id, subtask, number, runtime, storage, local)

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

    def _rows_by_key(self, frames: Iterator[pd.DataFrame]) -> list[_KeyRows]:
        """Return the epoch's rows by key, in the order of the stored keys."""
        encode = key_encoder()
        items = []
        for sent_key, (key_group, rows) in self._input.group_by_key(frames).items():
            sent = self._input.key_tuple(sent_key)
            items.append(
                _KeyRows(
                    encode_key_group(key_group), encode(sent), self._input.user_key(sent), rows
                )
            )
        items.sort(key=lambda item: (item.key_group, item.encoded_key))
        return items

    def _process(
        self, key_rows: list[_KeyRows], table: StateTable, states: ProcessorHandle, epoch: _Epoch
    ) -> Iterator[pd.DataFrame]:
        """Run the processor over every key; yield its output in frames."""
        output: list[Any] = []
        key: tuple[Any, ...] | None = None
        timer_values = TimerValues(-1, -1)
        current = table.current
        try:
            self._processor.init(states)  # type: ignore[arg-type]  # same methods, not a subclass
            for position, item in enumerate(key_rows):
                key = item.key
                current.key_group, current.key = item.key_group, item.encoded_key
                current.position = position
                rows = self._processor.handleInputRows(key, iter(item.rows), timer_values)
                output.extend(rows or ())
                if len(output) >= CHUNK_ROWS:
                    yield self._output.frame(output)
                    output = []
            if output:
                yield self._output.frame(output)
            self._processor.close()
        except (CkptError, StateBackendError):
            raise
        except Exception as exc:
            step = "init" if key is None else f"key {key!r}"
            raise ProcessorError(
                f"operator {self._descriptor.uid!r}, subtask {epoch.subtask}, epoch "
                f"{epoch.number}, {step}: {type(self._processor).__name__} raised "
                f"{type(exc).__name__}: {exc}; mend the processor and start the query again, "
                "nothing of this epoch was committed"
            ) from exc
