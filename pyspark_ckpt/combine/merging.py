"""Partial values of many keys merged into one row per key, a column at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.combine.rules import Merge
from pyspark_ckpt.operator.schema.evolution import FIRST_MARK
from pyspark_ckpt.operator.values.arrow_forms import whole
from pyspark_ckpt.operator.values.arrow_values import arrow_type

_LONG_BITS = 63
_DIGITS = 38
_ROW = "__ckpt_row"
_RANKED = (T.FloatType, T.DoubleType, T.StringType, T.BinaryType)
"""Types that Arrow's own least and greatest do not know, or order in another way than Spark."""


def first_mark(name: str) -> str:
    """Return the column that says which partial rows have a first value, which may be null.

    State of a time before the aggregate was added has none. A table without the column has a value
    in each row.
    """
    return f"{FIRST_MARK}{name}"


class SumTooLargeError(Exception):
    """A sum does not fit its type; the sum of more rows may fit it again."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A column of partial values."""

    name: str
    merge: Merge
    data_type: T.DataType
    where: str


def merged(table: pa.Table, keys: Sequence[str], columns: Sequence[Merged]) -> pa.Table:
    """Return one row per key, in the order in which the keys come first.

    In `table`, earlier rows of a key must come first. It may also have columns of
    :func:`first_mark`.
    """
    steps = [_step(column, table, f"__ckpt_{place}") for place, column in enumerate(columns)]
    given = {name: array for step in steps for name, array in step.given.items()}
    wanted = list(dict.fromkeys(one for step in steps for one in step.wanted))
    numbered = pa.table(
        [
            *(table.column(name) for name in keys),
            pa.array(np.arange(len(table))),
            *given.values(),
        ],
        names=[*keys, _ROW, *given],
    )
    grouped = numbered.group_by(list(keys), use_threads=False).aggregate(wanted)
    found = [step.result(grouped) for step in steps]
    arrays = [*(grouped.column(name) for name in keys), *found]
    return pa.Table.from_arrays(arrays, names=[*keys, *(column.name for column in columns)])


class _Step:
    """What one column gives to the grouping, and what it makes of its result.

    `given` are columns, and `wanted` are aggregations of them.
    """

    def __init__(self, column: Merged, table: pa.Table, name: str) -> None:
        self.column = column
        self.name = name  # of no key
        self.type = arrow_type(column.data_type)
        self.values = whole(table.column(column.name).cast(self.type))
        self.given: dict[str, pa.Array] = {name: self.values}
        self.wanted: list[tuple[Any, ...]] = []

    def result(self, grouped: pa.Table) -> pa.Array:
        """Return the merged values."""
        raise NotImplementedError


class _Sum(_Step):
    """Arrow adds without a look at what fits: where it might not, Python adds."""

    def __init__(self, column: Merged, table: pa.Table, name: str) -> None:
        super().__init__(column, table, name)
        self._fits = pa.types.is_floating(self.type) or _all_sums_fit(self.values)
        self.wanted = [(name, "sum") if self._fits else (_ROW, "list")]

    def result(self, grouped: pa.Table) -> pa.Array:
        try:
            if self._fits:
                return grouped.column(f"{self.name}_sum").cast(self.type)
            return pa.array(self._added(grouped.column(f"{_ROW}_list")), self.type)
        except (pa.ArrowInvalid, OverflowError) as exc:
            data_type = self.column.data_type.simpleString()
            raise SumTooLargeError(
                f"{self.column.where}: the sum {self.column.name!r} of a key does not fit "
                f"{data_type}: cast the column to a decimal or a double"
            ) from exc

    def _added(self, rows_of_keys: pa.ChunkedArray) -> list[Any]:
        values = self.values.to_pylist()
        known = [
            [v for row in rows if (v := values[row]) is not None]
            for rows in rows_of_keys.to_pylist()
        ]
        with localcontext() as context:
            context.prec = 2 * _DIGITS
            return [sum(each) if each else None for each in known]


