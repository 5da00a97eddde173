"""The buffers of what a processor yields: Rows, pandas frames or Arrow tables, until they leave.

Most processors yield a frame of one row per key, and pandas takes long to put such frames together.
So frames that hold only integers, or only floats, are gathered as arrays, and all others as
columns. All are copied, because a processor may change a frame after it has yielded it.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept, kept_array, kept_column, may_change
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS, OutputRows
from pyspark_ckpt.values.frames import yielded_values
from pyspark_ckpt.values.given import whole, yielded_column
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.shown import first_bad_text
from pyspark_ckpt.values.time_zones import zone_of
from pyspark_ckpt.values.types import INSTANTS, Kind, kind_of
from pyspark_ckpt.values.words import shown

PIECE_BYTES = 1 << 26
"""Output of this size leaves at once: far below the 2 GB that an Arrow column of texts can have."""

_Numbers = np.ndarray[Any, Any]
"""The values of a frame that holds nothing but numbers: rows by columns."""

_Columns = list[Any]
"""The columns of any other frame: an array of NumPy or pandas for each."""


class OutputBuffer(ABC):
    """What the calls of a processor have yielded and that has not left the function yet."""

    item: ClassVar[type | tuple[type, ...]]
    """What a processor may return by mistake, where it should yield it."""
    words: ClassVar[tuple[str, str]]
    """What one such item is called, and several."""

    def __init__(self, output_rows: OutputRows) -> None:
        self._schema = output_rows
        self.rows = 0
        """How many rows are there."""

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        rest = self.fill(output)
        while rest is not None:
            rest = self.fill(rest)

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add what one call of the processor yields, until as much is there as leaves at once."""
        if output is None:
            return None
        if isinstance(output, self.item):  # its values or columns would be taken for items
            one, several = self.words
            raise StateValueError(
                f"{self._schema.where}: the processor returned {one}: yield it, or return a list "
                f"of {several}"
            )
        rest = iter(output)  # once: a second iterator would run the processor's code again
        return rest if self._draw(rest, self.rows + CHUNK_ROWS) else None

    @abstractmethod
    def _draw(self, items: Iterator[Any], full: int) -> bool:
        """Add items until there are `full` rows, or too many bytes; return whether there are."""

    @abstractmethod
    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""

    @abstractmethod
    def take(self) -> pa.RecordBatch:
        """Return the rows in the sent schema, and empty the buffer."""


class RowsOutput(OutputBuffer):
    """Rows that the processor has yielded."""

    item = Row
    words = "one Row", "Rows"

    def __init__(self, output_rows: OutputRows) -> None:
        super().__init__(output_rows)
        self._may_change = any(may_change(field.dataType) for field in output_rows.schema.fields)
        self._held: list[Any] = []

    def _draw(self, items: Iterator[Any], full: int) -> bool:
        held = self._held
        first = islice(items, CHUNK_ROWS)
        held.extend(map(self._copy, first) if self._may_change else first)
        self.rows = len(held)
        return self.rows >= full  # nearly never

    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""
        del self._held[rows:]
        self.rows = rows

    def take(self) -> pa.RecordBatch:
        """Return the rows in the sent schema, and empty the buffer."""
        rows, self._held, self.rows = self._held, [], 0
        return self._schema.batch(rows)

    def _copy(self, row: Any) -> Any:
        """Return a row whose lists and dicts the processor cannot change any more."""
        if not isinstance(row, tuple):
            return row
        return tuple(kept(list(self._schema.in_order(row)), by_name=True))


class PiecesOutput(OutputBuffer):
    """Tables of some kind that the processor has yielded; each is a piece of the output."""

    yields: ClassVar[str]
    """What the processor has to yield."""

    def __init__(self, output_rows: OutputRows) -> None:
        super().__init__(output_rows)
        self._pieces: list[tuple[int, int, Any]] = []
        """Each with its rows, and with its bytes as far as they count."""
        self._size_bytes = 0

    def _draw(self, items: Iterator[Any], full: int) -> bool:
        for item in items:
            if not isinstance(item, self.item):
                raise StateValueError(
                    f"{self._schema.where}: the processor yielded {type(item).__name__}: yield "
                    f"{self.yields}"
                )
            rows, size_bytes, _ = piece = self._piece(item)
            if rows:
                self._pieces.append(piece)
                self.rows += rows
                self._size_bytes += size_bytes
            if self.rows >= full or self._size_bytes >= PIECE_BYTES:
                return True
        return False

    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""
        while self.rows > rows:
            its_rows, size_bytes, _ = self._pieces.pop()
            self.rows -= its_rows
            self._size_bytes -= size_bytes

    def take(self) -> pa.RecordBatch:
        """Return the rows in the sent schema, and empty the buffer."""
        pieces = [piece for _, _, piece in self._pieces]
        self._pieces, self.rows, self._size_bytes = [], 0, 0
        batches = self._batches(pieces)
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches, self._schema.arrow_schema)
        return self._schema.batch_of([whole(column) for column in table.columns])

    @abstractmethod
    def _piece(self, item: Any) -> tuple[int, int, Any]:
        """Return what is held of an item that was yielded, which the processor may change."""

    @abstractmethod
    def _batches(self, pieces: list[Any]) -> list[pa.RecordBatch]:
        """Return pieces in the sent schema, in their order."""

    def _check_names(self, what: str, columns: list[Any]) -> None:
        missing = [name for name in self._schema.schema.names if name not in columns]
        if missing:
            raise StateValueError(
                f"{self._schema.where}: a yielded {what} has the columns {columns} and lacks "
                f"{missing} of its outputStructType"
            )


