"""The typed tables of stored state as DataFrames, and functions over their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.errors import CkptError, ProcessorError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor, decode_handle, encode_handle
from pyspark_ckpt.operator.table.catalog import evolved, struct_type
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.user_frames import shortened, user_frames
from pyspark_ckpt.operator.values.arrow_forms import cast
from pyspark_ckpt.operator.values.arrow_values import in_type
from pyspark_ckpt.operator.values.time_zones import in_python_zones
from pyspark_ckpt.snapshot.entries import stored_entries
from pyspark_ckpt.snapshot.tables import RawTable, Table, TimersTable, state_table
from pyspark_ckpt.storage.open import open_storage

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)
"""PySpark 4.0 has no such argument: its timestamps are in UTC by default."""

_NUMBERS = ("integer", "floating", "mixed-integer-float")
"""What pandas calls columns of numbers."""


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
        schema = to_arrow_schema(self._read.schema, **_IN_UTC)
        storage = open_storage(self._read.source)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                handle = decode_handle(self._handles[place])
                table = self._read.table(handle)
                if table is None:
                    continue
                entries = stored_entries(storage, handle, table.stored)
                for rows in table.batches(entries, None):
                    yield _in_schema(rows, schema, self._read.schema)


def _in_schema(
    rows: pa.RecordBatch, schema: pa.Schema, spark_schema: T.StructType
) -> pa.RecordBatch:
    """Return rows in the Arrow types that Spark wants; the columns are in the order of the table.

    The table that is read may have its own columns at other places than the table of an edit.
    """
    columns = [rows.column(name) for name in spark_schema.names]
    return pa.RecordBatch.from_arrays(list(map(in_type, columns, schema.types)), schema=schema)


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
                f"{self.where}: the function returned {type(changed).__name__}, which is no table "
                f"of {', '.join(schema.names)} ({type(exc).__name__}: {exc}): return a "
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
        schema = to_arrow_schema(self._schema, **_IN_UTC)
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
        schema = to_arrow_schema(self._schema, **_IN_UTC)
        keys_schema = to_arrow_schema(self._new, **_IN_UTC)
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
