"""The views: a processor sees its rows as Rows, in pandas frames, or in Arrow tables.

A view knows nothing of keys and calls: :mod:`pyspark_ckpt.operator.modes.calls` asks it for the
rows of a key, or for all rows and all keys of a part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pyspark_ckpt.operator.modes.output import ArrowOutput, PandasOutput, RowsOutput
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keyed import KeyedRows
from pyspark_ckpt.operator.rows.mode import RowForm
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.table.keys import KEY_POSITION, PartKeys
from pyspark_ckpt.settings.values import size_bytes

TIME_MS = "time_ms"
"""The column of due timers that has their times."""

Numbers = np.ndarray[Any, Any]
RowsBetween = Callable[[int, int], Iterator[Any]]
"""From two places among the rows of a part to what a call gets that is for the rows between."""

_ROWS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"

_NO_BYTES = 2**31 - 1
"""Spark's default, which means that there is no limit."""


class RowView:
    """An iterator of Rows."""

    form = RowForm.ROWS

    def rows_between(self, columns: InputColumns, sent: Any) -> RowsBetween:
        """Return what gives the rows of a key to a call; they are made as it asks for them."""
        return columns.row_slices(sent)

    def new_output(self, output_rows: OutputRows) -> RowsOutput:
        """Return an empty buffer for what calls yield."""
        return RowsOutput(output_rows)


class PandasView:
    """Frames: an iterator of them for one key, and two with all rows and all keys of a part."""

    form = RowForm.PANDAS
    method = "handleInputBatch"
    late_method = "handleLateBatch"

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self.limits = limits or FrameLimits()

    def rows_between(self, columns: InputColumns, sent: Any) -> RowsBetween:
        """Return what gives the rows of a key to a call: one frame of them all, which is cut."""
        of_part = columns.pandas_frame(sent)
        at = of_part.iloc  # asking for it takes 1 us
        indexes = FrameIndexes()
        most = self.limits.rows_of_frames(len(sent), sent.nbytes)

        def frames(start: int, stop: int) -> Iterator[pd.DataFrame]:
            for first in range(start, stop, most):  # nearly always one
                frame = at[first : min(first + most, stop)]
                frame.index = indexes.of(len(frame))
                yield frame

        return frames

    def rows(self, columns: InputColumns, sent: Any, positions: Numbers) -> pd.DataFrame:
        """Return all rows of a part; the index says of which key each is."""
        frame = columns.pandas_frame(sent)
        frame.index = pd.Index(positions)
        return frame

    def keys(self, columns: InputColumns, keyed: KeyedRows) -> pd.DataFrame:
        """Return the keys of a part."""
        return _shown(columns.pandas_keys(keyed.first), keyed.stored)

    def due_keys(self, columns: InputColumns, stored: PartKeys) -> pd.DataFrame:
        """Return keys from their stored form, as :meth:`keys` does."""
        return _shown(columns.pandas_stored_keys(stored.encoded), stored)

    def due_timers(self, positions: Numbers, times_ms: Numbers) -> pd.DataFrame:
        """Return timers; the index says of which key each is."""
        return pd.DataFrame({TIME_MS: times_ms}, index=pd.Index(positions))

    def new_output(self, output_rows: OutputRows) -> PandasOutput:
        """Return an empty buffer for what calls yield."""
        return PandasOutput(output_rows)


class ArrowView:
    """Arrow tables: one for one key, and two with all rows and all keys of a part."""

    form = RowForm.ARROW
    method = "handleInputArrow"
    late_method = "handleLateArrow"

    def rows_between(self, columns: InputColumns, sent: Any) -> RowsBetween:
        """Return what gives the rows of a key to a call: one table of them all, which is cut."""
        table = columns.arrow_rows(sent)
        return lambda start, stop: iter([table.slice(start, stop - start)])

    def rows(self, columns: InputColumns, sent: Any, positions: Numbers) -> pa.Table:
        """Return all rows of a part; a column says of which key each is."""
        return columns.arrow_rows(sent).append_column(KEY_POSITION, pa.array(positions))

    def keys(self, columns: InputColumns, keyed: KeyedRows) -> pa.Table:
        """Return the keys of a part, with their positions."""
        return _numbered(columns.arrow_keys(keyed.first))

    def due_keys(self, columns: InputColumns, stored: PartKeys) -> pa.Table:
        """Return keys from their stored form, as :meth:`keys` does."""
        return _numbered(columns.arrow_stored_keys(stored.encoded))

    def due_timers(self, positions: Numbers, times_ms: Numbers) -> pa.Table:
        """Return timers; a column says of which key each is."""
        return pa.table({KEY_POSITION: positions, TIME_MS: times_ms})

    def new_output(self, output_rows: OutputRows) -> ArrowOutput:
        """Return an empty buffer for what calls yield."""
        return ArrowOutput(output_rows)


ColumnView = PandasView | ArrowView
"""Views that also have all rows and all keys of a part, as tables of some kind."""

View = RowView | ColumnView


def _shown(keys: pd.DataFrame, stored: PartKeys) -> pd.DataFrame:
    stored.shown = keys.copy(deep=False)  # the processor may add columns, or change them
    return keys


def _numbered(keys: pa.Table) -> pa.Table:
    return keys.append_column(KEY_POSITION, pa.array(np.arange(len(keys))))


class FrameIndexes:
    """The indexes of frames, which count rows from 0; making one takes 2 us."""

    def __init__(self) -> None:
        self._by_rows: dict[int, pd.RangeIndex] = {}

    def of(self, rows: int) -> pd.RangeIndex:
        """Return the index of a frame of so many rows, to which no processor has given a name."""
        found = self._by_rows.get(rows)
        if found is None or found.name is not None:
            found = self._by_rows[rows] = pd.RangeIndex(rows)
        return found


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of one frame; the defaults are Spark's.

    If `rows` is 0 or less, the number of rows has no limit. A frame ends with the row that reaches
    `size_bytes`, where each row counts as large as the rows of the part are on average.
    """

    rows: int = 10_000
    size_bytes: int = _NO_BYTES

    @classmethod
    def of_session(cls, get: Callable[[str, str], Any]) -> FrameLimits:
        """Return the limits that a session's conf sets."""
        return cls(int(get(_ROWS_KEY, "10000")), size_bytes(get(_BYTES_KEY, str(_NO_BYTES))))

    def rows_of_frames(self, rows: int, size_bytes: int) -> int:
        """Return how many of a part's rows make one frame."""
        most = self.rows if self.rows > 0 else rows
        if self.size_bytes >= _NO_BYTES or not rows:
            return max(most, 1)
        row_bytes: float = max(size_bytes / rows, 1)
        return max(min(most, math.ceil(self.size_bytes / row_bytes)), 1)