class PandasOutput(PiecesOutput):
    """Frames that the processor yielded; columns by name, by position if labels are numbers."""

    item = pd.DataFrame
    words = "a DataFrame", "frames"
    yields = "pandas DataFrames"

    def __init__(self, output_rows: OutputRows) -> None:
        super().__init__(output_rows)
        kinds = {kind_of(field.dataType) for field in output_rows.schema.fields}
        self._array_kinds = "i" if kinds == {Kind.INTEGER} else "if" * (kinds == {Kind.FRACTION})
        self._may_change = [may_change(field.dataType) for field in output_rows.schema.fields]
        self._zone = _zone_of_output(output_rows)

    def _piece(self, item: pd.DataFrame) -> tuple[int, int, _Numbers | _Columns]:
        rows = len(item)  # its bytes take long to count
        return (rows, 0, self._copy(self._with_columns(item))) if rows else (0, 0, [])

    def _batches(self, pieces: list[_Numbers | _Columns]) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        rows = 0
        for _, alike in groupby(pieces, _dtypes_of):
            batches.append(self._batch(list(alike), rows))
            rows += batches[-1].num_rows
        return batches

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
        labels = frame.columns.tolist()
        if labels == names:
            return frame
        if any(isinstance(label, str) for label in labels):
            self._check_names("DataFrame", labels)
            return frame[names]
        if len(labels) != len(names):
            raise StateValueError(
                f"{self._schema.where}: a yielded DataFrame has {len(labels)} columns, its "
                f"outputStructType has {len(names)}"
            )
        return frame.set_axis(names, axis="columns")

    def _column(self, field: T.StructField, column: pd.Series[Any]) -> pa.Array:
        kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else "O"
        wanted = kind_of(field.dataType)
        is_float = wanted is Kind.FRACTION
        if (kind in "iu" and (wanted is Kind.INTEGER or is_float)) or (kind == "f" and is_float):
            return self._schema.numbers(field, column.to_numpy())
        if wanted is Kind.DECIMAL and column.dtype.kind in "iu" and len(column):
            size_bytes: int = getattr(column.dtype, "itemsize", 8)
            digits = len(str(np.iinfo(f"{column.dtype.kind}{size_bytes}").max))
            self._schema.check_room(field, digits, column.tolist()[0])
        if kind == "M" and wanted is Kind.INSTANT:
            column = _in_zone(column, self._schema.time_zone)
        convert = yielded_values(field.dataType, self._zone)
        return self._schema.column(field, list(map(convert, column.tolist())))


def _zone_of_output(output_rows: OutputRows) -> datetime.tzinfo | None:
    """Return the zone of the times that frames show; ``None`` if they show no instant."""
    zone = output_rows.time_zone
    return None if zone is None or not holds(output_rows.schema, INSTANTS) else zone_of(zone)


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
        # With its type given: of objects, pandas 3 would take the first interval for a null.
        return pd.Series(np.concatenate(arrays), dtype=arrays[0].dtype)
    return pd.concat([pd.Series(array, copy=False) for array in arrays], ignore_index=True)


class ArrowOutput(PiecesOutput):
    """Tables that the processor has yielded; columns by name."""

    item = (pa.Table, pa.RecordBatch)
    words = "a table", "tables"
    yields = "Arrow tables"

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add what one call of the processor yields, until as much is there as leaves at once."""
        if output is not None and not isinstance(output, (_Cut, *self.item)):
            output = _Cut(output)
        return super().fill(output)

    def _piece(self, item: Any) -> tuple[int, int, pa.RecordBatch]:
        table = pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else item
        self._check_names("table", table.column_names)
        batch = self._schema.batch_of(
            [self._column(field, table.column(field.name)) for field in self._schema.schema.fields]
        )
        return batch.num_rows, batch.nbytes, batch

    def _batches(self, pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        return pieces

    def _column(self, field: T.StructField, column: pa.ChunkedArray) -> pa.Array:
        try:
            return kept_array(yielded_column(field.dataType, column))
        except (pa.ArrowException, ValueError, OverflowError) as exc:
            bad = first_bad_text(column)
            if bad is not None:
                raise StateValueError(
                    f"{self._schema.where}: output column {field.name!r} is "
                    f"{field.dataType.simpleString()}, and the yielded column has the text "
                    f"{shown(bad)}, which is not UTF-8: decode it, or make the column binary"
                ) from exc
            raise StateValueError(
                f"{self._schema.where}: output column {field.name!r} is "
                f"{field.dataType.simpleString()}, the yielded column is {column.type} ({exc})"
            ) from exc


class _Cut(Iterator[Any]):
    """The tables of one call; those of more than :data:`PIECE_BYTES` are cut between rows."""

    def __init__(self, output: Iterable[Any]) -> None:
        self._pieces = chain.from_iterable(map(_pieces, output))

    def __next__(self) -> Any:
        return next(self._pieces)


def _pieces(table: Any) -> Iterator[Any]:
    is_table = isinstance(table, pa.Table | pa.RecordBatch)  # anything else is refused later
    if is_table and table.num_rows > 1 and table.nbytes > PIECE_BYTES:
        half = table.num_rows // 2
        yield from _pieces(table.slice(0, half))
        yield from _pieces(table.slice(half))
    else:
        yield table
