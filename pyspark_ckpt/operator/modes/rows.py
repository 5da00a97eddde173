"""``transformWithState``: the processor gets an iterator of Rows per key and yields Rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept, may_change
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keyed import keyed_rows, user_keys
from pyspark_ckpt.operator.rows.mode import RowForm
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS, OutputRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows


class RowsPart:
    """A part of an epoch whose Rows are made as the processor asks for them."""

    def __init__(self, columns: InputColumns, batches: SentRows) -> None:
        keyed = keyed_rows(columns, batches)
        self.stored = keyed.stored.pairs()
        self.keys = user_keys(columns, keyed)
        self._bounds = keyed.bounds
        self._columns, self._sent = columns, keyed.sent
        self._rows = columns.row_slices(keyed.sent)

    def process(
        self, processor: StatefulProcessor, position: int, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have the processor handle one key."""
        return processor.handleInputRows(self.keys[position], self.rows(position), timer_values)

    def initial_states(self, position: int) -> Iterator[Any]:
        """Return what ``handleInitialState`` gets for a key: each of its rows."""
        return self.rows(position)

    def newest_event_time_ms(self, position: int) -> int | None:
        """Return the newest event time of a key's rows, ``None`` without one."""
        return self._newest_times_ms[position]

    @cached_property
    def _newest_times_ms(self) -> list[int | None]:
        return self._columns.newest_times_ms(self._sent, self._bounds)

    def sent_rows(self, position: int) -> Any:
        """Return the rows of a key as they were sent."""
        start, stop = self._bounds[position], self._bounds[position + 1]
        return self._columns.taken(self._sent, np.arange(start, stop))

    def rows(self, position: int) -> Iterator[Any]:
        """Return the rows of a key."""
        return self._rows(self._bounds[position], self._bounds[position + 1])


class RowsInput:
    """Rows in, rows out."""

    method = "handleInputRows"
    form = RowForm.ROWS
    calls_once_per_part = False

    def __init__(self, input_columns: InputColumns, output_rows: OutputRows) -> None:
        self.columns = input_columns
        self.output_rows = output_rows

    def part(self, batches: SentRows) -> RowsPart:
        """Return a part of an epoch's rows by their keys."""
        return RowsPart(self.columns, batches)

    def new_output(self) -> RowsOutput:
        """Return an empty buffer for the epoch's output."""
        return RowsOutput(self.output_rows)


class RowsOutput:
    """Rows that the processor has yielded."""

    def __init__(self, output_rows: OutputRows) -> None:
        self._schema = output_rows
        self._may_change = any(may_change(field.dataType) for field in output_rows.schema.fields)
        self._rows: list[Any] = []

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        if output is None:
            return
        self._check(output)
        self._rows.extend(map(self._copy, output) if self._may_change else output)

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add what one call of the processor yields, until as much is there as leaves at once."""
        if output is None:
            return None
        self._check(output)
        rows = self._rows
        full = len(rows) + CHUNK_ROWS
        output = iter(output)  # once: a second iterator would run the processor's code again
        first = islice(output, CHUNK_ROWS)
        rows.extend(map(self._copy, first) if self._may_change else first)
        if len(rows) < full:  # nearly always
            return None
        return output

    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""
        del self._rows[rows:]

    def take(self) -> pa.RecordBatch:
        """Return the rows in the sent schema, and empty the buffer."""
        rows, self._rows = self._rows, []
        return self._schema.batch(rows)

    def _check(self, output: Iterable[Any]) -> None:
        if isinstance(output, Row):  # its values would be taken for rows
            raise StateValueError(
                f"{self._schema.where}: the processor returned one Row: yield it, or return a list "
                "of Rows"
            )

    def _copy(self, row: Any) -> Any:
        """Return a row whose lists and dicts the processor cannot change any more."""
        if not isinstance(row, tuple):
            return row
        return tuple(kept(list(self._schema.in_order(row)), by_name=True))
