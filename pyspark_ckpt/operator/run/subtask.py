"""One epoch of one subtask in a query: the Python function that Spark calls.

``open the local copy -> process the rows -> barrier -> new handle``

That is all of an epoch; its observers (``run/epoch_observers``) watch it from outside.

The driver cannot reach the tasks of a running query. So a task looks for completed checkpoints
itself. A checkpoint is complete if its ``_metadata`` is there, and also the author's file or, if
another store keeps the checkpoint, the note that this store has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.errors import (
    ConfigurationError,
    IncompatibleStateError,
    PlanError,
)
from pyspark_ckpt.formats.handle import (
    Handle,
    decode_handle,
    encode_handle,
    following,
    not_woken,
    read_initial_handle,
)
from pyspark_ckpt.formats.layout import (
    AUTHOR_NAME,
    METADATA_NAME,
    POINTED_NAME,
    checkpoint_id_of,
    checkpoint_name,
)
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.log_fields import log_fields
from pyspark_ckpt.operator.descriptor import Runtime, decode_runtime
from pyspark_ckpt.operator.durable.local_copy import (
    copies_root,
    executor_local_root,
    open_local_copy,
    remove_unused,
    subtask_directory,
)
from pyspark_ckpt.operator.durable.materialization import materializer
from pyspark_ckpt.operator.handover.packing import batches_of, frames_of
from pyspark_ckpt.operator.handover.worker import replies, take_over
from pyspark_ckpt.operator.quarantine.releases import ReleasesOfEpoch
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.keys import subtask_tokens
from pyspark_ckpt.operator.rows.packed import RowPacking
from pyspark_ckpt.operator.rows.sent_rows import drained
from pyspark_ckpt.operator.run.barrier import end_epoch
from pyspark_ckpt.operator.run.epoch_observers import EpochObservers, recording_of
from pyspark_ckpt.operator.run.function import OperatorFunction
from pyspark_ckpt.operator.run.garbage import leaves_no_garbage
from pyspark_ckpt.operator.run.task_epoch import OpenEpoch, TaskEpoch, epoch_of_task
from pyspark_ckpt.operator.run.wake_rows import INITIAL_EPOCH
from pyspark_ckpt.operator.table.catalog import fixed_parts
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.settings import HAND_OVER, RUNTIME_KEY, WATERMARK_PER_OPERATOR, HandOver
from pyspark_ckpt.storage.base import WorkerStorage
from pyspark_ckpt.storage.open import Storage, open_storage


def checkpoint_to_notify(processor: Any, storage: WorkerStorage) -> int | None:
    """Return the id of the newest completed checkpoint, if the processor wants to know it.

    Called by a task at the start of an epoch; lists the checkpoints directory once, and only for a
    processor with ``notifyCheckpointComplete``.
    """
    if not hasattr(processor, "notifyCheckpointComplete"):
        return None
    numbers = (checkpoint_id_of(name) for name in storage.list())
    for number in sorted((n for n in numbers if n is not None), reverse=True):
        directory = checkpoint_name(number)
        if storage.exists(f"{directory}/{METADATA_NAME}") and any(
            storage.exists(f"{directory}/{name}") for name in (AUTHOR_NAME, POINTED_NAME)
        ):
            return number
    return None


_GIVE_BACK = "give the query its old {what} back, or start it at a new checkpointLocation"
_RESCALE = (
    "start it at a fresh checkpointLocation with restoreFrom(the newest chk-N or savepoint of "
    "this query), which moves the state to any parallelism"
)
_WAYS_OUT = {"subtask": _RESCALE, "parallelism": _RESCALE}


LateWatermark = Callable[[Runtime, int, int], int]
"""From an epoch and the operator's watermark in it to the watermark that tells its late rows."""


