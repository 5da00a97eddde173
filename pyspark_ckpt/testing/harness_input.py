"""The keys and rows of a test as record batches, in the form in which rows leave the shuffle.

Types are those that ``spark.createDataFrame`` finds in the values, over all that a harness has seen
so far. From here on rows go the way that they go in a query.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.modes.calls import Calls, KeyedPart, PartOfAllKeys, ShowTimers
from pyspark_ckpt.operator.modes.output import ArrowOutput, PandasOutput
from pyspark_ckpt.operator.rows.input import KEY_GROUP, InputColumns
from pyspark_ckpt.operator.rows.keys import KeyPlaces
from pyspark_ckpt.operator.rows.mode import RowForm
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.rows.sides import NO_KEY_GROUP, SideRows
from pyspark_ckpt.operator.time import WATERMARK_DELAY
from pyspark_ckpt.testing.kept_output import KeptOutput
from pyspark_ckpt.values.arrow import arrow_array
from pyspark_ckpt.values.frames import is_null, python_time
from pyspark_ckpt.values.plain import row_type_of

EventTime = Callable[[Any], int | None]
"""A test's ``eventTimeExtractor``: from a row to its event time in milliseconds."""

Key = tuple[Any, ...]
Given: TypeAlias = "Sequence[Any] | pd.DataFrame | pa.Table"
"""Rows of a test: a list of Rows, a frame or a table."""

_HIDDEN = "__ckpt_test_"
_WITH_INNER = (list, tuple, dict, np.ndarray)
_NO_COLUMNS = T.StructType()


class HarnessKey(NamedTuple):
    """One key: as the test gives it, and where its state is."""

    key: Key
    key_group: int
    encoded: bytes


class GivenRows(NamedTuple):
    """Rows of one key, with their event times if the harness has a watermark."""

    key: HarnessKey
    rows: Given
    times_ms: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class SeenColumns:
    """The columns of the keys and rows that a harness has seen, and whether they were in frames."""

    keys: T.StructType
    rows: T.StructType = _NO_COLUMNS
    broadcast: T.StructType = _NO_COLUMNS
    in_frames: bool = False

    @property
    def key_fields(self) -> list[T.StructField]:
        """The key columns; one that had only nulls has texts, as whose null they are stored."""
        return [
            T.StructField(field.name, T.StringType())
            if isinstance(field.dataType, T.NullType)
            else field
            for field in self.keys.fields
        ]

    @classmethod
    def nothing(cls, key_columns: int) -> SeenColumns:
        """Return the columns of a harness that has seen nothing: its keys may have any type."""
        names = [f"key{number}" for number in range(1, key_columns + 1)]
        return cls(T.StructType([T.StructField(name, T.NullType()) for name in names]))


