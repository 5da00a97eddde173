"""An operator outside of a query's epochs: over a batch DataFrame, and for its initial state.

Over a batch DataFrame it is one epoch that starts from nothing and keeps nothing. The initial state
of a query is made before the first epoch, and its handles are durable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.handle import EMPTY_VERSION, Handle, encode_handle
from pyspark_ckpt.operator.descriptor import Runtime
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.keys import subtask_tokens
from pyspark_ckpt.operator.run.barrier import end_epoch
from pyspark_ckpt.operator.run.function import WRITES_SHARE, OperatorFunction
from pyspark_ckpt.operator.run.wake_rows import INITIAL_EPOCH
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import NO_TIME_MS, EpochClock
from pyspark_ckpt.storage.open import open_storage
from state_backends import open_temporary

_EPOCH = 0
_NO_QUERY = ""


class BatchFunction:
    """The function given to ``mapInArrow``; called once per subtask."""

    def __init__(self, function: OperatorFunction, memory_limit_bytes: int) -> None:
        self._function = function
        self._memory_limit_bytes = memory_limit_bytes

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the processor over all rows of the subtask; nothing is durable."""
        found = _rows_of_subtask(batches, self._function.descriptor.parallelism)
        if found is None:
            return
        subtask, rows = found
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-") as directory:
            yield from self._run(rows, subtask, Path(directory))

    def _run(
        self, batches: Iterator[pa.RecordBatch], subtask: int, directory: Path
    ) -> Iterator[pa.RecordBatch]:
        function, limit_bytes = self._function, self._memory_limit_bytes
        handle = function.descriptor.first_handle(_NO_QUERY, subtask, _EPOCH)
        with _temporary_table(directory, limit_bytes) as table:
            clock = EpochClock(function.descriptor.time_mode, now_ms(), NO_TIME_MS)
            processing = function.processing(handle, table, clock, _EPOCH)
            yield from processing.run(
                partial(function.read_batch, batches, subtask, limit_bytes, directory), _EPOCH
            )


HANDLES_SCHEMA = "subtask int, handle binary"
_NOTHING_INLINE = 0
"""Every subtask reads the handles of all subtasks: they must be small."""


class InitialStateFunction:
    """The function given to ``mapInArrow`` over the rows of an initial state."""

    def __init__(self, function: OperatorFunction, runtime: Runtime, now_ms: int) -> None:
        self._function = function
        self._runtime = runtime
        self._now_ms = now_ms

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Make a subtask's state and yield its handle, whose files are durable."""
        found = _rows_of_subtask(batches, self._function.descriptor.parallelism)
        if found is None:
            return
        subtask, rows = found
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-") as directory:
            handle = self._handle(rows, subtask, Path(directory))
        yield pa.RecordBatch.from_pydict(
            {
                "subtask": pa.array([subtask], pa.int32()),
                "handle": pa.array([encode_handle(handle)], pa.binary()),
            }
        )

    def _handle(self, batches: Iterator[pa.RecordBatch], subtask: int, directory: Path) -> Handle:
        function, limit_bytes = self._function, self._runtime.memory_limit_bytes
        handle = function.descriptor.first_handle(self._runtime.query_id, subtask, INITIAL_EPOCH)
        with _temporary_table(directory, limit_bytes) as table:
            watermark_ms = None if function.columns.event_time_index is None else 0
            clock = EpochClock(function.descriptor.time_mode, self._now_ms, watermark_ms)
            processing = function.processing(handle, table, clock, INITIAL_EPOCH)
            processing.run_initial_state(
                function.initial_parts(batches, subtask, limit_bytes, directory)
            )
            storage = open_storage(self._runtime.checkpoints_directory)
            if self._runtime.query_subdirectory:
                storage = storage.child(self._runtime.query_id)
            return end_epoch(storage, handle, processing.states, INITIAL_EPOCH, _NOTHING_INLINE)


def _rows_of_subtask(
    batches: Iterator[pa.RecordBatch], parallelism: int
) -> tuple[int, Iterator[pa.RecordBatch]] | None:
    """Return the subtask that gets the rows, and the rows; ``None`` if there are no rows."""
    with_rows = (batch for batch in batches if len(batch))
    first = next(with_rows, None)
    if first is None:
        return None
    token = first.column(TOKEN)[0].as_py()
    return subtask_tokens(parallelism).index(token), chain([first], with_rows)


@contextmanager
def _temporary_table(directory: Path, memory_limit_bytes: int) -> Iterator[StateTable]:
    """Open an empty table that ends with the block."""
    with open_temporary(directory / "state") as backend:
        backend.load((), EMPTY_VERSION)
        writes = EpochWrites(memory_limit_bytes // WRITES_SHARE, directory)
        table = StateTable(backend, writes=writes)
        try:
            yield table
        finally:
            table.close()
