"""Epochs of one subtask in any mode, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.modes.mode import Mode
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sides import BroadcastRows, EpochInput
from pyspark_ckpt.operator.run.processing import EpochProcessing
from tests.processor_of_each_mode import NUMBER
from tests.unit.operator.rows.sent import sent_batch
from tests.unit.operator.run.logged_processor import COLUMNS, OUTPUT, Input, frame_of
from tests.unit.operator.subtask_epochs import SubtaskEpochs

OFFSETS = InputColumns(NUMBER, [])


class Subtask:
    """Runs epochs of one subtask in one mode."""

    def __init__(
        self,
        epochs: SubtaskEpochs,
        mode: Mode,
        columns: InputColumns = COLUMNS,
        output: T.StructType = OUTPUT,
    ) -> None:
        self.epochs, self.mode, self.columns = epochs, mode, columns
        self.calls = mode.of_operator(columns, OutputRows(output, "u"))

    def run(
        self,
        processor: Any,
        *parts: Input,
        initial: Input | None = None,
        offset: int | None = None,
        now_ms: int = 0,
    ) -> list[tuple[Any, ...]]:
        """Run an epoch; return what it emitted, in order of the values."""
        offsets = None
        if offset is not None:
            broadcast = BroadcastRows(self.calls.shown_columns(OFFSETS), self.calls.form)
            offsets = broadcast.received([sent_batch(NUMBER, [(offset,)])])
        given = EpochInput(
            [[frame_of(rows[::2]), frame_of(rows[1::2])] for rows in parts],
            broadcast=offsets,
            initial=None if initial is None else [frame_of(initial)],
        )
        rows = [
            tuple(row.values())
            for batch in self.batches(processor, given, now_ms=now_ms)
            for row in batch.to_pylist()
        ]
        return sorted(rows, key=repr)

    def batches(
        self, processor: Any, given: EpochInput, *, now_ms: int = 0
    ) -> list[pa.RecordBatch]:
        """Run an epoch; return its output as it leaves the subtask."""
        epochs = self.epochs
        epochs.set_time(now_ms)
        handle = epochs.begin()
        epochs.leave_key()
        run = EpochProcessing(
            processor, epochs.table, handle, epochs.clock, self.calls, self.columns.decode_key,
            "operator 'u'", initial_mode=self.calls.of_initial_state(self.columns),
        )  # fmt: skip
        try:
            batches = list(run.run(lambda: given, epochs.number))
        except BaseException:
            epochs.drop()
            raise
        epochs.end()
        return batches
