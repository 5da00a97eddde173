"""``transformWithStateInBatches``: the processor gets all keys of a part at once, as columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.modes.pandas import PandasOutput, PandasPart, zone_of_output
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.mode import RowForm
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.table.keys import PartKeys


class BatchProcessor(StatefulProcessor):
    """A processor that handles many keys in one call.

    For a time to live in event time, what a call writes is as old as the newest row of the call.
    Timers are set with ``registerTimers(keys, times)`` of the handle, and handled key by key, in
    ``handleExpiredTimer``.

    Examples
    --------
    >>> class Count(ckpt.BatchProcessor):
    ...     def init(self, handle):
    ...         self.count = handle.getValueState("count", "n long")
    ...
    ...     def handleInputBatch(self, keys, rows, timerValues):
    ...         n = self.count.getMany(keys)["n"].fillna(0) + rows.groupby(level=0).size()
    ...         self.count.updateMany(keys, n.to_frame("n"))
    ...         yield keys.assign(n=n)
    ...
    ...     def close(self): ...
    >>> import pandas as pd
    >>> from pyspark_ckpt.testing import ProcessorHarness
    >>> harness = ProcessorHarness(Count())
    >>> harness.testInBatches(pd.DataFrame({"user": ["ada", "ada"]}), "user")["n"].tolist()
    [2]
    """

    @abstractmethod
    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: TimerValues
    ) -> Iterable[pd.DataFrame] | None:
        """Handle all rows of some keys; called on an executor, once or a few times per epoch.

        Parameters
        ----------
        keys : pandas.DataFrame
            The key columns, one row per key. Integers in columns with nulls are exact, in pandas'
            type ``Int64``, here and in `rows`. Pass it, or some of its rows, to ``getMany`` and
            ``updateMany`` of value state.
        rows : pandas.DataFrame
            All rows of these keys, in the order of the keys. The index is the place of each row's
            key in `keys`, so ``rows.groupby(level=0)`` groups by key.
        timerValues : TimerValues
            The epoch's times.

        Returns
        -------
        iterable of pandas.DataFrame or None
            The output, in the columns of ``outputStructType``.

        Examples
        --------
        >>> class Sizes(ckpt.BatchProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputBatch(self, keys, rows, timerValues):
        ...         yield keys.assign(n=rows.groupby(level=0).size())
        ...
        ...     def close(self): ...
        """

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Not called: rows come to :meth:`handleInputBatch`."""
        raise NotImplementedError("a BatchProcessor gets its rows in handleInputBatch")


class BatchPart(PandasPart):
    """A part of an epoch that the processor gets in one call."""

    @cached_property
    def stored(self) -> PartKeys:
        """Key group and encoded key of each key."""
        return self._keyed.stored

    def process(
        self,
        processor: Any,
        position: int,  # noqa: ARG002
        timer_values: TimerValues,
    ) -> Iterable[Any] | None:
        """Have the processor handle all keys of the part; the position has no effect."""
        rows = self._frame
        rows.index = pd.Index(np.repeat(np.arange(len(self.stored)), np.diff(self._bounds)))
        keys = self._columns.pandas_keys(self._keyed.first)
        self.stored.shown = keys.copy(deep=False)  # the processor may add columns, or change them
        output: Iterable[Any] | None = processor.handleInputBatch(keys, rows, timer_values)
        return output

    def newest_event_time_ms(self, position: int) -> int | None:  # noqa: ARG002
        """Return the newest event time of the part, ``None`` without one."""
        sent = self._keyed.sent
        return self._columns.newest_times_ms(sent, [0, len(sent)])[0]

    def rows(self, position: int) -> pd.DataFrame:  # noqa: ARG002
        """Return all rows of the part; the position has no effect."""
        return self._frame

    def sent_rows(self, position: int) -> Any:  # noqa: ARG002
        """Return all rows of the part as they were sent; the position has no effect."""
        return self._keyed.sent


class BatchInput:
    """All keys of a part in one call, frames out."""

    method = "handleInputBatch"
    form = RowForm.PANDAS
    calls_once_per_part = True

    def __init__(self, input_columns: InputColumns, output_rows: OutputRows) -> None:
        self.columns = input_columns.with_exact_frames()
        zone_of_output(output_rows)  # refused here rather than on the executors
        self.output_rows = output_rows

    def part(self, batches: SentRows) -> BatchPart:
        """Return a part of an epoch's rows by their keys."""
        return BatchPart(self.columns, batches)

    def new_output(self) -> PandasOutput:
        """Return an empty buffer for the epoch's output."""
        return PandasOutput(self.output_rows)
