"""What is combined: declared aggregates, or a function of the user over Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.combine.aggregates import Aggregate
from pyspark_ckpt.combine.merging import Merged, SumTooLargeError, first_mark, merged
from pyspark_ckpt.combine.rules import MERGES, Merge, needs_order, partial_values, result_type
from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.operator.values.arrow_forms import cast, whole
from pyspark_ckpt.operator.values.arrow_values import arrow_type

INPUT = "__ckpt_input_"
"""Begins the names of the columns that aggregates read, so that none is the name of a key."""

CombineFunction = Callable[[pa.Table, list[str]], pa.Table]
"""A user's function from partial rows, and the names of the key columns, to one row per key."""


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
                "pyspark_ckpt.Count(), Sum, Min, Max, First, Last or CollectList"
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
