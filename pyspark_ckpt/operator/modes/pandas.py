"""``transformWithStateInPandas``: the processor gets an iterator of frames per key.

The output frames are gathered into one frame in the schema that leaves the function. Most
processors yield a frame of one row per key, and pandas takes long to put such frames together. So
frames that hold only integers, or only floats, are gathered as arrays, and all others as columns.
All are copied, because a processor may change a frame after it has yielded it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept_column, may_change
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keyed import Key, keyed_rows, user_keys
from pyspark_ckpt.operator.rows.mode import RowForm
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS, OutputRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.settings.values import size_bytes
from pyspark_ckpt.values.frames import yielded_values
from pyspark_ckpt.values.given import whole
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.time_zones import zone_of

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FLOATS = (T.FloatType, T.DoubleType)

_Numbers = np.ndarray[Any, Any]
"""The values of a frame that holds nothing but numbers: rows by columns."""

_Columns = list[Any]
"""The columns of any other frame: an array of NumPy or pandas for each."""

_ROWS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"

_NO_BYTES = 2**31 - 1
"""Spark's default, which means that there is no limit."""


class PandasOutput:
    """Frames that the processor yielded; columns by name, by position if labels are numbers."""

    def __init__(self, output_rows: OutputRows) -> None:
        self._schema = output_rows
        kinds = [type(field.dataType) for field in output_rows.schema.fields]
        self._array_kinds = "i" if _all_in(kinds, _INTEGERS) else "if" * _all_in(kinds, _FLOATS)
        self._may_change = [may_change(field.dataType) for field in output_rows.schema.fields]
        self._zone = zone_of_output(output_rows)
        self._frames: list[_Numbers | _Columns] = []
        self._rows = 0

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return self._rows

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        rest = self.fill(output)
        while rest is not None:
            rest = self.fill(rest)

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add what one call of the processor yields, until as much is there as leaves at once."""
        if output is None:
            return None
        if isinstance(output, pd.DataFrame):
            raise StateValueError(
                f"{self._schema.where}: the processor returned a DataFrame: yield it, or return a "
                "list of frames"
            )
        full = self._rows + CHUNK_ROWS
        rest = iter(output)
        for frame in rest:
            if not isinstance(frame, pd.DataFrame):
                raise StateValueError(
                    f"{self._schema.where}: the processor yielded {type(frame).__name__}: yield "
                    "pandas DataFrames"
                )
            if len(frame):
                self._frames.append(self._copy(self._with_columns(frame)))
                self._rows += len(frame)
            if self._rows >= full:
                return rest
        return None

    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""
        while self._rows > rows:
            frame = self._frames.pop()
            self._rows -= len(frame if isinstance(frame, np.ndarray) else frame[0])

    def take(self) -> pa.RecordBatch:
        """Return the rows in the sent schema, and empty the buffer."""
        frames, self._frames, self._rows = self._frames, [], 0
        batches: list[pa.RecordBatch] = []
        rows = 0
        for _, alike in groupby(frames, _dtypes_of):
            batches.append(self._batch(list(alike), rows))
            rows += batches[-1].num_rows
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches, self._schema.arrow_schema)
        return self._schema.batch_of([whole(column) for column in table.columns])

    def _batch(self, frames: list[_Numbers | _Columns], rows_before: int) -> pa.RecordBatch:
        """Return frames of equal dtypes in the sent schema; no dtype may change a value."""
        columns: Iterable[Any]
        if isinstance(frames[0], np.ndarray):
            columns = map(pd.Series, np.concatenate(frames).T)
        else:
            columns = map(_put_together, zip(*frames, strict=True))
        try:
            return self._schema.batch_of(
                list(map(self._column, self._schema.schema.fields, columns))
            )
        except StateValueError as exc:
            if exc.row is not None:
                exc.row += rows_before
            raise

    def _copy(self, frame: pd.DataFrame) -> _Numbers | _Columns:
        """Return a copy of a frame's values: as one array if one holds them as they are."""
        if self._array_kinds:
            values: _Numbers = frame.to_numpy()
            # Signed integers only if every column is; fractions are what the columns will be.
            if values.dtype.kind in self._array_kinds:
                return np.array(values)  # each column stays in one piece
        return [
            kept_column(column, may_change=changes)
            for changes, (_, column) in zip(self._may_change, frame.items(), strict=True)
        ]

    def _with_columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        names = self._schema.schema.names
        if frame.columns.tolist() == names:
            return frame
        if any(isinstance(label, str) for label in frame.columns):
            missing = [name for name in names if name not in frame.columns]
            if missing:
                raise StateValueError(
                    f"{self._schema.where}: a yielded DataFrame has the columns "
                    f"{list(frame.columns)} and lacks {missing} of its outputStructType"
                )
            return frame[names]
        if len(frame.columns) != len(names):
            raise StateValueError(
                f"{self._schema.where}: a yielded DataFrame has {len(frame.columns)} columns, its "
                f"outputStructType has {len(names)}"
            )
        return frame.set_axis(names, axis="columns")

    def _column(self, field: T.StructField, column: pd.Series[Any]) -> pa.Array:
        kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else "O"
        is_integer = isinstance(field.dataType, _INTEGERS)
        is_float = isinstance(field.dataType, _FLOATS)
        if (kind in "iu" and (is_integer or is_float)) or (kind == "f" and is_float):
            return self._schema.numbers(field, column.to_numpy())
        if isinstance(field.dataType, T.DecimalType) and column.dtype.kind in "iu" and len(column):
            size_bytes: int = getattr(column.dtype, "itemsize", 8)
            digits = len(str(np.iinfo(f"{column.dtype.kind}{size_bytes}").max))
            self._schema.check_room(field, digits, column.tolist()[0])
        if kind == "M" and isinstance(field.dataType, T.TimestampType):
            column = _in_zone(column, self._schema.time_zone)
        convert = yielded_values(field.dataType, self._zone)
        return self._schema.column(field, list(map(convert, column.tolist())))


