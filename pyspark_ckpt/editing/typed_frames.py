"""The typed tables of stored state as DataFrames, and functions over their batches.

A timer may be due, and a time to live may end, in any millisecond of 64 bits. Spark's timestamps
are microseconds of 64 bits, so they end with the year 294247: a time beyond it is shown as the last
of them. Rows that no user sees keep the milliseconds. An entry that expires has the time at which
it was written there, from which its end follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.errors import CkptError, ProcessorError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor, decode_handle, encode_handle
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import evolved, struct_type
from pyspark_ckpt.operator.task_failure import marks_errors, user_frames
from pyspark_ckpt.snapshot.columns import LAST_TIMESTAMP_MS, MAX_LONG
from pyspark_ckpt.snapshot.tables import RawTable, Table, TimersTable, state_table
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stored.state import StoredState
from pyspark_ckpt.values.arrow import in_type
from pyspark_ckpt.values.given import cast
from pyspark_ckpt.values.time_zones import arrow_schema, in_python_zones
from pyspark_ckpt.values.words import shortened

_NUMBERS = ("integer", "floating", "mixed-integer-float")
"""What pandas calls columns of numbers."""

POSITION, EXPIRES_AT, FIRES_AT = "position", "expires_at", "fires_at"
SUBTASK, STREAM, DATA = "subtask", "stream", "data"

BEYOND = -1
"""In place of the time of writing: the entry expires after :data:`LAST_TIMESTAMP_MS`."""


def stored_table(
    spark: SparkSession, handles: tuple[Handle, ...], read: ReadState | ReadTimers | ReadRaw
) -> DataFrame:
    """Return a table of an operator as a DataFrame, a partition for each subtask."""
    encoded = tuple(map(encode_handle, handles))
    places = spark.range(len(encoded), numPartitions=max(len(encoded), 1))
    return places.mapInArrow(_ReadTable(encoded, read), read.schema)


class ReadState:
    """Reads a keyed state of one subtask; shipped to executors."""

    def __init__(
        self, source: str, state: StateDescriptor, schema: T.StructType, where: str
    ) -> None:
        self.source = source
        self.schema = schema
        self._state = state
        self._where = where

    def table(self, handle: Handle) -> Table | None:
        """Return the table of a subtask, ``None`` if it has no such state."""
        where = f"{self._where}, state {self._state.name!r}, subtask {handle.subtask}"
        for state_id, state in enumerate(handle.states):
            if state.name == self._state.name and state.sweeps is None:
                newest = evolved(state, self._state, where)
                key_schema = struct_type(handle.key_schema)
                return state_table(key_schema, newest, state_id, handle.subtask, where)
        return None


class ReadTimers:
    """Reads the timers of one subtask; shipped to executors."""

    def __init__(self, source: str, schema: T.StructType, where: str) -> None:
        self.source = source
        self.schema = schema
        self._where = where

    def table(self, handle: Handle) -> Table | None:
        """Return the table of a subtask."""
        where = f"{self._where}, timers, subtask {handle.subtask}"
        return TimersTable(struct_type(handle.key_schema), handle.time_mode.value, where)


class ReadRaw:
    """Reads the raw state of one subtask; shipped to executors."""

    def __init__(self, source: str, schema: T.StructType, where: str) -> None:
        self.source = source
        self.schema = schema
        self._where = where

    def table(self, handle: Handle) -> Table | None:
        """Return the table of a subtask."""
        return RawTable(handle.subtask, f"{self._where}, raw state, subtask {handle.subtask}")


class _ReadTable:
    """The function given to ``mapInArrow`` over the places of handles: yields rows of a table."""

    def __init__(self, handles: tuple[bytes, ...], read: ReadState | ReadTimers | ReadRaw) -> None:
        self._handles = handles
        self._read = read

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._read.schema)
        storage = open_storage(self._read.source)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                handle = decode_handle(self._handles[place])
                table = self._read.table(handle)
                if table is None:
                    continue
                entries = StoredState(storage, handle).scan(table.stored)
                for rows in table.batches(entries, None):
                    # The table that is read may have its own columns at other places.
                    columns = [rows.column(name) for name in self._read.schema.names]
                    arrays = list(map(in_type, columns, schema.types))
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class RowsFunction:
    """A user's function over parts of a table."""

    function: Callable[[Any], Any]
    as_pandas: bool
    where: str

    def __call__(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return what the function makes of rows, with the columns of a schema."""
        given = rows.to_pandas(types_mapper=_exact_type) if self.as_pandas else rows
        try:
            changed = self.function(given)
        except CkptError:
            raise
        except Exception as exc:
            raise ProcessorError(
                f"{self.where}: the function raised {type(exc).__name__}: "
                f"{shortened(str(exc))}{user_frames(exc)}"
            ) from exc
        try:
            return _as_table(changed, schema)
        except (pa.ArrowException, TypeError, KeyError, ValueError) as exc:
            raise ProcessorError(
                f"{self.where}: the function returned {type(changed).__name__}, which is not a "
                f"table of {', '.join(schema.names)} ({type(exc).__name__}: {exc}): return a "
                f"{'pandas frame' if self.as_pandas else 'pyarrow table'} with these columns"
            ) from exc


class ChangeRows:
    """The function given to ``mapInArrow``: the user's function over the rows of a table."""

    def __init__(self, function: RowsFunction, schema: T.StructType) -> None:
        self._function = function
        self._schema = schema

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the function returns for each batch."""
        schema = arrow_schema(self._schema)
        for batch in batches:
            if batch.num_rows:
                rows = _in_python_zones(pa.Table.from_batches([batch]))
                yield from self._function(rows, schema).to_batches()


class RekeyRows:
    """The function given to ``mapInArrow``: gives rows of a table other key columns."""

    def __init__(
        self,
        function: RowsFunction,
        old: T.StructType,
        new: T.StructType,
        schema: T.StructType,
        where: str,
    ) -> None:
        self._function = function
        self._old = old
        self._new = new
        self._schema = schema
        self._where = where

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows under their new keys."""
        schema = arrow_schema(self._schema)
        keys_schema = arrow_schema(self._new)
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = _in_python_zones(pa.Table.from_batches([batch]))
            keys = self._function(rows.select(self._old.names), keys_schema)
            if len(keys) != len(rows):
                raise ProcessorError(
                    f"{self._where}: the function returned {len(keys)} keys for {len(rows)}: "
                    "return one for each, in their order"
                )
            rest = rows.columns[len(self._old.fields) :]
            moved = [
                in_type(column, field.type)
                for column, field in zip([*keys.columns, *rest], schema, strict=True)
            ]
            yield from pa.Table.from_arrays(moved, schema=schema).to_batches()


def _in_python_zones(rows: pa.Table) -> pa.Table:
    """Return rows as Spark sends them, which have the session's time zone by Spark's name."""
    fields = [field.with_type(in_python_zones(field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _exact_type(column: pa.DataType) -> pd.ArrowDtype | None:
    """Return pandas' type for a column, where its own types would lose digits, nulls or NaN.

    One null makes a column of integers one of floats, also within lists, and NaN is a null.
    """
    types = pa.types
    is_number = types.is_integer(column) or types.is_floating(column)
    return pd.ArrowDtype(column) if is_number or types.is_nested(column) else None


def _as_table(changed: Any, schema: pa.Schema) -> pa.Table:
    if isinstance(changed, pd.DataFrame):
        changed = changed[schema.names]
        for field in schema:
            _check_no_number(changed[field.name], field)
        return pa.Table.from_pandas(changed, schema=schema, preserve_index=False)
    if isinstance(changed, pa.RecordBatch):
        changed = pa.Table.from_batches([changed])
    if not isinstance(changed, pa.Table):
        raise TypeError("it is neither an Arrow table nor a pandas frame")
    columns = [cast(changed.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _check_no_number(series: pd.Series[Any], field: pa.Field) -> None:
    """Refuse numbers for times and booleans, where Arrow would take them in its own unit."""
    if not (pa.types.is_temporal(field.type) or pa.types.is_boolean(field.type)):
        return
    if pd.api.types.infer_dtype(series.dropna()) in _NUMBERS:
        raise TypeError(f"column {field.name!r} has numbers, and is {field.type}")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of a table's columns by their part; the fields have Spark's types.

    `position`, `expires_at`, `fires_at` and `subtask` are ``None`` if the table has no such column.
    """

    keys: tuple[T.StructField, ...]
    map_keys: tuple[T.StructField, ...] = ()
    values: tuple[T.StructField, ...] = ()
    position: str | None = None
    expires_at: str | None = None
    fires_at: str | None = None
    subtask: str | None = None

    def all_of(self, *, in_ms: bool = False) -> list[tuple[str, T.DataType]]:
        """Return the name and Spark type of each column, in the order of the table.

        The table's own times are timestamps, or milliseconds.
        """
        time = T.LongType() if in_ms else T.TimestampType()
        named = [
            (self.subtask, T.IntegerType()),
            *((each.name, each.dataType) for each in (*self.keys, *self.map_keys)),
            (self.position, T.LongType()),
            *((each.name, each.dataType) for each in self.values),
            (self.expires_at, time),
            (self.fires_at, time),
        ]
        return [(name, data_type) for name, data_type in named if name is not None]

    def of_rows(self, names: Sequence[str]) -> TableColumns:
        """Return the columns that rows with these names have: they may lack `expires_at`."""
        return self if self.expires_at in names else replace(self, expires_at=None)


def columns_of(key_schema: T.StructType, state: StateDescriptor) -> TableColumns:
    """Return the columns of a state's table."""
    names = _Names()
    movement = kind_of(state).movement
    keys = names.fields(key_schema, "key") if movement is Movement.WITH_KEY else ()
    map_key = None if state.map_key_schema is None else struct_type(state.map_key_schema)
    map_keys = () if map_key is None else names.fields(map_key, "map_key")
    values = names.fields(struct_type(state.value_schema), "value")
    has_position = kind_of(state).entries is Entries.CHUNKS
    has_time = state.ttl is not None or state.is_stamped
    return TableColumns(
        subtask=names.own(SUBTASK) if movement is Movement.DEALT_OUT else None,
        keys=keys,
        map_keys=map_keys,
        values=values,
        position=names.own(POSITION) if has_position else None,
        expires_at=names.own(EXPIRES_AT) if has_time else None,
    )


def timer_columns(key_schema: T.StructType) -> TableColumns:
    """Return the columns of an operator's timers."""
    names = _Names()
    return TableColumns(keys=names.fields(key_schema, "key"), fires_at=names.own(FIRES_AT))


def raw_columns() -> TableColumns:
    """Return the columns of an operator's raw state."""
    fields = (T.StructField(STREAM, T.IntegerType()), T.StructField(DATA, T.BinaryType()))
    return TableColumns(keys=(), values=fields, subtask=SUBTASK)


class _Names:
    """Gives each column another name, as the tables that are read do; case does not count."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fields(self, schema: T.StructType, prefix: str) -> tuple[T.StructField, ...]:
        return tuple(
            T.StructField(self._name(each.name, f"{prefix}_{each.name}"), each.dataType)
            for each in schema.fields
        )

    def own(self, name: str) -> str:
        return self._name(name, f"_{name}")

    def _name(self, name: str, otherwise: str) -> str:
        while name.lower() in self._taken:
            name, otherwise = otherwise, f"_{otherwise}"
        self._taken.add(name.lower())
        return name


@dataclass(frozen=True, slots=True)
class Times:
    """When rows without a time count as written, by the time that a state ages in."""

    processing_ms: int
    watermark_ms: int

    def of(self, state: StateDescriptor) -> int | None:
        """Return when an entry of a state counts as written, ``None`` if it has no time."""
        if state.ttl is None:
            return None
        if state.ttl.time is TtlTime.PROCESSING_TIME:
            return self.processing_ms
        return self.watermark_ms or None  # as in an initial state before the first watermark


def as_written(state: StateDescriptor) -> StateDescriptor:
    """Return a state whose table has the time of writing for that of expiry."""
    if state.ttl is None:
        return state
    return msgspec.structs.replace(state, ttl=msgspec.structs.replace(state.ttl, duration_ms=0))


def stored_times(
    rows: DataFrame, columns: TableColumns, state: StateDescriptor | None, *, in_ms: bool
) -> DataFrame:
    """Return rows with stored times in place of those that are given.

    `state` is ``None`` for timers.
    """
    name = columns.fires_at or columns.expires_at
    if name is None or name not in rows.columns:
        return rows
    time = F.col(name)
    in_ms_of_time = time if in_ms else F.unix_millis(time)
    is_last, is_first = (time == _timestamp(end) for end in (MAX_LONG, -MAX_LONG - 1))
    if columns.fires_at is not None:
        found = in_ms_of_time
        if not in_ms:
            found = F.when(is_last, _long(MAX_LONG)).when(is_first, _long(-MAX_LONG - 1))
            found = found.otherwise(in_ms_of_time)
    else:
        duration = _long(_duration_ms(state))
        found = F.when(in_ms_of_time > duration, in_ms_of_time - duration)
        found = found.when(time.isNotNull(), _long(0))
        if not in_ms:
            found = F.when(is_last, _long(BEYOND)).otherwise(found)
    return rows.withColumn(name, found)


def shown_times(rows: DataFrame, columns: TableColumns, state: StateDescriptor | None) -> DataFrame:
    """Return rows with timestamps in place of stored times, as :func:`stored_times` takes them."""
    name = columns.fires_at or columns.expires_at
    if name is None or name not in rows.columns:
        return rows
    time = F.col(name)
    if columns.fires_at is not None:
        found = F.when(time > LAST_TIMESTAMP_MS, _timestamp(MAX_LONG))
        found = found.when(time < -LAST_TIMESTAMP_MS, _timestamp(-MAX_LONG - 1))
        return rows.withColumn(name, found.otherwise(F.timestamp_millis(time)))
    duration_ms = _duration_ms(state)
    is_beyond = (time == BEYOND) | (time > LAST_TIMESTAMP_MS - duration_ms)
    found = F.when(is_beyond, _timestamp(MAX_LONG))
    if duration_ms < LAST_TIMESTAMP_MS:
        found = found.otherwise(F.timestamp_millis(time + _long(duration_ms)))
    return rows.withColumn(name, found.cast("timestamp"))


def written_beyond_ms(duration_ms: int, now_ms: int) -> int:
    """Return when an entry counts as written that expires beyond :data:`LAST_TIMESTAMP_MS`."""
    return max(now_ms, LAST_TIMESTAMP_MS - duration_ms + 1)


def _duration_ms(state: StateDescriptor | None) -> int:
    ttl = None if state is None else state.ttl
    return 0 if ttl is None else min(ttl.duration_ms, MAX_LONG)


def _long(number: int) -> Column:
    return F.lit(number).cast("long")


def _timestamp(micros: int) -> Column:
    return F.timestamp_micros(_long(micros))
