"""``transformWithStateInPandas``: the processor gets an iterator of frames per key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.input_mode import KeyRows
from pyspark_ckpt.operator.keyed_frame import keyed_frame
from pyspark_ckpt.operator.output_rows import OutputRows
from pyspark_ckpt.operator.pandas_output import PandasOutput

FRAME_ROWS = 10_000
"""Rows of a key's frame at most; Spark's default for an Arrow batch, which cuts PySpark's own."""


class PandasInput:
    """Frames in, frames out, key by key.

    Parameters
    ----------
    input_columns, output_rows
        The operator's schemas as they travel.
    """

    calls_once_per_part = False

    def __init__(self, input_columns: InputColumns, output_rows: OutputRows) -> None:
        self._input = input_columns
        self._output = output_rows

    def keys_of(self, frames: list[pd.DataFrame]) -> list[KeyRows]:
        """Return the keys of a part, in the order of their stored keys."""
        keyed = keyed_frame(self._input, frames)
        return [
            KeyRows(key.key_group, key.encoded_key, key.key, keyed.frame.iloc[start:stop])
            for key, start, stop in zip(keyed.keys, keyed.bounds, keyed.bounds[1:], strict=False)
        ]

    def process(
        self, processor: StatefulProcessor, item: KeyRows, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have the processor handle one key."""
        return processor.handleInputRows(item.key, _in_frames(item.rows), timer_values)

    def process_part(self, processor: Any, timer_values: TimerValues) -> Iterable[Any] | None:
        """Not called: keys are processed one by one."""
        raise NotImplementedError

    def initial_states(self, item: KeyRows) -> Iterator[Any]:
        """Return what ``handleInitialState`` gets for a key: its rows in frames."""
        return _in_frames(item.rows)

    def newest_event_time_ms(self, item: KeyRows) -> int | None:
        """Return the newest event time of a key's rows, ``None`` if they have none."""
        return self._input.newest_event_time_ms(item.rows)

    def new_output(self) -> PandasOutput:
        """Return an empty buffer for the epoch's output."""
        return PandasOutput(self._output)


def _in_frames(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    if len(rows) <= FRAME_ROWS:  # nearly always; a slice takes as long as a small frame's work
        rows.index = pd.RangeIndex(len(rows))
        yield rows
        return
    for start in range(0, len(rows), FRAME_ROWS):
        frame = rows.iloc[start : start + FRAME_ROWS]
        frame.index = pd.RangeIndex(len(frame))
        yield frame
