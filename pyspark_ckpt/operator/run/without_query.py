"""An operator outside of a query's epochs: over a batch DataFrame, and for its initial state.

Over a batch DataFrame it is one epoch that starts from nothing and keeps nothing. The initial state
of a query is made before the first epoch, and its handles are durable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import pandas as pd

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.handle import EMPTY_VERSION, Handle, encode_handle
from pyspark_ckpt.operator.descriptor import Runtime
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.key_groups import subtask_tokens
from pyspark_ckpt.operator.run.barrier import end_epoch
from pyspark_ckpt.operator.run.function import WRITES_SHARE, OperatorFunction
from pyspark_ckpt.operator.run.wake_rows import INITIAL_EPOCH
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import NO_TIME_MS, EpochClock
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import Storage, open_storage
from state_backends import open_temporary

_EPOCH = 0
_NO_QUERY = ""


class BatchFunction:
    """The function given to ``mapInPandas``; called once per subtask.

    Parameters
    ----------
    function
        The operator.
    """

    def __init__(self, function: OperatorFunction) -> None:
        self._function = function

    @marks_errors
    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Run the processor over all rows of the subtask; nothing is durable."""
        frames = (frame for frame in frames if len(frame))
        first = next(frames, None)
        if first is None:
            return
        token = int(first[TOKEN].iloc[0])
        subtask = subtask_tokens(self._function.descriptor.parallelism).index(token)
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-") as directory:
            yield from self._run(chain([first], frames), subtask, Path(directory))

    def _run(
        self, frames: Iterator[pd.DataFrame], subtask: int, directory: Path
    ) -> Iterator[pd.DataFrame]:
        function = self._function
        limit_bytes = Settings().memory_limit_bytes
        with open_temporary(directory / "state") as backend:
            backend.load((), EMPTY_VERSION)
            table = StateTable(backend, writes=EpochWrites(limit_bytes // WRITES_SHARE, directory))
            try:
                handle = function.descriptor.first_handle(_NO_QUERY, subtask, _EPOCH)
                processing = function.processing(handle, table, self._clock(), _EPOCH)
                yield from processing.run(
                    partial(function.read_batch, frames, subtask, limit_bytes, directory), _EPOCH
                )
            finally:
                table.close()

    def _clock(self) -> EpochClock:
        return EpochClock(self._function.descriptor.time_mode, now_ms(), NO_TIME_MS)


HANDLES_SCHEMA = "subtask int, handle binary"
_NOTHING_INLINE = 0
"""Every subtask reads the handles of all subtasks: they must be small."""


class InitialStateFunction:
    """The function given to ``mapInPandas`` over the rows of an initial state.

    Parameters
    ----------
    function
        The operator.
    runtime
        The settings of the query that is about to start.
    now_ms
        The processing time that the processor sees.
    """

    def __init__(self, function: OperatorFunction, runtime: Runtime, now_ms: int) -> None:
        self._function = function
        self._runtime = runtime
        self._now_ms = now_ms

    @marks_errors
    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Make a subtask's state and yield its handle, whose files are durable."""
        frames = (frame for frame in frames if len(frame))
        first = next(frames, None)
        if first is None:
            return
        token = int(first[TOKEN].iloc[0])
        subtask = subtask_tokens(self._function.descriptor.parallelism).index(token)
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-") as directory:
            handle = self._handle(chain([first], frames), subtask, Path(directory))
        yield pd.DataFrame({"subtask": [subtask], "handle": [encode_handle(handle)]})

    def _handle(self, frames: Iterator[pd.DataFrame], subtask: int, directory: Path) -> Handle:
        function, limit_bytes = self._function, self._runtime.memory_limit_bytes
        handle = function.descriptor.first_handle(self._runtime.query_id, subtask, INITIAL_EPOCH)
        with open_temporary(directory / "state") as backend:
            backend.load((), EMPTY_VERSION)
            table = StateTable(backend, writes=EpochWrites(limit_bytes // WRITES_SHARE, directory))
            try:
                processing = function.processing(handle, table, self._clock(), INITIAL_EPOCH)
                processing.run_initial_state(
                    function.initial_parts(frames, subtask, limit_bytes, directory)
                )
                return end_epoch(
                    self._storage(),
                    handle,
                    processing.states,
                    INITIAL_EPOCH,
                    _NOTHING_INLINE,
                )
            finally:
                table.close()

    def _clock(self) -> EpochClock:
        has_watermark = self._function.columns.event_time_index is not None
        return EpochClock(
            self._function.descriptor.time_mode,
            self._now_ms,
            0 if has_watermark else None,
        )

    def _storage(self) -> Storage:
        storage = open_storage(self._runtime.checkpoints_directory)
        if self._runtime.query_subdirectory:
            return storage.child(self._runtime.query_id)
        return storage