def _all_sums_fit(values: pa.Array) -> bool:
    """Return whether no sum of some of these numbers can be too large."""
    bounds = pc.min_max(values).as_py()
    largest = max((abs(bound) for bound in bounds.values() if bound is not None), default=0)
    if pa.types.is_decimal(values.type):
        most: int = 10 ** (_DIGITS - values.type.scale)
        return int(largest) * len(values) + len(values) < most
    return bool(largest * len(values) < 1 << _LONG_BITS)


class _Extreme(_Step):
    def __init__(self, column: Merged, table: pa.Table, name: str) -> None:
        super().__init__(column, table, name)
        self._function = "min" if column.merge is Merge.MIN else "max"
        self._sorted: pa.Array | None = None
        if isinstance(column.data_type, _RANKED):
            self._sorted, ranks = _ranked(self.values)
            self.given = {name: ranks}
        self.wanted = [(name, self._function)]

    def result(self, grouped: pa.Table) -> pa.Array:
        found = grouped.column(f"{self.name}_{self._function}")
        if self._sorted is None:
            return found.cast(self.type)
        return self._sorted.take(whole(found))


def _ranked(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the different values in Spark's order, and the place of each value among them."""
    if pa.types.is_floating(values.type):
        # Spark takes -0.0 for 0.0, and all NaN for one.
        values = pc.if_else(pc.is_nan(values), float("nan"), pc.add(values, 0.0)).cast(values.type)
    encoded = values.dictionary_encode()
    different = encoded.dictionary
    order = pc.array_sort_indices(different)  # NaN comes last
    rank = np.empty(len(different), np.int64)
    rank[order.to_numpy()] = np.arange(len(different))
    return different.take(order), pa.array(rank).take(encoded.indices)


class _First(_Step):
    """The value of the first row that has one; a null is one, too."""

    def __init__(self, column: Merged, table: pa.Table, name: str) -> None:
        super().__init__(column, table, name)
        rows = pa.array(np.arange(len(table)))
        mark = first_mark(column.name)
        if mark in table.column_names:
            rows = pc.if_else(whole(table.column(mark)), rows, None)  # null without a mark, too
        self.given = {name: rows}
        self.wanted = [(name, "min")]

    def result(self, grouped: pa.Table) -> pa.Array:
        return self.values.take(whole(grouped.column(f"{self.name}_min")))


class _Last(_Step):
    """The value of the last row."""

    def __init__(self, column: Merged, table: pa.Table, name: str) -> None:
        super().__init__(column, table, name)
        self.given = {}
        self.wanted = [(_ROW, "max")]

    def result(self, grouped: pa.Table) -> pa.Array:
        return self.values.take(whole(grouped.column(f"{_ROW}_max")))


class _List(_Step):
    """Lists of a key behind each other."""

    def __init__(self, column: Merged, table: pa.Table, name: str) -> None:
        super().__init__(column, table, name)
        self.given = {}
        self.wanted = [(_ROW, "list")]

    def result(self, grouped: pa.Table) -> pa.Array:
        rows = whole(grouped.column(f"{_ROW}_list"))
        lists = self.values.take(rows.flatten())
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        ends = np.concatenate([[0], np.cumsum(lengths)])
        of_keys = np.concatenate([[0], np.cumsum(pc.list_value_length(rows).to_numpy())])
        offsets = pa.array(ends[of_keys].astype(np.int32))
        return pa.ListArray.from_arrays(offsets, lists.flatten(), type=self.type)


_STEPS: dict[Merge, type[_Step]] = {
    Merge.SUM: _Sum,
    Merge.MIN: _Extreme,
    Merge.MAX: _Extreme,
    Merge.FIRST: _First,
    Merge.LAST: _Last,
    Merge.LIST: _List,
}


def _step(column: Merged, table: pa.Table, name: str) -> _Step:
    return _STEPS[column.merge](column, table, name)