def zone_of_output(output_rows: OutputRows) -> datetime.tzinfo | None:
    """Return the zone of the times that frames show; ``None`` if they show no instant."""
    zone = output_rows.time_zone
    return None if zone is None or not holds(output_rows.schema, T.TimestampType) else zone_of(zone)


def _in_zone(times: pd.Series[Any], time_zone: str | None) -> pd.Series[Any]:
    """Return times as instants, as PySpark does: frames show them in the session's time zone.

    Of an hour that occurs twice, the later one is taken.
    """
    if time_zone is None:
        return times
    known: pd.Series[Any] = times.dt.tz_localize(
        time_zone, ambiguous=False, nonexistent="shift_forward"
    )
    return known


def _dtypes_of(frame: _Numbers | _Columns) -> Any:
    return frame.dtype if isinstance(frame, np.ndarray) else [array.dtype for array in frame]


def _put_together(arrays: Sequence[Any]) -> pd.Series[Any]:
    """Return arrays of one dtype as one column."""
    if isinstance(arrays[0], np.ndarray):
        return pd.Series(np.concatenate(arrays))
    return pd.concat([pd.Series(array, copy=False) for array in arrays], ignore_index=True)


def _all_in(kinds: list[type], wanted: tuple[type, ...]) -> bool:
    return all(kind in wanted for kind in kinds)


class PandasPart:
    """A part of an epoch, whose rows are one frame that is cut by key.

    If `limits` is ``None``, the processor gets one frame.
    """

    def __init__(
        self,
        columns: InputColumns,
        batches: SentRows,
        limits: FrameLimits | None = None,
    ) -> None:
        keyed = keyed_rows(columns, batches)
        rows = len(keyed.sent)
        self._frame_rows = (
            max(rows, 1)
            if limits is None
            else limits.rows_of_frames(rows, lambda: columns.size_bytes(keyed.sent))
        )
        self._keyed = keyed
        self._bounds = keyed.bounds
        self._columns = columns
        self._frame = columns.pandas_frame(keyed.sent)
        self._at = self._frame.iloc  # asking for it takes 1 us
        self._indexes = FrameIndexes()

    @cached_property
    def stored(self) -> Sequence[StoredKey]:
        """Key group and encoded key of each key."""
        return self._keyed.stored.pairs()

    @cached_property
    def keys(self) -> list[Key]:
        """The keys as the processor sees them."""
        return user_keys(self._columns, self._keyed)

    def process(
        self, processor: StatefulProcessor, position: int, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have the processor handle one key."""
        frames = self._in_frames(self.rows(position))
        return processor.handleInputRows(self.keys[position], frames, timer_values)

    def initial_states(self, position: int) -> Iterator[Any]:
        """Return what ``handleInitialState`` gets for a key: its rows in frames."""
        return self._in_frames(self.rows(position))

    def newest_event_time_ms(self, position: int) -> int | None:
        """Return the newest event time of a key's rows, ``None`` without one."""
        return self._newest_times_ms[position]

    @cached_property
    def _newest_times_ms(self) -> list[int | None]:
        return self._columns.newest_times_ms(self._keyed.sent, self._bounds)

    def sent_rows(self, position: int) -> Any:
        """Return the rows of a key as they were sent."""
        start, stop = self._bounds[position], self._bounds[position + 1]
        return self._columns.taken(self._keyed.sent, np.arange(start, stop))

    def _in_frames(self, rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
        most = self._frame_rows
        if len(rows) <= most:  # nearly always; a slice takes as long as a small frame's work
            rows.index = self._indexes.of(len(rows))
            yield rows
            return
        for start in range(0, len(rows), most):
            frame = rows.iloc[start : start + most]
            frame.index = self._indexes.of(len(frame))
            yield frame

    def rows(self, position: int) -> pd.DataFrame:
        """Return the rows of a key."""
        return self._at[self._bounds[position] : self._bounds[position + 1]]


class PandasInput:
    """Frames in, frames out, key by key."""

    method = "handleInputRows"
    form = RowForm.PANDAS
    calls_once_per_part = False

    def __init__(
        self,
        input_columns: InputColumns,
        output_rows: OutputRows,
        limits: FrameLimits | None = None,
    ) -> None:
        self.columns = input_columns
        self.output_rows = output_rows
        self.limits = limits or FrameLimits()
        zone_of_output(output_rows)  # refused here rather than on the executors

    def part(self, batches: SentRows) -> PandasPart:
        """Return a part of an epoch's rows by their keys."""
        return PandasPart(self.columns, batches, self.limits)

    def new_output(self) -> PandasOutput:
        """Return an empty buffer for the epoch's output."""
        return PandasOutput(self.output_rows)


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

    def rows_of_frames(self, rows: int, size_bytes: Callable[[], int]) -> int:
        """Return how many of a part's rows make one frame."""
        most = self.rows if self.rows > 0 else rows
        if self.size_bytes >= _NO_BYTES or not rows:
            return max(most, 1)
        row_bytes: float = max(size_bytes() / rows, 1)
        return max(min(most, math.ceil(self.size_bytes / row_bytes)), 1)
