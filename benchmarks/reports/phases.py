"""The phases of an epoch inside an operator's function: which calls belong to which phase.

Names are looked up when a profile starts. A name that the library no longer has is an error,
because a phase must not become small silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import mock

from pyspark import TaskContext

from benchmarks.reports.phase_timer import PhaseTimer
from pyspark_ckpt.operator.run.subtask import SubtaskFunction

WAIT = "wait for Spark's rows"
USER = "user code"
OTHER = "the rest of the function"

_OPERATOR = "pyspark_ckpt.operator"
PHASES: dict[str, tuple[str, ...]] = {
    "open and close the local copy": (f"{_OPERATOR}.run.subtask:open_local_copy",),
    "read and apply the last segment": (
        "state_backends.rocksdb:RocksDBBackend.apply",
        "state_backends.heap:HeapBackend.apply",
    ),
    "flush": (
        "state_backends.rocksdb:RocksDBBackend._flush",
        "state_backends.rocksdb:RocksDBBackend.close",
        "state_backends.heap:HeapBackend.close",
    ),
    "base snapshot": (f"{_OPERATOR}.durable.materialization:Materializer.advance",),
    "grouping": (
        f"{_OPERATOR}.modes.calls:KeyCalls.part",
        f"{_OPERATOR}.modes.calls:KeyedPart.rows",
        f"{_OPERATOR}.modes.calls:CallsForAllKeys.part",
    ),
    "state read": tuple(
        f"{_OPERATOR}.table.table:StateTable.{name}"
        for name in ("get", "get_many", "get_prefetched", "scan", "has_any_below", "first_below")
    ),
    "decode": (
        "pyspark_ckpt.values.codec:TupleCodec.decode",
        *(
            f"pyspark_ckpt.values.state_columns:ValueColumns.{name}"
            for name in ("frame", "table", "stored_frame", "stored_table")
        ),
    ),
    "encode": (
        "pyspark_ckpt.values.codec:TupleCodec.encode",
        "pyspark_ckpt.values.state_columns:ValueColumns.rows",
        "pyspark_ckpt.values.state_columns:ValueColumns.encoded",
    ),
    "write": tuple(
        f"{_OPERATOR}.table.table:StateTable.{name}"
        for name in ("put", "put_many", "delete", "delete_many", "write_below")
    ),
    "expired entries and timers": (f"{_OPERATOR}.run.barrier:sweep",),
    "segment": (f"{_OPERATOR}.run.barrier:make_segment",),
    "output": (
        f"{_OPERATOR}.modes.output:OutputBuffer.extend",
        f"{_OPERATOR}.modes.output:RowsOutput.take",
        f"{_OPERATOR}.modes.output:PiecesOutput.take",
    ),
}
_USER_METHODS = (
    "handleInputRows", "handleInputBatch", "handleInputArrow", "handleExpiredTimer",
    "handleExpiredTimers", "init", "close",
)  # fmt: skip


class MeasuredSubtask(SubtaskFunction):
    """The operator's function; it writes the seconds of its phases for every call.

    Parameters
    ----------
    directory
        Where they are written.
    arguments
        Those of the operator's function.
    """

    def __init__(self, directory: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._directory = directory

    def process(self, token: int, batches: Any, state: Any) -> Iterator[Any]:
        """Process an epoch under the stopwatch."""
        timer = PhaseTimer()
        with ExitStack() as patches:
            patch_phases(patches, timer)
            processor = type(self._function.processor)
            for name in _USER_METHODS:
                if hasattr(processor, name):
                    timed = timer.timed(getattr(processor, name), USER)
                    patches.enter_context(mock.patch.object(processor, name, timed))
            waited = timer.steps(iter(batches), WAIT)
            # Between the steps Spark's code takes the batches.
            yield from timer.steps(SubtaskFunction.process(self, token, waited, state), OTHER)
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task only
        epoch = context.getLocalProperty("streaming.sql.batchId")
        path = self._directory / f"{epoch}-{context.partitionId()}.json"
        path.write_text(json.dumps(timer.seconds), encoding="utf-8")


def patch_phases(patches: ExitStack, timer: PhaseTimer) -> None:
    """Put a stopwatch around every call that is a phase, until `patches` is closed."""
    for phase, names in PHASES.items():
        for name in names:
            module, _, attribute = name.partition(":")
            owner_name, _, function_name = attribute.rpartition(".")
            owner = resolve_name(f"{module}:{owner_name}" if owner_name else module)
            timed = timer.timed(getattr(owner, function_name), phase)
            patches.enter_context(mock.patch.object(owner, function_name, timed))
