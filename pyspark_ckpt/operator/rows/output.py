"""Output rows as they leave the operator: record batches in Spark's own Arrow types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, StateValueError
from pyspark_ckpt.operator.time import emitted_event_time
from pyspark_ckpt.values.arrow import arrow_type, viewed
from pyspark_ckpt.values.given import values_column
from pyspark_ckpt.values.plain import check_names
from pyspark_ckpt.values.spark import restored, sent_type
from pyspark_ckpt.values.time_zones import python_zone
from pyspark_ckpt.values.types import find_leaf
from pyspark_ckpt.values.words import shown

CHUNK_ROWS = 16_384
"""Rows per batch: above the 10,000 rows at which PySpark's worker sends a frame on at once."""

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)
"""What the writers of values raise for one that does not fit."""


class OutputRows:
    """The output schema of an operator, in the plan and on the executor.

    Frames have their times in `time_zone`, by default in the zone of the process. With
    `coerces_integers`, pandas integers may become decimals that do not have room for all integers
    of their kind.
    """

    def __init__(
        self,
        schema: T.StructType,
        uid: str,
        *,
        coerces_integers: bool = False,
        time_zone: str | None = None,
    ) -> None:
        self.schema = schema
        self.coerces_integers = coerces_integers
        self.time_zone = None if time_zone is None else python_zone(time_zone)
        self._uid = uid
        self._known_kinds: set[tuple[str, ...]] = set()
        self._types = [self._arrow_type(field) for field in schema.fields]
        self.arrow_schema = pa.schema(
            [(f"c{index}", kind) for index, kind in enumerate(self._types)]
        )
        """The sent schema in Arrow."""

    @property
    def sent_schema(self) -> T.StructType:
        """The schema in which rows leave the Python function."""
        return T.StructType(
            [
                T.StructField(f"c{index}", sent_type(field.dataType))
                for index, field in enumerate(self.schema.fields)
            ]
        )

    def columns(self, event_time: str, delay_ms: int) -> list[Column]:
        """Return the expressions that give the user's columns back.

        `event_time` is empty if Spark shall take no column for event time from here on.
        """
        emitted = emitted_event_time(delay_ms)
        return [
            restored(field.dataType, F.col(f"c{index}")).alias(
                field.name, metadata=emitted if field.name == event_time else {}
            )
            for index, field in enumerate(self.schema.fields)
        ]

    def batch_of(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return columns of :meth:`column` and :meth:`numbers` as a batch in the sent schema."""
        # A struct with two fields of one name travels with other names.
        arrays = list(map(viewed, columns, self._types))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Return rows as a batch in the sent schema."""
        width = len(self.schema.fields)
        # Row by row only where something is wrong: most rows of an epoch go through here.
        if not all(issubclass(kind, tuple) for kind in set(map(type, rows))):
            place = next(n for n, row in enumerate(rows) if not isinstance(row, tuple))
            kind = type(rows[place]).__name__
            raise self._misfit(f" returned {kind}: yield pyspark.sql.Row", place)
        ordered = self._ordered(rows)
        if not set(map(len, ordered)) <= {width}:
            place = next(n for n, values in enumerate(ordered) if len(values) != width)
            raise self._misfit(
                f" returned a row that has not the {width} columns of its outputStructType "
                f"{self.schema.simpleString()}: {shown(rows[place])}",
                place,
            )
        columns = zip(*ordered, strict=True) if ordered else [()] * width
        return self.batch_of(
            [
                self.column(field, values)
                for field, values in zip(self.schema.fields, columns, strict=True)
            ]
        )

    @property
    def where(self) -> str:
        """The operator, for errors."""
        return f"operator {self._uid!r}"

    def column(self, field: T.StructField, values: Sequence[Any]) -> pa.Array:
        """Return Python values of one output column in its sent type."""
        try:
            return _column(field.dataType, values)
        except _MISFITS as exc:
            place, reason = _first_misfit(
                [partial(_column, field.dataType, [value]) for value in values], exc
            )
            raise self._not_of_type(field, values[place], reason, place) from reason

    def numbers(
        self,
        field: T.StructField,
        values: np.ndarray[Any, Any],
    ) -> pa.Array:
        """Return the numbers of one output column in its sent type; NaN is null, as in pandas."""
        kind = arrow_type(field.dataType)
        try:
            return _numbers(values, kind)
        except pa.ArrowException as exc:
            place, reason = _first_misfit(
                [partial(_numbers, values[n : n + 1], kind) for n in range(len(values))], exc
            )
            value = values[place].item()
            raise self._not_of_type(field, value, reason, place) from reason

    def in_order(self, row: Any) -> Sequence[Any]:
        """Return a row's values in schema order.

        Named rows are matched by name as in PySpark: what is missing is null, what is too much is
        left out.
        """
        fields = getattr(row, "__fields__", None) if isinstance(row, Row) else None
        if fields is None or fields == self.schema.names:
            values: Sequence[Any] = row
            return values
        kind = tuple(fields)
        if kind not in self._known_kinds:
            self._check_names(row, kind)
            self._known_kinds.add(kind)
        by_name = dict(zip(fields, row, strict=True))
        return [by_name.get(name) for name in self.schema.names]

    def _ordered(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the values of each row in schema order; most rows are in that order."""
        kinds = set(map(type, rows))
        if kinds == {tuple}:
            return rows
        try:
            fields = [row.__fields__ for row in rows] if kinds == {Row} else []
        except AttributeError:  # a Row without names
            fields = []
        if fields and fields.count(self.schema.names) == len(rows):
            return rows
        ordered: list[Sequence[Any]] = []
        try:
            ordered.extend(map(self.in_order, rows))
        except StateValueError as exc:
            exc.row = len(ordered)
            raise
        return ordered

    def _check_names(self, row: Row, fields: tuple[str, ...]) -> None:
        try:
            check_names(fields, self.schema.names)
        except ValueError as exc:
            raise self._misfit(
                f" returned {shown(row)}, which does not fit its outputStructType "
                f"{self.schema.simpleString()}: {exc}; correct the name"
            ) from None

    def _not_of_type(
        self,
        field: T.StructField,
        value: Any,
        reason: Exception,
        row: int,
    ) -> StateValueError:
        what = f": output column {field.name!r} is {field.dataType.simpleString()}, the returned "
        return self._misfit(f"{what}value {shown(value)} is not ({reason})", row)

    def check_room(self, field: T.StructField, digits: int, value: object) -> None:
        """Refuse pandas integers for a decimal without room for all of them, as PySpark does."""
        data_type = field.dataType
        assert isinstance(data_type, T.DecimalType)
        if self.coerces_integers or data_type.precision - data_type.scale >= digits:
            return
        raise self._misfit(
            f": Failed to convert the value of the column {field.name!r} of the output, "
            f"{shown(value)}, to {data_type.simpleString()}, which has no room for all integers of "
            "the column's dtype; yield decimal.Decimal, or set "
            "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled to true",
            0,
        )

    def _misfit(self, reason: str, row: int | None = None) -> StateValueError:
        error: StateValueError = StateValueError(f"{self.where}{reason}")
        error.row = row
        return error

    def _arrow_type(self, field: T.StructField) -> pa.DataType:
        try:
            return arrow_type(sent_type(field.dataType))
        except NotBuiltYetError as exc:
            raise NotBuiltYetError(
                f"operator {self._uid!r}: output column {field.name!r}: {exc}; give it another type"
            ) from None


def _first_misfit(
    conversions: Sequence[Callable[[], object]], of_all: Exception
) -> tuple[int, Exception]:
    """Return the first value that cannot be converted by itself, and why."""
    for place, convert in enumerate(conversions):
        error = _error_of(convert)
        if error is not None:
            return place, error
    return 0, of_all  # they do not fit together, which no type of a column asks for


def _error_of(convert: Callable[[], object]) -> Exception | None:
    try:
        convert()
    except _MISFITS as exc:
        return exc
    return None


def _numbers(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    nulls = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    return pa.array(values, mask=nulls).cast(kind)


def _column(data_type: T.DataType, values: Sequence[Any]) -> pa.Array:
    """Return the values that users give for a type as a column."""
    row = find_leaf(data_type)
    if row is None or row.plain is tuple:
        return values_column(data_type, values)
    if {*map(type, values)} - {type(None)} <= row.in_columns:
        return pa.array(values, arrow_type(data_type))
    is_time = pa.types.is_temporal(arrow_type(data_type))
    take = row.write(data_type) if is_time and row.write else row.take
    return pa.array([None if one is None else take(one) for one in values], arrow_type(data_type))
