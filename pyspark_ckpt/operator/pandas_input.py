"""``transformWithStateInPandas``: the processor gets an iterator of frames per key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.frame_limits import FrameLimits
from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.keyed_rows import KeyedRows, keyed_rows
from pyspark_ckpt.operator.output_rows import OutputRows
from pyspark_ckpt.operator.pandas_output import PandasOutput


class PandasPart:
    """A part of an epoch, whose rows are one frame that is cut by key.

    Parameters
    ----------
    columns
        How the rows travel.
    frames
        The rows as they were sent.
    limits
        Of the frames that the processor gets; ``None`` if it gets one.
    """

    def __init__(
        self,
        columns: InputColumns,
        frames: list[pd.DataFrame],
        limits: FrameLimits | None = None,
    ) -> None:
        keyed = keyed_rows(columns, frames)
        self._frame_rows = (
            max(len(keyed.frame), 1)
            if limits is None
            else limits.rows_of_frames(keyed.frame, columns.sent_schema)
        )
        self.stored = keyed.stored
        self.keys = keyed.keys
        self._bounds = keyed.bounds
        self._columns = columns
        self._frame = columns.pandas_frame(keyed.frame)
        self._keep_keys(keyed)

    def _keep_keys(self, keyed: KeyedRows) -> None:
        """Take what is needed of the keys as columns: nothing, key by key."""

    def process(
        self, processor: StatefulProcessor, position: int, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have the processor handle one key."""
        frames = _in_frames(self.rows(position), self._frame_rows)
        return processor.handleInputRows(self.keys[position], frames, timer_values)

    def initial_states(self, position: int) -> Iterator[Any]:
        """Return what ``handleInitialState`` gets for a key: its rows in frames."""
        return _in_frames(self.rows(position), self._frame_rows)

    def newest_event_time_ms(self, position: int) -> int | None:
        """Return the newest event time of a key's rows, ``None`` if they have none."""
        return self._columns.newest_event_time_ms(self.rows(position))

    def rows(self, position: int) -> pd.DataFrame:
        """Return the rows of a key."""
        return self._frame.iloc[self._bounds[position] : self._bounds[position + 1]]


class PandasInput:
    """Frames in, frames out, key by key.

    Parameters
    ----------
    input_columns, output_rows
        The operator's schemas as they travel.
    limits
        Of the frames that the processor gets.
    """

    calls_once_per_part = False

    def __init__(
        self,
        input_columns: InputColumns,
        output_rows: OutputRows,
        limits: FrameLimits | None = None,
    ) -> None:
        self._input = input_columns
        self._output = output_rows
        self._limits = limits or FrameLimits()

    def part(self, frames: list[pd.DataFrame]) -> PandasPart:
        """Return a part of an epoch's rows by their keys."""
        return PandasPart(self._input, frames, self._limits)

    def new_output(self) -> PandasOutput:
        """Return an empty buffer for the epoch's output."""
        return PandasOutput(self._output)


def _in_frames(rows: pd.DataFrame, most: int) -> Iterator[pd.DataFrame]:
    if len(rows) <= most:  # nearly always; a slice takes as long as a small frame's work
        rows.index = pd.RangeIndex(len(rows))
        yield rows
        return
    for start in range(0, len(rows), most):
        frame = rows.iloc[start : start + most]
        frame.index = pd.RangeIndex(len(frame))
        yield frame
