"""The epochs of a harness: rows go in through the library's input modes, output comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.operator.modes.arrow import ArrowProcessor
from pyspark_ckpt.operator.modes.batches import BatchInput
from pyspark_ckpt.operator.modes.pandas import PandasInput
from pyspark_ckpt.operator.modes.rows import RowsInput
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.testing.crash_step import CrashStep
from pyspark_ckpt.testing.given_input import (
    GivenColumns,
    GivenInput,
    frame_of_frames,
    frame_of_rows,
    frame_with_key_columns,
)
from pyspark_ckpt.testing.given_keys import GivenKey, GivenKeys
from pyspark_ckpt.testing.harness_clock import HarnessClock
from pyspark_ckpt.testing.harness_subtask import HarnessSubtask
from pyspark_ckpt.testing.kept_output import KeptOutput

Mode = type[RowsInput] | type[PandasInput] | type[BatchInput]


class HarnessEpochs:
    """Runs one epoch per call."""

    def __init__(
        self,
        subtask: HarnessSubtask,
        keys: GivenKeys,
        clock: HarnessClock,
        mode: Mode,
        schema: T.StructType | None,
    ) -> None:
        self._subtask = subtask
        self._keys = keys
        self._clock = clock
        self._mode = mode
        self._schema = schema

    def over_keys(self, input: Sequence[tuple[Any, Any]]) -> Any:
        """Process the rows or the frame of each key."""
        where = self._subtask.where
        if self._mode is BatchInput:
            raise PlanError(f"{where}: a BatchProcessor is tested by testInBatches: call that")
        in_frames = {isinstance(rows, pd.DataFrame) for _, rows in input}
        if len(in_frames) > 1:
            raise PlanError(
                f"{where}: some keys have lists of rows and others have frames: give all keys "
                "lists of rows, or all frames"
            )
        if in_frames:
            self._mode = PandasInput if in_frames == {True} else RowsInput
        given = [(self._keys.given(key), rows) for key, rows in input]
        in_time = [(key, self._clock.in_time(rows)) for key, rows in given if len(rows)]
        with_rows = [(key, rows) for key, rows in in_time if len(rows)]
        without_rows = [(key, rows) for key, rows in given if not len(rows)]
        frame = frame_of_frames if self._mode is PandasInput else frame_of_rows
        return self._epoch([frame(with_rows)] if with_rows else [], without_rows=without_rows)

    def over_batch(self, input: pd.DataFrame, key_names: Sequence[str]) -> Any:
        """Process rows of any keys; the keys are columns."""
        where = self._subtask.where
        if self._mode is not BatchInput:
            raise PlanError(
                f"{where}: testInBatches needs a BatchProcessor: call test or testInPandas"
            )
        if not key_names or not set(key_names) <= set(input.columns):
            raise PlanError(
                f"{where}: testInBatches got the key columns {list(key_names)}: name some of "
                f"{list(input.columns)}"
            )
        rows = self._clock.in_time(input)
        if not len(rows):
            return self.without_rows()
        self._keys.columns = len(key_names)
        return self._epoch([frame_with_key_columns(self._keys, rows, key_names)], key_names)

    def over_initial_state(self, input: Sequence[tuple[Any, Any]]) -> None:
        """Pass the initial state to the processor, one row or frame of a key at a time."""
        if not input:
            return
        clock = self._clock.now()
        self._subtask.edit(
            clock,
            [(self._keys.given(key), one) for key, one in input],
            lambda processor, _, key, one: processor.handleInitialState(
                key.key, one, clock.timer_values
            ),
        )

    def with_broadcast(self, input: Any) -> Any:
        """Process the rows, or the frame, of a broadcast stream."""
        where, processor = self._subtask.where, self._subtask.processor
        if not hasattr(processor, "handleBroadcastRows"):
            raise PlanError(
                f"{where}: {type(processor).__name__} has no handleBroadcastRows(rows, "
                "timerValues), which a broadcast stream needs: add the method"
            )
        in_frames = isinstance(input, pd.DataFrame)
        if self._mode is BatchInput and not in_frames:
            raise PlanError(f"{where}: a BatchProcessor gets frames: give a frame")
        if self._mode is not BatchInput:
            self._mode = PandasInput if in_frames else RowsInput
        rows = [input] if in_frames else list(input)
        return self._epoch([], broadcast=iter(rows) if len(input) else None)

    def releasing(self, *, in_frames: bool | None) -> Any:
        """Release parked keys, whose rows came as given; ``None`` if there are no rows."""
        if in_frames is not None:
            self._mode = PandasInput if in_frames else RowsInput
        return self._epoch([])

    def without_rows(self) -> Any:
        """Fire the timers that are due."""
        return self._epoch([])

    def _epoch(
        self,
        frames: list[pd.DataFrame],
        key_names: Sequence[str] = (),
        broadcast: Iterator[Any] | None = None,
        without_rows: Sequence[tuple[GivenKey, Any]] = (),
    ) -> Any:
        crash = self._subtask.crash
        columns = GivenColumns(self._keys, key_names)
        output_rows = OutputRows(self._schema or T.StructType(), self._subtask.handle.uid)
        mode = self._mode(columns, output_rows)  # type: ignore[arg-type]  # has what modes use
        output = KeptOutput(
            None if self._schema is None else mode.new_output(),
            lambda: crash.reach(CrashStep.AFTER_FIRST_KEY),
            self._subtask.where,
            in_frames=self._mode is not RowsInput,
            schema=self._schema,
        )
        given = GivenInput(mode, output, self._clock.event_time, without_rows)
        parts: list[list[pd.DataFrame]] = [frames] if frames else []
        if without_rows:
            parts.append([])
        self._subtask.process(parts, columns, given, self._clock.now(), broadcast)
        return output.result()


def refuse_arrow(processor: object, uid: str) -> None:
    """Refuse a processor that gets Arrow tables."""
    if isinstance(processor, ArrowProcessor):
        raise NotBuiltYetError(
            f"operator {uid!r}: the harness does not take an ArrowProcessor yet: run it over a "
            "batch DataFrame"
        )
