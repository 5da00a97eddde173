"""Output rows as they leave the operator: record batches, dates and times as integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from pyspark_ckpt.errors import NotBuiltYetError, StateValueError
from pyspark_ckpt.operator.task_failure import shown
from pyspark_ckpt.operator.time import emitted_event_time
from pyspark_ckpt.operator.values.json import JsonForm, json_writer
from pyspark_ckpt.operator.values.json_in_spark import from_travelling, travelling_type
from pyspark_ckpt.operator.values.leaves import OWN_KINDS, TEXTS, microseconds_of, taken
from pyspark_ckpt.operator.values.sent_columns import in_arrow
from pyspark_ckpt.operator.values.time_zones import python_zone
from pyspark_ckpt.operator.values.wire_form import check_names, wire_type

CHUNK_ROWS = 16_384
"""Rows per batch: above the 10,000 rows at which PySpark's worker sends a frame on at once."""

_ARROW: dict[type[T.DataType], pa.DataType] = {
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.BooleanType: pa.bool_(),
    **dict.fromkeys(TEXTS, pa.string()),
    T.BinaryType: pa.binary(),
    T.DateType: pa.int32(),
    T.TimestampType: pa.int64(),
    T.TimestampNTZType: pa.string(),
}
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)
"""What the writers of values raise for one that does not fit."""

_TIMES: dict[type[T.DataType], tuple[T.DataType, Callable[[Column], Column]]] = {
    T.DateType: (T.IntegerType(), F.date_from_unix_date),
    T.TimestampType: (T.LongType(), F.timestamp_micros),
    T.TimestampNTZType: (T.StringType(), lambda column: column.cast("timestamp_ntz")),
}
"""What dates and times are sent as, and what gives them back."""


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
        for field in schema.fields:
            if not _is_plain(field.dataType):
                self._check_built(field)

    @property
    def sent_schema(self) -> T.StructType:
        """The schema in which rows leave the Python function."""
        return T.StructType(
            [
                T.StructField(f"c{index}", _sent_type(field.dataType))
                for index, field in enumerate(self.schema.fields)
            ]
        )

    def columns(self, event_time: str, delay_ms: int) -> list[Column]:
        """Return the expressions that give the user's columns back.

        `event_time` is empty if Spark shall take no column for event time from here on.
        """
        emitted = emitted_event_time(delay_ms)
        return [
            _restored(field.dataType, F.col(f"c{index}")).alias(
                field.name, metadata=emitted if field.name == event_time else {}
            )
            for index, field in enumerate(self.schema.fields)
        ]

    @property
    def arrow_schema(self) -> pa.Schema:
        """The sent schema in Arrow."""
        return to_arrow_schema(self.sent_schema)

    def batch_of(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return columns of :meth:`column` and :meth:`numbers` as a batch in the sent schema."""
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

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
        return self._made_by(_column, field, values)

    def nested_column(self, field: T.StructField, values: Sequence[Any]) -> pa.Array:
        """Return plain values of an output column that travels as text, as :meth:`column` does."""
        return self._made_by(partial(_travelling, of_plain=True), field, values)

    def _made_by(
        self,
        make: Callable[[T.DataType, Sequence[Any]], pa.Array],
        field: T.StructField,
        values: Sequence[Any],
    ) -> pa.Array:
        try:
            return make(field.dataType, values)
        except _MISFITS as exc:
            place, reason = _first_misfit(
                [partial(make, field.dataType, [value]) for value in values], exc
            )
            raise self._not_of_type(field, values[place], reason, place) from reason

    def numbers(
        self,
        field: T.StructField,
        values: np.ndarray[Any, Any],
    ) -> pa.Array:
        """Return the numbers of one output column in its sent type; NaN is null, as in pandas."""
        arrow_type = _ARROW[type(field.dataType)]
        try:
            return _numbers(values, arrow_type)
        except pa.ArrowException as exc:
            place, reason = _first_misfit(
                [partial(_numbers, values[n : n + 1], arrow_type) for n in range(len(values))], exc
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

    def _check_built(self, field: T.StructField) -> None:
        try:
            wire_type(JsonForm(), field.dataType)
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


def _numbers(values: np.ndarray[Any, Any], arrow_type: pa.DataType) -> pa.Array:
    nulls = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    return pa.array(values, mask=nulls).cast(arrow_type)


def _is_plain(data_type: T.DataType) -> bool:
    """Return whether a column leaves as Arrow's values; all others leave as JSON text."""
    return isinstance(data_type, T.DecimalType) or type(data_type) in _ARROW


def _sent_type(data_type: T.DataType) -> T.DataType:
    if type(data_type) in _TIMES:
        return _TIMES[type(data_type)][0]
    if not _is_plain(data_type):
        return travelling_type(data_type)
    return T.StringType() if isinstance(data_type, TEXTS) else data_type


def _restored(data_type: T.DataType, column: Column) -> Column:
    if type(data_type) in _TIMES:
        return _TIMES[type(data_type)][1](column)
    return column if _is_plain(data_type) else from_travelling(data_type, column)


def _column(data_type: T.DataType, values: Sequence[Any]) -> pa.Array:
    if not _is_plain(data_type):
        return _travelling(data_type, values)
    arrow_type = (
        pa.decimal128(data_type.precision, data_type.scale)
        if isinstance(data_type, T.DecimalType)
        else _ARROW[type(data_type)]
    )
    kinds = {*map(type, values)} - {type(None)}
    if not kinds <= _OF_ARROW.get(type(data_type), OWN_KINDS.get(type(data_type), frozenset())):
        take = _SENT.get(type(data_type)) or taken(data_type)
        values = [None if value is None else take(value) for value in values]
    return pa.array(values, arrow_type)


def _travelling(
    data_type: T.DataType, values: Sequence[Any], *, of_plain: bool = False
) -> pa.Array:
    written = list(map(json_writer(data_type, of_plain=of_plain), values))
    sent_type = travelling_type(data_type)
    if isinstance(sent_type, T.StructType):
        return pa.array(map(in_arrow, written), to_arrow_type(sent_type), size=len(written))
    return pa.array(written, pa.string())


_OF_ARROW: dict[type[T.DataType], frozenset[type]] = {
    T.FloatType: frozenset({float}),
    T.DecimalType: frozenset({Decimal}),
}
"""Python types that are not in :data:`OWN_KINDS` whose values Arrow narrows, or says why not."""


def _days(value: Any) -> int:
    return T.DateType().toInternal(taken(T.DateType())(value))


def _local_text(value: Any) -> str:
    text: str = taken(T.TimestampNTZType())(value).isoformat(" ")
    return text


_SENT: dict[type[T.DataType], Callable[[Any], Any]] = {
    T.DateType: _days,
    T.TimestampType: microseconds_of,
    T.TimestampNTZType: _local_text,
}
