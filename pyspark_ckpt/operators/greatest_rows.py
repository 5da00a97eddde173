"""The rows of each key that are the greatest by a column: the last value, and the top n."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.modes.processors import ArrowProcessor
from pyspark_ckpt.operator.table.keys import KEY_POSITION
from pyspark_ckpt.operators.kept_rows import KeptRows
from pyspark_ckpt.operators.row_order import in_order
from pyspark_ckpt.operators.stream_columns import StreamColumns, bounds_of_keys

_IS_NEW = "__ckpt_is_new"


class GreatestRows(ArrowProcessor):
    """Keep `n` rows of each key, the greatest first; emit those of the keys where one is new.

    Of equal rows the later one counts as greater if `later_wins`. Without `by` the order is that in
    which the rows come. `rank` names the column with the place of a row, from 1; it may be empty.
    """

    def __init__(
        self,
        columns: StreamColumns,
        by: T.StructField | None,
        n: int,
        rank: str,
        ttl: Any,
        *,
        descending: bool,
        later_wins: bool,
    ) -> None:
        self._columns = columns
        self._by = by
        self._n = n
        self._rank = rank
        self._ttl = ttl
        self._descending = descending
        self._later_wins = later_wins

    def init(self, handle: Any) -> None:
        """Open the state."""
        self._kept = KeptRows(handle, "rows", list(self._columns.others), self._ttl)

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        """Yield the rows of each key whose rows have changed."""
        del timerValues
        kept = _marked(self._kept.of(keys), is_new=False)
        new = _marked(rows.select(self._kept.names), is_new=True)
        both = [new, kept] if self._later_wins else [kept, new]
        if self._later_wins:
            both = [table.take(np.arange(len(table))[::-1]) for table in both]
        every = pa.concat_tables(both)
        if self._by is None:
            every = every.sort_by(KEY_POSITION)
        else:
            every = in_order(every, self._by, descending=self._descending)
        bounds = bounds_of_keys(every)
        place = np.arange(len(every)) - np.repeat(bounds[:-1], np.diff(bounds))
        is_kept = place < self._n
        greatest, place = every.filter(pa.array(is_kept)), place[is_kept]
        positions = greatest.column(KEY_POSITION).to_numpy()
        is_new = greatest.column(_IS_NEW).to_numpy()
        changed = np.zeros(len(keys), bool)
        changed[positions[is_new]] = True
        is_shown = pa.array(changed[positions])
        shown = greatest.filter(is_shown)
        self._kept.put(keys.filter(pa.array(changed)), shown)
        more = None
        if self._rank:
            more = pa.table({self._rank: pa.array(place + 1, pa.int32()).filter(is_shown)})
        yield self._columns.output(keys, shown, more)

    def close(self) -> None:
        """Close nothing."""


def _marked(rows: pa.Table, *, is_new: bool) -> pa.Table:
    return rows.append_column(_IS_NEW, pa.array(np.full(len(rows), is_new)))