class HarnessInput:
    """Makes record batches of what a test gives; `seen` is of all epochs that have ended.

    With `keys_are_columns`, the keys are columns of the rows. With a `schema`, rows have its
    columns, whatever their values are.
    """

    def __init__(
        self,
        max_parallelism: int,
        key_columns: int,
        time_zone: str,
        where: str,
        *,
        has_event_time: bool,
        keeps_late_rows: bool,
        keys_are_columns: bool,
        schema: T.StructType | None = None,
    ) -> None:
        self.seen = replace(SeenColumns.nothing(key_columns), rows=schema or _NO_COLUMNS)
        self.time_zone = time_zone
        self._max_parallelism = max_parallelism
        self._where = where
        self._has_event_time = has_event_time
        self._keeps_late_rows = keeps_late_rows
        self._keys_are_columns = keys_are_columns
        self._is_fixed = schema is not None

    def go_on(self, seen: SeenColumns) -> None:
        """Go on from what a snapshot has seen."""
        self.seen = replace(seen, rows=self.seen.rows) if self._is_fixed else seen

    def columns(self, seen: SeenColumns | None = None) -> InputColumns:
        """Return the columns of an operator's input for what was seen."""
        seen = seen or self.seen
        fields, derived = list(seen.rows.fields), {}
        for field in seen.key_fields:
            if not (self._keys_are_columns and field.name in seen.rows.names):
                derived[_HIDDEN + field.name] = field.name
                fields.append(T.StructField(_HIDDEN + field.name, field.dataType))
        by_name = {shown: name for name, shown in derived.items()}
        names = [by_name.get(name, name) for name in seen.keys.names]
        if self._has_event_time:
            name = f"{_HIDDEN}event time"
            derived[name] = name
            fields.append(T.StructField(name, T.TimestampType(), metadata={WATERMARK_DELAY: 0}))
        columns = HarnessColumns(T.StructType(fields), names, self.time_zone, derived)
        return columns.with_late_rows() if self._keeps_late_rows else columns

    def key(self, key: Any, seen: SeenColumns | None = None) -> HarnessKey:
        """Return a key from its value, or from the tuple of values of several key columns."""
        parts = self._parts(key)
        seen = self.with_keys([key], seen)
        return HarnessKey(parts, *self._places(seen).place(parts))

    def with_keys(self, keys: Iterable[Any], seen: SeenColumns | None = None) -> SeenColumns:
        """Return what was seen, and keys; the first values of a key column say its type."""
        seen = seen or self.seen
        fields = seen.keys.fields
        for key in keys:
            parts = self._parts(key)
            with self._named(f"{key!r} cannot be a key"):
                fields = [
                    T.StructField(field.name, _merged(field.dataType, T._infer_type(part)))
                    if T._has_nulltype(field.dataType)
                    else field
                    for field, part in zip(fields, parts, strict=True)
                ]
        return replace(seen, keys=T.StructType(fields))

    def with_rows(self, rows: Sequence[Given], seen: SeenColumns | None = None) -> SeenColumns:
        """Return what was seen, and rows."""
        seen = seen or self.seen
        return seen if self._is_fixed else replace(seen, rows=self._found(rows, seen.rows))

    def with_initial_rows(self, rows: Sequence[Given], seen: SeenColumns) -> SeenColumns:
        """Return what was seen, with the rows of an initial state in place of other rows."""
        return replace(seen, rows=self._found(rows, _NO_COLUMNS))

    def with_key_names(self, seen: SeenColumns, names: Sequence[str]) -> SeenColumns:
        """Return what was seen, with columns of the rows as the key."""
        keys = T.StructType([T.StructField(name, seen.rows[name].dataType) for name in names])
        for before, now in zip(seen.keys.fields, keys.fields, strict=False):
            if before.dataType != now.dataType and not T._has_nulltype(before.dataType):
                raise PlanError(
                    f"{self._where}: the key column {now.name!r} was "
                    f"{before.dataType.simpleString()} and is {now.dataType.simpleString()} now: "
                    "give it values of one type"
                )
        return replace(seen, keys=keys)

    def batch(self, seen: SeenColumns, given: Sequence[GivenRows]) -> pa.RecordBatch:
        """Return rows of some keys as they leave the shuffle."""
        keys = [each.key for each in given for _ in range(len(each.rows))]
        times = [time for each in given for time in each.times_ms]
        arrays = self._arrays(seen.rows, [each.rows for each in given])
        key_schema = T.StructType(seen.key_fields)
        arrays += self._arrays(key_schema, [[key.key for key in keys]])
        return self._of_arrays(arrays, times, [key.key_group for key in keys])

    def batch_of_columns(
        self, seen: SeenColumns, given: Given, times_ms: Sequence[int | None]
    ) -> pa.RecordBatch:
        """Return rows, whose keys are columns, as they leave the shuffle."""
        arrays = self._arrays(seen.rows, [given])
        rows = self._of_arrays(arrays, times_ms, [0] * len(given))
        columns = self.columns(seen)
        places = self._places(seen)
        groups = [places.place(key)[0] for key in columns.keys_of(columns.arriving(rows))]
        return self._of_arrays(arrays, times_ms, groups)

    def without_rows(self, seen: SeenColumns, keys: Sequence[HarnessKey]) -> pa.RecordBatch:
        """Return a row of nulls for each of some keys."""
        nulls = tuple(None for _ in seen.rows.fields)
        return self.batch(seen, [GivenRows(key, [nulls], [None]) for key in keys])

    def with_broadcast(self, rows: Given) -> SeenColumns:
        """Return what was seen, and rows of a broadcast stream."""
        return replace(self.seen, broadcast=self._found([rows], self.seen.broadcast))

    def broadcast_batch(self, seen: SeenColumns, rows: Given, side: SideRows) -> pa.RecordBatch:
        """Return rows of a broadcast stream as they leave the shuffle, without keyed rows."""
        arrays = self._arrays(seen.broadcast, [rows])
        names = [f"{side.name}_c{index}" for index in range(len(arrays))]
        groups = pa.array([NO_KEY_GROUP] * len(rows), pa.int32())
        flags = pa.array([True] * len(rows))
        return pa.RecordBatch.from_arrays(
            [groups, flags, *arrays], names=[KEY_GROUP, side.flag, *names]
        )

    def _places(self, seen: SeenColumns) -> KeyPlaces:
        return KeyPlaces(T.StructType(seen.key_fields), self._max_parallelism)

    def _of_arrays(
        self, arrays: list[pa.Array], times_ms: Sequence[int | None], groups: list[int]
    ) -> pa.RecordBatch:
        if self._has_event_time:
            times = [None if time is None else time * 1000 for time in times_ms]
            with self._named("the event times are beyond those of Spark"):
                arrays = [*arrays, arrow_array(T.TimestampType(), times)]
        names = [f"c{index}" for index in range(len(arrays))]
        return pa.RecordBatch.from_arrays(
            [pa.array(groups, pa.int32()), *arrays], names=[KEY_GROUP, *names]
        )

    def _arrays(self, schema: T.StructType, given: Sequence[Given]) -> list[pa.Array]:
        """Return rows in the columns of a schema, as they would leave an operator."""
        if not schema.fields:
            return []
        columns = OutputRows(schema, "harness", coerces_integers=True, time_zone=self.time_zone)
        with self._named("the rows do not fit their columns"):
            if any(isinstance(rows, pd.DataFrame) for rows in given):
                frames = PandasOutput(columns)
                frames.extend(_frame_with(schema, frame) for frame in given)
                batch = frames.take()
            elif any(isinstance(rows, pa.Table) for rows in given):
                tables = ArrowOutput(columns)
                tables.extend(_table_with(schema, table) for table in given)
                batch = tables.take()
            else:
                batch = columns.batch([_row_with(schema, row) for rows in given for row in rows])
        return list(batch.columns)

    def _found(self, given: Sequence[Given], known: T.StructType) -> T.StructType:
        types = {field.name: field.dataType for field in known.fields}
        with self._named("the rows have values that no column of Spark has"):
            for name, found in _types_of(given):
                types[name] = _merged(types.get(name, T.NullType()), found)
        return T.StructType([T.StructField(name, kind) for name, kind in types.items()])

    def _parts(self, key: Any) -> Key:
        columns = len(self.seen.keys.fields)
        if columns == 1:
            return (_python(key),)
        if not isinstance(key, tuple) or len(key) != columns:
            raise PlanError(
                f"key {key!r} is not a tuple of {columns} values: give one value for each "
                f"of the harness's {columns} key columns"
            )
        return tuple(map(_python, key))

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as exc:
            raise PlanError(
                f"{self._where}: {what} ({exc}): give values as to spark.createDataFrame"
            ) from exc


