"""Tasks that turn the rows of typed tables into entries: subtask, stored key, stored value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.editing.typed_frames import BEYOND, written_beyond_ms
from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.formats.handle import StateDescriptor, TtlDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, kind_of
from pyspark_ckpt.operator.state.operator_states import raw_entries
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.operator.table.stored_keys import OPERATOR_STATE, TIME_INDEX, TIMERS_ID
from pyspark_ckpt.operator.table.time_to_live import NEVER_EXPIRES_MS, stamp_mark, stamp_of
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.stored.redistribution import ARROW_ENTRIES
from pyspark_ckpt.values.encoded import (
    Form,
    big_endian,
    encoded_tuples,
    fixed_width,
    joined,
    repeated,
)
from pyspark_ckpt.values.state_columns import null_where_none_may_be

_TIME_OFFSET = np.uint64(1 << 63)
_VERSION_MARK = 0xCC
_Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of an operator's keys lie."""

    key_schema: T.StructType
    parallelism: int
    max_parallelism: int

    def heads(self, batch: pa.RecordBatch) -> tuple[_Numbers, pa.BinaryArray, pa.BinaryArray]:
        """Return each row's subtask, encoded key group and encoded key.

        The first column has the key group, the key's columns follow.
        """
        groups = batch.column(0).to_numpy()
        subtasks = groups.astype(np.int64) * self.parallelism // self.max_parallelism
        width = len(self.key_schema.fields)
        keys = encoded_tuples(batch.columns[1 : 1 + width], self.key_schema, Form.KEY)
        return subtasks, fixed_width(big_endian(groups.astype(np.uint16))), keys


class StoredValues:
    """The entries of a state below the heads of their stored keys.

    `written_ms` is the time of writing for rows without one, in the time that the state ages in;
    ``None`` if they never expire. With `has_times`, the last column has the times of writing in
    milliseconds: null for entries that never expire, ``BEYOND`` for those that expire too late for
    a timestamp.
    """

    def __init__(
        self, state_id: int, state: StateDescriptor, written_ms: int | None, *, has_times: bool
    ) -> None:
        self.id = bytes([state_id])
        self._state = state
        self._written_ms = written_ms
        self._has_times = has_times

    def entries(
        self, subtasks: _Numbers, heads: list[pa.Array], columns: list[pa.Array]
    ) -> pa.RecordBatch:
        """Return the entries of rows, whose keys start with `heads`."""
        rows = len(subtasks)
        if kind_of(self._state).entries is Entries.CHUNKS:
            positions, *columns = columns
            numbers = _not_null(positions, "position").to_numpy()
            stored_keys = joined(*heads, fixed_width(_in_order(numbers)))
        elif self._state.map_key_schema is not None:
            schema = struct_type(self._state.map_key_schema)
            width = len(schema.fields)
            map_keys, columns = columns[:width], columns[width:]
            self._check_nulls(map_keys, schema)
            stored_keys = encoded_tuples(map_keys, schema, Form.MAP_KEY, *heads)
        else:
            stored_keys = joined(*heads)
        return _batch(subtasks, stored_keys, self._values(columns, rows))

    def _values(self, columns: list[pa.Array], rows: int) -> pa.BinaryArray:
        schema = struct_type(self._state.value_schema)
        heads = []
        if self._has_times:
            *columns, times = columns
            if self._state.ttl is not None:
                heads.append(_stamps(times, self._state.ttl, self._written_ms))
        elif self._state.ttl is not None and self._written_ms is not None:
            heads.append(repeated(stamp_of(self._state.ttl.time, self._written_ms), rows))
        if self._state.earlier_schemas:
            version = bytes([_VERSION_MARK, len(self._state.earlier_schemas)])
            heads.append(repeated(version, rows))
        if not heads:
            heads = [repeated(b"", rows)]
        self._check_nulls(columns, schema)
        return encoded_tuples(columns, schema, Form.VALUE, *heads)

    def _check_nulls(self, columns: list[pa.Array], schema: T.StructType) -> None:
        """Refuse nulls as a processor's update does."""
        if (found := null_where_none_may_be(columns, schema)) is not None:
            raise StateValueError(
                f"state {self._state.name!r}: a row has a null in column {found[0]!r} where the "
                "state's schema declares not null: give a value, or leave the row out"
            )


