"""What is combined: declared aggregates, or a function of the user; and partial values merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.combine.aggregates import (
    MERGES,
    Aggregate,
    Merge,
    needs_order,
    partial_values,
    result_type,
)
from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.operator.schema.evolution import FIRST_MARK
from pyspark_ckpt.values.arrow import arrow_type
from pyspark_ckpt.values.given import cast, whole
from pyspark_ckpt.values.types import Order, leaf_of

INPUT = "__ckpt_input_"
"""Begins the names of the columns that aggregates read, so that none is the name of a key."""

CombineFunction = Callable[[pa.Table, list[str]], pa.Table]
"""A user's function from partial rows, and the names of the key columns, to one row per key."""

_LONG_BITS = 63
_DIGITS = 38
_ROW = "__ckpt_row"


class Combination(Protocol):
    """Turns rows into partial rows, and merges partial rows until there is one per key."""

    @property
    def schema(self) -> T.StructType:
        """The columns of partial rows, without the keys; they are also the results."""

    @property
    def first_marks(self) -> Sequence[str]:
        """The columns of partial rows in which the state keeps that a first value is there."""

    def partials(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return a partial row for each row: the keys and the columns of the schema."""

    def merge(self, partials: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return one partial row per key; of one key the earlier rows come first."""

    def merge_some(self, partials: pa.Table, keys: Sequence[str]) -> pa.Table | None:
        """Return :meth:`merge` of some of the rows, ``None`` if only all together may fit."""


class Aggregates:
    """Declared aggregates."""

    def __init__(self, aggregates: Mapping[str, Aggregate], rows: T.StructType, where: str) -> None:
        self._aggregates = [_Column.of(name, one, rows, where) for name, one in aggregates.items()]
        if not self._aggregates:
            raise PlanError(f"{where}: there is no aggregate: give at least one")
        self._merged = [
            Merged(one.name, MERGES[type(one.aggregate)], one.data_type, where)
            for one in self._aggregates
        ]
        read = [one.aggregate.column for one in self._aggregates]
        self.inputs = {name: f"{INPUT}{n}" for n, name in enumerate(dict.fromkeys(read)) if name}

    @property
    def schema(self) -> T.StructType:
        """The results."""
        return T.StructType([T.StructField(one.name, one.data_type) for one in self._aggregates])

    @property
    def needs_order(self) -> bool:
        """Whether a result may depend on the order in which rows are taken."""
        return any(needs_order(one.aggregate, one.data_type) for one in self._aggregates)

    @property
    def first_marks(self) -> Sequence[str]:
        """One for each :class:`First`."""
        return [first_mark(one.name) for one in self._merged if one.merge is Merge.FIRST]

    def partials(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return a partial row for each row."""
        nothing = pa.array(np.zeros(len(rows), np.bool_))
        columns = []
        for one in self._aggregates:
            column = one.aggregate.column
            values = nothing if column is None else whole(rows.column(self.inputs[column]))
            columns.append(partial_values(one.aggregate, values, one.data_type))
        names = [*keys, *(one.name for one in self._aggregates)]
        return pa.Table.from_arrays([*(rows.column(key) for key in keys), *columns], names=names)

    def merge(self, partials: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return one partial row per key."""
        try:
            return merged(partials, keys, self._merged)
        except SumTooLargeError as exc:
            raise StateValueError(str(exc)) from exc

    def merge_some(self, partials: pa.Table, keys: Sequence[str]) -> pa.Table | None:
        """Return one partial row per key, ``None`` if a sum does not fit its type."""
        try:
            return merged(partials, keys, self._merged)
        except SumTooLargeError:
            return None


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    aggregate: Aggregate
    data_type: T.DataType

    @classmethod
    def of(cls, name: str, aggregate: Any, rows: T.StructType, where: str) -> _Column:
        if type(aggregate) not in MERGES:
            raise PlanError(
                f"{where}: the aggregate {name!r} is {type(aggregate).__name__}: give "
                "pyspark_ckpt.agg.Count(), Sum, Min, Max, First, Last or CollectList"
            )
        data_type: T.DataType = T.NullType()
        if aggregate.column is not None:
            if aggregate.column not in rows.names:
                raise PlanError(
                    f"{where}: the aggregate {name!r} reads the column {aggregate.column!r}, which "
                    f"is none of {rows.names}"
                )
            data_type = rows[aggregate.column].dataType
        return cls(name, aggregate, result_type(aggregate, data_type, where))


class FunctionOverTables:
    """A user's function, which merges partial rows; the rows of the stream are partial rows."""

    needs_order = False
    first_marks: Sequence[str] = ()

    def __init__(self, function: CombineFunction, schema: T.StructType, where: str) -> None:
        self.function = function
        self.schema = schema
        self.inputs = {name: f"{INPUT}{n}" for n, name in enumerate(schema.names)}
        self._where = where

    def partials(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return the rows."""
        columns = [
            rows.column(self.inputs[field.name]).cast(arrow_type(field.dataType))
            for field in self.schema.fields
        ]
        names = [*keys, *self.schema.names]
        return pa.Table.from_arrays([*(rows.column(key) for key in keys), *columns], names=names)

    def merge(self, partials: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return what the function makes of partial rows."""
        found = self.function(partials, list(keys))
        if not isinstance(found, pa.Table):
            raise StateValueError(
                f"{self._where}: the combine function returned {type(found).__name__}: return an "
                "Arrow table"
            )
        missing = [n for n in (*keys, *self.schema.names) if n not in found.column_names]
        if missing:
            raise StateValueError(
                f"{self._where}: the combine function returned the columns {found.column_names}, "
                f"which lack {missing}"
            )
        columns = [
            self._cast(found.column(name), partials.schema.field(name).type, name)
            for name in (*keys, *self.schema.names)
        ]
        table = pa.Table.from_arrays(columns, names=[*keys, *self.schema.names])
        self._check_keys(partials, table, keys)
        return table

    def merge_some(self, partials: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return :meth:`merge`: what fits is the function's own matter."""
        return self.merge(partials, keys)

    def _cast(self, column: pa.ChunkedArray, wanted: pa.DataType, name: str) -> pa.ChunkedArray:
        try:
            return cast(column, wanted)
        except pa.ArrowException as exc:
            raise StateValueError(
                f"{self._where}: the combine function returned {column.type} for the column "
                f"{name!r}, which is {wanted} ({exc}); cast it"
            ) from exc

    def _check_keys(self, partials: pa.Table, table: pa.Table, keys: Sequence[str]) -> None:
        before, after = _different(partials, keys), _different(table, keys)
        if len(after) != len(table) or len(before) != len(after):
            raise StateValueError(
                f"{self._where}: the combine function returned {len(table)} rows with {len(after)} "
                f"different keys for {len(before)} keys: return one row per key, as "
                "table.group_by(keys).aggregate(...) does"
            )
        added = len(_different(pa.concat_tables([before, after]), keys)) - len(before)
        if added:
            raise StateValueError(
                f"{self._where}: the combine function returned {added} of {len(after)} keys "
                f"changed: leave the columns {list(keys)} as they are, as "
                "table.group_by(keys).aggregate(...) does"
            )


def _different(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    return table.select(list(keys)).group_by(list(keys), use_threads=False).aggregate([])


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
    steps = [
        _STEPS[column.merge](column, table, f"__ckpt_{place}")
        for place, column in enumerate(columns)
    ]
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
        if leaf_of(column.data_type).order is Order.RANKED:
            self._sorted, ranks = ranked(self.values)
            self.given = {name: ranks}
        self.wanted = [(name, self._function)]

    def result(self, grouped: pa.Table) -> pa.Array:
        found = grouped.column(f"{self.name}_{self._function}")
        if self._sorted is None:
            return found.cast(self.type)
        return self._sorted.take(whole(found))


def ranked(values: pa.Array) -> tuple[pa.Array, pa.Array]:
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
    """The lists of a key, one after the other."""

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