class HarnessColumns(InputColumns):
    """The columns of a harness: a tuple that is one key is a tuple again, as in ``TwsTester``."""

    @property
    def decode_key(self) -> Callable[[bytes], Key]:
        """A function from a stored key to the key that the processor sees."""
        decode, row_type = super().decode_key, row_type_of(list(self.key_names))
        return lambda data: tuple.__new__(row_type, map(_as_tuple, decode(data)))

    def keys_of(self, sent: pa.RecordBatch) -> list[Key]:
        """Return the keys of rows as the processor sees them."""
        return [tuple(map(_as_tuple, key)) for key in super().keys_of(sent)]


class HarnessMode:
    """An input mode whose output is kept for the test, and that calls keys without rows, too."""

    def __init__(self, calls: Calls, output: KeptOutput, without_rows: pa.RecordBatch) -> None:
        self.method, self.late_method, self.form = calls.method, calls.late_method, calls.form
        self.calls_once_per_part = calls.calls_once_per_part
        self.columns = calls.columns
        self._calls = calls
        self._output = output
        self._without_rows = without_rows

    def part(self, batches: SentRows) -> KeyedPart | PartOfAllKeys:
        """Return a part of an epoch's rows; without batches, the keys that have no rows."""
        if batches:
            return self._calls.part(batches)
        return PartWithoutRows(self._calls, self.columns.arriving(self._without_rows))

    def timers_shown(self, processor: StatefulProcessor) -> ShowTimers | None:
        """Return what makes the arguments of ``handleExpiredTimers``, if the processor has it."""
        return self._calls.timers_shown(processor)

    def new_output(self) -> KeptOutput:
        """Return the empty buffer for the epoch's output."""
        return self._output


class PartWithoutRows(KeyedPart):
    """Keys without rows in a test; the processor is called for them, as by PySpark's tester."""

    def __init__(self, calls: Calls, batch: pa.RecordBatch) -> None:
        super().__init__(calls.view, calls.columns, [batch])
        self._bounds = [0] * len(self._bounds)
        self._is_in_frames = calls.form is RowForm.PANDAS

    def rows(self, position: int) -> Iterator[Any]:
        """Return an iterator over one empty frame, or over no row."""
        if self._is_in_frames:
            return iter([self._columns.pandas_frame(self.sent_rows(position))])
        return super().rows(position)