class SubtaskFunction:
    """The function given to ``applyInPandasWithState``; called once per subtask and epoch.

    `late_watermark_ms` is given if late rows reach the operator.

    In a task Spark's worker hands its rows over as Arrow; or, where the driver has decided so, as
    packed rows in frames.
    """

    def __init__(
        self,
        function: OperatorFunction,
        output_schema: pa.Schema,
        packing: tuple[RowPacking, RowPacking] | None,
        late_watermark_ms: LateWatermark | None = None,
    ) -> None:
        self._late_watermark_ms = late_watermark_ms
        self._function = function
        self._descriptor = function.descriptor
        self._output_schema = output_schema
        self._packing = packing
        self._refusal: str | None = None

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        if self._packing is None and TaskContext.get() is not None:
            self._refusal = take_over(
                lambda batches: replies(batches, self._group, self._output_schema)
            )

    @marks_errors
    def __call__(
        self, token: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Process an epoch's rows, which PySpark hands over in frames, as :meth:`process`."""
        if self._packing is None:
            raise PlanError(
                f"operator {self._descriptor.uid!r}: this executor cannot hand rows over in Arrow: "
                f"{self._refusal}. Set {HAND_OVER} to {HandOver.PACKED} in the session, build the "
                "query again and start it at the same checkpointLocation"
            )
        # PySpark's worker appends an empty frame to every output frame; pandas warns each time.
        warnings.filterwarnings("ignore", "The behavior of DataFrame concat", FutureWarning)
        rows, output = self._packing
        yield from frames_of(self.process(int(token[0]), batches_of(frames, rows), state), output)

    @marks_errors
    def _group(
        self, batches: Iterator[pa.RecordBatch], state: GroupState
    ) -> Iterator[pa.RecordBatch]:
        """Process an epoch's rows, which the worker hands over in Arrow."""
        first = next(batches)  # if the state has timed out, it has the token and no row
        token = first.column(TOKEN)[0].as_py()
        rows = iter(()) if state.hasTimedOut else drained([first], batches)
        del first  # it may be spilled before the others come
        yield from self.process(token, rows, state)

    @leaves_no_garbage
    def process(
        self, token: int, batches: Iterator[pa.RecordBatch], state: GroupState
    ) -> Iterator[pa.RecordBatch]:
        """Process an epoch's rows and leave the handle of the new version in `state`.

        Everything that the new handle refers to is durable before `state` is updated.
        """
        epoch = self._epoch(token, state)
        uid = self._descriptor.uid
        with log_fields(
            query=epoch.query_id, epoch=epoch.number, operator=uid, subtask=epoch.subtask
        ):
            yield from self._process(epoch, batches, state)

    def _process(
        self, epoch: TaskEpoch, batches: Iterator[pa.RecordBatch], state: GroupState
    ) -> Iterator[pa.RecordBatch]:
        """Open the state, process the rows, and end the epoch with a barrier."""
        before = self._checked(state, epoch) or self._initial_handle(epoch)
        observers = EpochObservers(epoch, is_packed=self._packing is not None)
        with self._open(epoch, before) as opened:
            yield from observers.watched(opened, self._run(epoch, opened, batches))
            handle = end_epoch(
                epoch.storage,
                opened.handle,
                opened.processing.states,
                epoch.number,
                epoch.runtime.inline_threshold_bytes,
                observers.metrics,
            )
        handle = following(observers.noted(handle), before)
        state.update((encode_handle(handle),))
        set_timeout(state, handle, epoch.clock.processing_time_ms)

    @contextmanager
    def _open(self, epoch: TaskEpoch, before: Handle | None) -> Iterator[OpenEpoch]:
        """Open the state that the last epoch has left, for the length of this one."""
        function, runtime = self._function, epoch.runtime
        copies = copies_root(executor_local_root(epoch.subtask))
        with open_local_copy(
            epoch.local_directory, runtime.backend_type, epoch.storage, before, copies
        ) as copy:
            handle = before or self._descriptor.first_handle(
                epoch.query_id, epoch.subtask, epoch.number
            )
            handle = materializer(copy, epoch.storage, runtime.materialization).advance(
                handle, epoch.start
            )
            remove_unused(copies)
            releases = ReleasesOfEpoch(runtime, handle.uid, epoch.number)
            recording = recording_of(function, epoch, handle, releases)
            writes = function.writes(runtime.memory_limit_bytes, copy.scratch)
            with closing(recording.table(copy.backend, writes)) as table:
                processing = function.processing(
                    handle, table, epoch.clock, epoch.number, releases, runtime.quarantine
                )
                yield OpenEpoch(handle, copy, table, processing, recording)

    def _run(
        self, epoch: TaskEpoch, opened: OpenEpoch, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Have the processor handle the rows and the due timers; yield its output."""
        function, processing = self._function, opened.processing
        processing.completed_checkpoint_id = checkpoint_to_notify(function.processor, epoch.storage)
        read = partial(
            function.read_stream,
            batches,
            epoch.subtask,
            epoch.runtime.memory_limit_bytes,
            opened.copy.scratch,
            opened.recording.seen,
        )
        yield from processing.run(read, epoch.number)

    def _epoch(self, token: int, state: GroupState) -> TaskEpoch:
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task only
        uid = self._descriptor.uid
        runtime = decode_runtime(context.getLocalProperty(RUNTIME_KEY), uid)
        query_id = runtime.query_id
        subtask = subtask_tokens(self._descriptor.parallelism).index(token)
        clock = self._clock(state, runtime)
        where = f"operator {uid!r}, subtask {subtask}"
        number = epoch_of_task(context.getLocalProperty, runtime, clock.processing_time_ms, where)
        if self._late_watermark_ms is not None:
            late_ms = state.getCurrentWatermarkMs()
            per_operator = context.getLocalProperty(WATERMARK_PER_OPERATOR) or "true"
            if per_operator.strip().lower() != "false":
                late_ms = self._late_watermark_ms(runtime, number, late_ms)
            clock = replace(clock, late_ms=late_ms)
        storage = _checkpoints_storage(runtime, where)
        if runtime.query_subdirectory:
            storage = storage.child(query_id)
        local = subtask_directory(executor_local_root(subtask), query_id, uid, subtask)
        return TaskEpoch(query_id, subtask, number, runtime, storage, local, clock, runtime.run)

    def _clock(self, state: GroupState, runtime: Runtime) -> EpochClock:
        has_watermark = self._function.columns.event_time_index is not None
        watermark_ms = state.getCurrentWatermarkMs() if has_watermark else None
        drained_at_ms = None
        if watermark_ms is not None and runtime.drain is not None:  # and this is its epoch
            watermark_ms, drained_at_ms = runtime.drain.watermark_ms, watermark_ms
        return EpochClock(
            self._descriptor.time_mode,
            processing_time_ms=state.getCurrentProcessingTimeMs(),
            watermark_ms=watermark_ms,
            drained_at_ms=drained_at_ms,
        )

    def _initial_handle(self, epoch: TaskEpoch) -> Handle | None:
        """Return the handle of the subtask's initial state, in the epoch that starts from it."""
        if self._function.initial is None:
            return None
        uid = self._descriptor.uid
        reference = epoch.runtime.initial_handles
        if epoch.number != INITIAL_EPOCH:
            if reference is not None:  # this run began with it, but not in this subtask
                raise PlanError(not_woken(uid, [epoch.subtask]))
            return None
        if reference is None:
            raise PlanError(
                f"operator {uid!r}, subtask {epoch.subtask}: its initial state was not made; start "
                "the query with pyspark_ckpt.write_stream(df)"
            )
        return read_initial_handle(epoch.storage, reference, uid, epoch.subtask)

    def _checked(self, state: GroupState, epoch: TaskEpoch) -> Handle | None:
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
            *fixed_parts(handle, own),
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
    """Return the storage of all queries' checkpoints, which the driver has opened before."""
    try:
        return open_storage(runtime.checkpoints_directory)
    except ConfigurationError as exc:
        raise ConfigurationError(
            f"{where}: {exc}. Executors write state to {runtime.checkpoints_directory}, by default "
            "inside the checkpointLocation: install the library in their Python too, or set "
            "spark.ckpt.execution.checkpointing.dir to a directory that they reach"
        ) from exc
