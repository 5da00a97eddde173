"""Windows that roll with the rows of a key: its last rows, or those of the time before a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.combine.combination import Aggregates
from pyspark_ckpt.operator.modes.processors import ArrowProcessor
from pyspark_ckpt.operator.table.keys import KEY_POSITION, Numbers
from pyspark_ckpt.operators.kept_rows import KeptRows
from pyspark_ckpt.operators.row_order import in_order
from pyspark_ckpt.operators.stream_columns import StreamColumns, bounds_of_keys
from pyspark_ckpt.values.given import whole

_PLACE = "__ckpt_place"
_WINDOW = "__ckpt_window"
_ROWS_AT_ONCE = 1 << 20
"""Rows of windows that are in memory at once: each row of the input is in several windows."""


class RollingWindows(ArrowProcessor):
    """Emit each row with aggregates of the window that ends with it.

    The window has the last `rows` rows of the key, or those with a time in the last `within_us`
    microseconds. `different` maps columns of the output to columns whose different values are
    counted.
    """

    def __init__(
        self,
        columns: StreamColumns,
        by: T.StructField,
        aggregates: Aggregates | None,
        different: Mapping[str, str],
        rows: int | None,
        within_us: int | None,
        ttl: Any,
    ) -> None:
        self._columns = columns
        self._by = by
        self._aggregates = aggregates
        self._different = dict(different)
        self._rows = rows
        self._within_us = within_us
        self._ttl = ttl
        read = {} if aggregates is None else aggregates.inputs
        names = dict.fromkeys([by.name, *read, *self._different.values()])
        fields = {field.name: field for field in (*columns.keys, *columns.others)}
        self._fields = [fields[name] for name in names]

    def init(self, handle: Any) -> None:
        """Open the state."""
        self._kept = KeptRows(handle, "rows", self._fields, self._ttl)

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        """Yield each row with its aggregates, by key and in the order of the rows."""
        del timerValues
        rows = in_order(rows, self._by)
        new = self._with_keys(keys, rows).select(self._kept.names)
        new = new.append_column(_PLACE, pa.array(np.arange(len(rows))))
        kept = self._kept.of(keys)
        kept = kept.append_column(_PLACE, pa.array(np.full(len(kept), -1)))
        every = pa.concat_tables([kept, new])
        if self._within_us is None:
            every = every.sort_by(KEY_POSITION)
        else:
            every = in_order(every, self._by)
        firsts = self._first_rows(every)
        places = every.column(_PLACE).to_numpy()
        ends = np.flatnonzero(places >= 0)
        ends = ends[np.argsort(places[ends])]
        more = [self._aggregated(every, firsts, some) for some in _parts(firsts, ends)]
        self._kept.put(keys, every.filter(pa.array(self._is_kept(every))))
        yield self._columns.output(keys, rows, pa.concat_tables(more))

    def close(self) -> None:
        """Close nothing."""

    def _with_keys(self, keys: pa.Table, rows: pa.Table) -> pa.Table:
        """Return rows that have the columns of their key, which may be key expressions."""
        for field in self._columns.keys:
            if field.name not in rows.column_names:
                column = keys.column(field.name).take(rows.column(KEY_POSITION))
                rows = rows.append_column(field.name, column)
        return rows

    def _first_rows(self, every: pa.Table) -> Numbers:
        """Return the place of the first row in the window of each row."""
        bounds = bounds_of_keys(every)
        places = np.arange(len(every))
        if self._rows is not None:
            begins = np.repeat(bounds[:-1], np.diff(bounds))
            last: Numbers = np.maximum(begins, places - self._rows + 1)
            return last
        times, has_time = self._times_us(every)
        firsts: Numbers = places.copy()
        for start, stop in pairwise(bounds.tolist()):
            timed = start + int(np.count_nonzero(~has_time[start:stop]))  # nulls come first
            of_key = times[timed:stop]
            firsts[timed:stop] = timed + np.searchsorted(of_key, of_key - self._within_us, "right")
        return firsts

    def _is_kept(self, every: pa.Table) -> Numbers:
        """Return which rows may be in the window of a later row."""
        bounds = bounds_of_keys(every)
        counts = np.diff(bounds)
        is_kept: Numbers
        if self._rows is not None:
            is_kept = np.repeat(bounds[1:], counts) - np.arange(len(every)) < self._rows
        else:
            times, has_time = self._times_us(every)
            newest = np.repeat(times[bounds[1:] - 1], counts)
            is_kept = has_time & (times > newest - self._within_us)
        return is_kept

    def _times_us(self, every: pa.Table) -> tuple[Numbers, Numbers]:
        column = whole(every.column(self._by.name))
        return column.cast(pa.int64()).fill_null(0).to_numpy(), column.is_valid().to_numpy(False)  # noqa: FBT003

    def _aggregated(self, every: pa.Table, firsts: Numbers, ends: Numbers) -> pa.Table:
        """Return the aggregates of the windows that end with some rows."""
        sizes = ends - firsts[ends] + 1
        before = np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = np.arange(sizes.sum()) - before + np.repeat(firsts[ends], sizes)
        windows = np.repeat(np.arange(len(ends)), sizes)
        rows = every.take(places).append_column(_WINDOW, pa.array(windows))
        found = {}
        if self._aggregates is not None:
            inputs = self._aggregates.inputs
            given = pa.table(
                {_WINDOW: windows, **{inputs[name]: rows.column(name) for name in inputs}}
            )
            partials = self._aggregates.partials(given, [_WINDOW])
            merged = self._aggregates.merge(partials, [_WINDOW])
            found = {name: merged.column(name) for name in merged.column_names if name != _WINDOW}
        for name, column in self._different.items():
            given = pa.table({_WINDOW: windows, "value": rows.column(column)})
            counted = given.group_by(_WINDOW, use_threads=False).aggregate(
                [("value", "count_distinct", pc.CountOptions("only_valid"))]
            )
            found[name] = counted.column("value_count_distinct")
        return pa.table(found)


def _parts(firsts: Numbers, ends: Numbers) -> list[Numbers]:
    """Cut rows into parts whose windows are in memory together."""
    sizes = np.cumsum(ends - firsts[ends] + 1)
    cuts = np.searchsorted(sizes, np.arange(_ROWS_AT_ONCE, sizes[-1], _ROWS_AT_ONCE))
    return [some for some in np.split(ends, np.unique(cuts)) if len(some)]