def each_row(rows: Given) -> Iterator[Any]:
    """Return an iterator over rows as an ``eventTimeExtractor`` takes them."""
    if isinstance(rows, pd.DataFrame):
        return (row for _, row in rows.iterrows())
    if isinstance(rows, pa.Table):
        return (Row(**values) for values in rows.to_pylist())
    return iter(rows)


def _types_of(given: Sequence[Given]) -> Iterator[tuple[str, T.DataType]]:
    """Yield the name and the type of each column of frames and tables, and of rows' values."""
    known: set[tuple[str, type]] = set()
    for rows in given:
        if isinstance(rows, pd.DataFrame):
            for name, column in rows.items():
                yield str(name), _type_of_column(column)
        elif isinstance(rows, pa.Table):
            for field in rows.schema:
                yield field.name, from_arrow_type(field.type)
        else:
            for row in rows:
                for name, value in _by_name(row).items():
                    kind = name, T.TimestampNTZType if _is_local(value) else type(value)
                    if kind not in known:
                        yield name, _type_of(_python(value))
                        if not isinstance(value, _WITH_INNER):
                            known.add(kind)


def _is_local(value: Any) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is None


def _type_of(value: Any) -> T.DataType:
    """Return the type of a value; a local time arrives as it is, as with ``TwsTester``."""
    return T.TimestampNTZType() if _is_local(value) else T._infer_type(value)


def _type_of_column(column: pd.Series[Any]) -> T.DataType:
    if not len(column):
        return T.NullType()
    if column.dtype == object or isinstance(column.dtype, pd.CategoricalDtype):
        values = (_python(value) for value in column.astype(object) if not is_null(value))
        nothing: T.DataType = T.NullType()
        return reduce(_merged, map(T._infer_type, values), nothing)
    return from_arrow_type(pa.array(column[:1], from_pandas=True).type)


_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)


def _merged(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return a type that has the values of two types, as PySpark merges them; numbers get wider."""
    kinds = {type(one), type(other)}
    if kinds == {T.TimestampType, T.TimestampNTZType}:
        return T.TimestampType()
    if len(kinds) == 1 or not kinds <= set(_NUMBERS):
        return T._merge_type(one, other)
    return T.DoubleType() if T.FloatType in kinds else max(kinds, key=_NUMBERS.index)()


def _by_name(row: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a row by name; `names` are for a row that has none."""
    if isinstance(row, dict):
        return row
    if not isinstance(row, tuple):
        raise TypeError(f"{type(row).__name__} is no pyspark.sql.Row")
    named = getattr(row, "__fields__" if isinstance(row, Row) else "_fields", None)
    if named is None:
        named = names if len(names) == len(row) else [f"_{n}" for n in range(1, len(row) + 1)]
    return dict(zip(named, row, strict=True))


def _row_with(schema: T.StructType, row: Any) -> Key:
    by_name = _by_name(row, schema.names)
    return tuple(
        _text(value) if isinstance(field.dataType, T.StringType) else value
        for field in schema.fields
        for value in [_python(by_name.get(field.name))]
    )


def _frame_with(schema: T.StructType, frame: Any) -> pd.DataFrame:
    named = frame.rename(columns=str)
    return pd.DataFrame(
        {
            field.name: _column_with(field.dataType, named.get(field.name), named.index)
            for field in schema.fields
        }
    )


def _table_with(schema: T.StructType, table: Any) -> pa.Table:
    missing = pa.nulls(len(table))
    return pa.table(
        {name: table[name] if name in table.column_names else missing for name in schema.names}
    )


def _column_with(data_type: T.DataType, column: Any, index: pd.Index[Any]) -> pd.Series[Any]:
    if column is None:
        return pd.Series([None] * len(index), index, object)
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    if isinstance(data_type, T.StringType):
        column = column.astype(object).map(_text)
    return column  # type: ignore[no-any-return]


def _python(value: Any) -> Any:
    """Return a scalar of NumPy or pandas as Python's, any other value as it is."""
    value = python_time(value)
    if value is pd.NaT or value is pd.NA:
        return None
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _text(value: Any) -> Any:
    return None if is_null(value) else str(value)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, dict) and list(value) == [f"_{n}" for n in range(1, len(value) + 1)]:
        return tuple(map(_as_tuple, value.values()))
    return value
