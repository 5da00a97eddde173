"""``transformWithStateInArrow``: the processor gets all keys of a part at once, as Arrow tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept_array
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keyed import Key, keyed_rows, user_keys
from pyspark_ckpt.operator.rows.mode import InputMode, RowForm
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS, OutputRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.table.keys import KEY_POSITION, PartKeys
from pyspark_ckpt.values.given import whole, yielded_column
from pyspark_ckpt.values.shown import first_bad_text
from pyspark_ckpt.values.words import shown

PIECE_BYTES = 1 << 26
"""Output of this size leaves at once: far below the 2 GB that an Arrow column of texts can have."""

TIME_MS = "time_ms"
"""The column of a table of timers that has their times."""


class ArrowProcessor(StatefulProcessor):
    """A processor that handles many keys in one call, as Arrow tables.

    It is the fastest way, because no value becomes a Python object unless the processor asks for
    it. Columns have the Arrow types of their Spark types: times are microseconds in UTC.

    For a time to live in event time, what a call writes is as old as the newest row of the call.
    Timers are set with ``registerTimers(keys, times)`` of the handle. All timers that are due come
    to ``handleExpiredTimers`` in one call. A processor without that method handles them one by one,
    in ``handleExpiredTimer``, which also yields Arrow tables.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import pyarrow.compute as pc
    >>> class Count(ckpt.ArrowProcessor):
    ...     def init(self, handle):
    ...         self.count = handle.getValueState("count", "n long")
    ...
    ...     def handleInputArrow(self, keys, rows, timerValues):
    ...         rows = rows.group_by("key_position").aggregate([([], "count_all")])
    ...         counted = rows.sort_by("key_position").column("count_all")
    ...         n = pc.add(pc.fill_null(self.count.getMany(keys).column("n"), 0), counted)
    ...         self.count.updateMany(keys, pa.table({"n": n}))
    ...         yield keys.append_column("n", n)
    ...
    ...     def close(self): ...
    >>> counts = ckpt.key_by(events, "user").transformWithStateInArrow(
    ...     Count(), "user string, n long", "Update", "None", uid="count"
    ... )
    """

    @abstractmethod
    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: TimerValues
    ) -> Iterable[pa.Table] | None:
        """Handle all rows of some keys; called on an executor, once or a few times per epoch.

        Parameters
        ----------
        keys : pyarrow.Table
            The key columns, one row per key, and ``key_position``, which is 0, 1, 2 and so on.
            Pass it, or some of its rows, to ``getMany`` and ``updateMany`` of value state.
        rows : pyarrow.Table
            All rows of these keys, in the order of the keys. The column ``key_position`` says to
            which key of `keys` a row belongs.
        timerValues : TimerValues
            The epoch's times.

        Returns
        -------
        iterable of pyarrow.Table or None
            The output, with the columns of ``outputStructType``; other columns are left out.

        Examples
        --------
        >>> class Rows(ckpt.ArrowProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputArrow(self, keys, rows, timerValues):
        ...         yield rows
        ...
        ...     def close(self): ...
        """

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: TimerValues
    ) -> Iterable[pa.Table] | None:
        """Handle all timers that are due; called on an executor, once in an epoch that has any.

        More than 100,000 timers come in several calls, the earliest first. The timers are deleted
        before the call; one that it registers and that is due fires in the next epoch. If a
        processor does not override this method, ``handleExpiredTimer`` is called for each timer.

        Parameters
        ----------
        keys : pyarrow.Table
            The key columns, one row per key, and ``key_position``, which is 0, 1, 2 and so on. The
            key of the earliest timer is the first. Pass it, or some of its rows, to ``getMany``,
            ``updateMany``, ``registerTimers`` and so on.
        timers : pyarrow.Table
            A row per timer, in the order of the keys, and the earlier timer of a key first.
            ``time_ms`` is its time in milliseconds since 1970, ``key_position`` says to which key
            of `keys` it belongs.
        timerValues : TimerValues
            The epoch's times.

        Returns
        -------
        iterable of pyarrow.Table or None
            The output, with the columns of ``outputStructType``; other columns are left out.

        Examples
        --------
        >>> class Reminders(ckpt.ArrowProcessor):
        ...     def init(self, handle):
        ...         self.handle = handle
        ...
        ...     def handleInputArrow(self, keys, rows, timerValues):
        ...         now_ms = timerValues.getCurrentProcessingTimeInMs()
        ...         self.handle.registerTimers(keys, [now_ms + 60_000] * len(keys))
        ...
        ...     def handleExpiredTimers(self, keys, timers, timerValues):
        ...         yield keys
        ...
        ...     def close(self): ...
        """
        raise NotImplementedError("it is called only if a processor overrides it")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Not called: rows come to :meth:`handleInputArrow`."""
        raise NotImplementedError("an ArrowProcessor gets its rows in handleInputArrow")


class ArrowOutput:
    """Tables that the processor has yielded; columns by name."""

    def __init__(self, output_rows: OutputRows) -> None:
        self._schema = output_rows
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0  # of all calls since rows were taken
        self.rows = 0

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        rest = self.fill(output)
        while rest is not None:
            rest = self.fill(rest)

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add what one call of the processor yields, until as much is there as leaves at once."""
        if output is None:
            return None
        if isinstance(output, pa.Table | pa.RecordBatch):
            raise StateValueError(
                f"{self._schema.where}: the processor returned a table: yield it, or return a list "
                "of tables"
            )
        full = self.rows + CHUNK_ROWS
        rest = output if isinstance(output, _Pieces) else _Pieces(output)
        for table in rest:
            batch = self._batch(table)
            if batch.num_rows:
                self._batches.append(batch)
                self.rows += batch.num_rows
                self._size_bytes += batch.nbytes
            if self.rows >= full or self._size_bytes >= PIECE_BYTES:
                return rest
        return None

    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""
        while self.rows > rows:
            batch = self._batches.pop()
            self.rows -= batch.num_rows
            self._size_bytes -= batch.nbytes

    def take(self) -> pa.RecordBatch:
        """Return the rows in the sent schema, and empty the buffer."""
        batches, self._batches, self.rows = self._batches, [], 0
        self._size_bytes = 0
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches, self._schema.arrow_schema)
        return self._schema.batch_of([whole(column) for column in table.columns])

    def _batch(self, table: Any) -> pa.RecordBatch:
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise StateValueError(
                f"{self._schema.where}: the processor yielded {type(table).__name__}: yield Arrow "
                "tables"
            )
        names = self._schema.schema.names
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise StateValueError(
                f"{self._schema.where}: a yielded table has the columns {table.column_names} and "
                f"lacks {missing} of its outputStructType"
            )
        return self._schema.batch_of(
            [self._column(field, table.column(field.name)) for field in self._schema.schema.fields]
        )

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


class _Pieces(Iterator[Any]):
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


class ArrowPart:
    """A part of an epoch that the processor gets in one call."""

    def __init__(self, columns: InputColumns, batches: SentRows) -> None:
        self._columns = columns
        self._keyed = keyed_rows(columns, batches)

    @cached_property
    def stored(self) -> PartKeys:
        """Key group and encoded key of each key."""
        return self._keyed.stored

    @cached_property
    def keys(self) -> list[Key]:
        """The keys as the processor sees them."""
        return user_keys(self._columns, self._keyed)

    def process(
        self,
        processor: Any,
        position: int,  # noqa: ARG002
        timer_values: TimerValues,
    ) -> Iterable[Any] | None:
        """Have the processor handle all keys of the part; the position has no effect."""
        numbers = np.arange(len(self.stored))
        of_rows = np.repeat(numbers, np.diff(self._keyed.bounds))
        keys = self._columns.arrow_keys(self._keyed.first)
        rows = self._columns.arrow_rows(self._keyed.sent)
        output: Iterable[Any] | None = processor.handleInputArrow(
            keys.append_column(KEY_POSITION, pa.array(numbers)),
            rows.append_column(KEY_POSITION, pa.array(of_rows)),
            timer_values,
        )
        return output

    def sent_rows(self, position: int) -> Any:  # noqa: ARG002
        """Return all rows of the part as they were sent; the position has no effect."""
        return self._keyed.sent

    def initial_states(self, position: int) -> Iterator[Any]:
        """Return what ``handleInitialState`` gets for a key: its rows in one table."""
        start, stop = self._keyed.bounds[position], self._keyed.bounds[position + 1]
        yield self._columns.arrow_rows(self._keyed.sent.slice(start, stop - start))

    def newest_event_time_ms(self, position: int) -> int | None:  # noqa: ARG002
        """Return the newest event time of the part, ``None`` without one."""
        sent = self._keyed.sent
        return self._columns.newest_times_ms(sent, [0, len(sent)])[0]


class ArrowInput:
    """All keys of a part in one call, Arrow tables out."""

    method = "handleInputArrow"
    form = RowForm.ARROW
    calls_once_per_part = True

    def __init__(self, input_columns: InputColumns, output_rows: OutputRows) -> None:
        self.columns = input_columns
        self.output_rows = output_rows

    def part(self, batches: SentRows) -> ArrowPart:
        """Return a part of an epoch's rows by their keys."""
        return ArrowPart(self.columns, batches)

    def timer_tables(
        self, keys: Sequence[bytes], times_ms: Sequence[Sequence[int]]
    ) -> tuple[pa.Table, pa.Table]:
        """Return what ``handleExpiredTimers`` gets: the keys, and their timers.

        `keys` are in their stored form, and `times_ms` has the due timers of each key, aligned with
        `keys`.
        """
        numbers = np.arange(len(keys))
        of_timers = np.repeat(numbers, list(map(len, times_ms)))
        its_times = pa.array(chain.from_iterable(times_ms), pa.int64())
        return (
            self.columns.arrow_stored_keys(keys).append_column(KEY_POSITION, pa.array(numbers)),
            pa.table({KEY_POSITION: of_timers, TIME_MS: its_times}),
        )

    def new_output(self) -> ArrowOutput:
        """Return an empty buffer for the epoch's output."""
        return ArrowOutput(self.output_rows)


def timer_tables_of(
    mode: InputMode, processor: StatefulProcessor
) -> Callable[[Sequence[bytes], Sequence[Sequence[int]]], tuple[pa.Table, pa.Table]] | None:
    """Return what makes the tables of ``handleExpiredTimers``.

    Returns ``None`` if the processor gets a separate call for each timer.
    """
    if not isinstance(mode, ArrowInput) or not isinstance(processor, ArrowProcessor):
        return None
    is_own = type(processor).handleExpiredTimers is not ArrowProcessor.handleExpiredTimers
    return mode.timer_tables if is_own else None
