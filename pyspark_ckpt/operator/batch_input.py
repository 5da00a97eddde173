"""``transformWithStateInBatches``: the processor gets all keys of a part at once, as columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.input_mode import KeyRows
from pyspark_ckpt.operator.keyed_frame import KeyedFrame, keyed_frame
from pyspark_ckpt.operator.output_rows import OutputRows
from pyspark_ckpt.operator.pandas_output import PandasOutput


class BatchProcessor(StatefulProcessor):
    """A processor that handles many keys in one call.

    For a time to live in event time, what a call writes is as old as the newest row of the call.
    Timers are set with ``registerTimers(keys, times)`` of the handle, and handled key by key, in
    ``handleExpiredTimer``.
    """

    @abstractmethod
    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: TimerValues
    ) -> Iterable[pd.DataFrame] | None:
        """Handle all rows of some keys; called on an executor, once or a few times per epoch.

        Parameters
        ----------
        keys
            The key columns, one row per key; pass it, or some of its rows, to ``getMany`` and
            ``updateMany`` of value state.
        rows
            All rows of these keys, in the order of the keys; the index tells the place of each
            row's key in `keys`, so ``rows.groupby(level=0)`` goes by key.
        timerValues
            The epoch's times.

        Returns
        -------
        iterable of DataFrame
            The output, in the columns of ``outputStructType``.
        """

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Not called: rows come to :meth:`handleInputBatch`."""
        raise NotImplementedError("a BatchProcessor gets its rows in handleInputBatch")


class BatchInput:
    """All keys of a part in one call, frames out.

    Parameters
    ----------
    input_columns, output_rows
        The operator's schemas as they travel.
    """

    calls_once_per_part = True

    def __init__(self, input_columns: InputColumns, output_rows: OutputRows) -> None:
        self._input = input_columns
        self._output = output_rows
        self._part: KeyedFrame | None = None

    def keys_of(self, frames: list[pd.DataFrame]) -> list[KeyRows]:
        """Return the keys of a part, in the order of their stored keys; the first has all rows."""
        part = self._part = keyed_frame(self._input, frames)
        return [replace(part.keys[0], rows=part.frame), *part.keys[1:]]

    def process_part(self, processor: Any, timer_values: TimerValues) -> Iterable[Any] | None:
        """Have the processor handle all keys of the part."""
        part, self._part = self._part, None
        assert part is not None  # keys_of comes first
        counts = np.diff(part.bounds)
        rows = part.frame
        rows.index = pd.Index(np.repeat(np.arange(len(counts)), counts))
        keys = rows[list(self._input.key_names)].iloc[part.bounds[:-1]].reset_index(drop=True)
        output: Iterable[Any] | None = processor.handleInputBatch(keys, rows, timer_values)
        return output

    def process(
        self, processor: StatefulProcessor, item: KeyRows, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Not called: the part is processed as one."""
        raise NotImplementedError

    def newest_event_time_ms(self, item: KeyRows) -> int | None:
        """Return the newest event time of the part, given its first key."""
        return self._input.newest_event_time_ms(item.rows)

    def new_output(self) -> PandasOutput:
        """Return an empty buffer for the epoch's output."""
        return PandasOutput(self._output)