class EncodeState:
    """The function given to ``mapInArrow`` over the rows of a keyed state: yields entries.

    The rows have the key group, then the columns of the typed table, without those left out.
    """

    def __init__(self, place: Place, values: StoredValues) -> None:
        self._place = place
        self._values = values

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of the rows."""
        width = len(self._place.key_schema.fields)
        for batch in batches:
            if batch.num_rows:
                subtasks, groups, keys = self._place.heads(batch)
                heads = [groups, repeated(self._values.id, batch.num_rows), keys]
                yield self._values.entries(subtasks, heads, batch.columns[1 + width :])


class EncodeOperatorState:
    """The function given to ``mapInArrow`` over the rows of a subtask's state: yields entries.

    The rows have the subtask, then the columns of the typed table, without those left out.
    """

    def __init__(self, parallelism: int, values: StoredValues) -> None:
        self._parallelism = parallelism
        self._values = values

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of the rows."""
        for batch in batches:
            if batch.num_rows:
                subtasks = _subtasks(batch.column(0), self._parallelism)
                heads = [repeated(OPERATOR_STATE + self._values.id, batch.num_rows)]
                yield self._values.entries(subtasks, heads, batch.columns[1:])


class EncodeRaw:
    """The function given to ``mapInArrow`` over raw state: yields the chunks of each stream."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of the rows."""
        for batch in batches:
            if not batch.num_rows:
                continue
            subtasks = _subtasks(batch.column(0), self._parallelism)
            streams = _not_null(batch.column(1), "stream").to_pylist()
            contents = _not_null(batch.column(2), "data").to_pylist()
            for subtask, stream, content in zip(subtasks, streams, contents, strict=True):
                keys, values = raw_entries(stream, content)
                owners: _Numbers = np.full(len(keys), subtask)
                yield _batch(owners, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


class EncodeTimers:
    """The function given to ``mapInArrow`` over timers: yields the two entries of each."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of the timers, by key and by time."""
        for batch in batches:
            rows = batch.num_rows
            if not rows:
                continue
            subtasks, groups, keys = self._place.heads(batch)
            fires_at = _not_null(batch.column(batch.num_columns - 1), "fires_at")
            times = fixed_width(_in_order(fires_at.to_numpy()))
            nothing = pa.array([b""] * rows, pa.binary())
            yield _batch(subtasks, joined(groups, repeated(TIMERS_ID, rows), keys, times), nothing)
            yield _batch(subtasks, joined(repeated(TIME_INDEX, rows), times, groups, keys), nothing)


class EncodeKeys:
    """The function given to ``mapInArrow`` over keys: yields them as ``stored_key``.

    Its key group's bytes come before the encoded key. ``value`` is the key as a value is stored,
    which has nested columns, and times without a zone, in another form.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the encoded keys."""
        for batch in batches:
            if batch.num_rows:
                subtasks, groups, keys = self._place.heads(batch)
                schema = self._place.key_schema
                columns = batch.columns[1 : 1 + len(schema.fields)]
                values = encoded_tuples(columns, schema, Form.VALUE)
                yield _batch(subtasks, joined(groups, keys), values)


def _batch(subtasks: _Numbers, keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    columns = [pa.array(subtasks, pa.int32()), keys, values]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_ENTRIES)


def _subtasks(column: pa.Array, parallelism: int) -> _Numbers:
    """Return the subtasks of rows."""
    subtasks: _Numbers = _not_null(column, "subtask").to_numpy()
    wrong = subtasks[(subtasks < 0) | (subtasks >= parallelism)]
    if len(wrong):
        raise StateValueError(
            f"subtask is {wrong[0]}, and the operator has {parallelism} subtasks: give a number "
            f"from 0 to {parallelism - 1}"
        )
    return subtasks


def _not_null(column: pa.Array, name: str) -> pa.Array:
    if column.null_count:
        raise StateValueError(f"{name} is null in {column.null_count} rows: give a value")
    return column


def _in_order(numbers: _Numbers) -> _Numbers:
    """Return 64-bit integers as bytes that sort as the numbers do."""
    return big_endian(numbers.astype(np.int64).view(np.uint64) ^ _TIME_OFFSET)


def _stamps(written: pa.Array, ttl: TtlDescriptor, now_ms: int | None) -> pa.BinaryArray:
    """Return the stamps of entries that were written at given times; a null never expires."""
    never = written.is_null().to_numpy(zero_copy_only=False)
    written_ms = written.fill_null(0).to_numpy(zero_copy_only=False).copy()
    is_beyond = written_ms == BEYOND
    beyond_ms = NEVER_EXPIRES_MS if now_ms is None else written_beyond_ms(ttl.duration_ms, now_ms)
    written_ms[is_beyond] = beyond_ms
    written_ms[never] = NEVER_EXPIRES_MS
    marks = np.full((len(written), 1), stamp_mark(ttl.time), np.uint8)
    return fixed_width(np.hstack([marks, big_endian(written_ms.astype(np.uint64))]))
