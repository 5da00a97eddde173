"""The stored entries of one state as the rows of a typed table, a batch at a time.

The columns are the key columns, the columns of map keys, ``position`` in a list, the columns of
values, and ``expires_at`` if the state has or had a time to live. A name that stands twice becomes
``map_key_<name>`` or ``value_<name>``, and a column of this library becomes ``_<name>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.errors import CorruptFileError, StateValueError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import TtlTime, TtlVisibility
from pyspark_ckpt.operator.table.catalog import codec_of, struct_type
from pyspark_ckpt.operator.table.time_to_live import (
    NEVER_EXPIRES_MS,
    STAMP_BYTES,
    STAMP_MARKS,
    stamp_mark,
)
from pyspark_ckpt.stored.binary_column import BinaryColumn
from pyspark_ckpt.values.arrow import arrow_array, arrow_type
from pyspark_ckpt.values.codec import VERSION_BYTES, VERSION_MARK
from pyspark_ckpt.values.message_pack import UNREADABLE
from pyspark_ckpt.values.plain import msgspec_type
from pyspark_ckpt.values.types import KeyForm, key_form_of, stored_key_type

TIME = pa.timestamp("ms", "UTC")
_FIRST_MS = int(datetime(1, 1, 2, tzinfo=timezone.utc).timestamp()) * 1000
_LAST_MS = int(datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()) * 1000
MAX_LONG = (1 << 63) - 1

LAST_TIMESTAMP_MS = MAX_LONG // 1000
"""The last millisecond that a timestamp of Spark holds."""

_ARRAY = b"\xdd"
"""The first byte of a MessagePack array with a length of four bytes."""

Numbers = np.ndarray[Any, Any]


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dicts; times of the library that Python lacks become its first or last day.

    A time to live may end, and a timer may be due, in any millisecond of 64 bits.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    for place, field in enumerate(table.schema):
        if field.type == TIME:
            times = table.column(place).cast(pa.int64())
            times = pc.max_element_wise(times, _FIRST_MS, skip_nulls=False)
            times = pc.min_element_wise(times, _LAST_MS, skip_nulls=False)
            table = table.set_column(place, field, times.cast(TIME))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """Return a table as a frame; integers in columns with nulls keep their digits, as objects.

    pandas would make them doubles, of which none is, for example, 2**60 + 1.
    """
    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True)
    return frame


def in_microseconds(times: Any, kind: pa.DataType) -> Any:
    """Return times of the library as microseconds; those beyond are the first and last of them."""
    given = times.cast(pa.int64())
    held = pc.max_element_wise(given, -LAST_TIMESTAMP_MS, skip_nulls=False)
    held = pc.min_element_wise(held, LAST_TIMESTAMP_MS, skip_nulls=False)
    micros = pc.multiply(held, 1000)
    micros = pc.if_else(pc.greater(given, LAST_TIMESTAMP_MS), MAX_LONG, micros)
    micros = pc.if_else(pc.less(given, -LAST_TIMESTAMP_MS), -MAX_LONG - 1, micros)
    return micros.cast(kind)


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two tables of one schema have the same rows, in one order.

    Arrow itself takes NaN for different from NaN.
    """
    if one.equals(other):
        return True
    return bool(repr(_comparable(one)) == repr(_comparable(other)))


def _comparable(table: pa.Table) -> list[list[Any]]:
    columns = (
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column  # any year
        for column in table.columns
    )
    return [column.to_pylist() for column in columns]


class ColumnNames:
    """Gives each column of a table another name; case does not count, as in Spark."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, name: str, otherwise: str) -> str:
        """Return `name` for a column, or `otherwise` if another column has it."""
        while name.lower() in self._taken:
            name, otherwise = otherwise, f"_{otherwise}"
        self._taken.add(name.lower())
        return name

    def fields(self, schema: T.StructType, prefix: str) -> list[pa.Field]:
        """Return the Arrow fields of some columns of a user."""
        return [
            pa.field(self.name(field.name, f"{prefix}_{field.name}"), arrow_type(field.dataType))
            for field in schema.fields
        ]

    def own(self, name: str, data_type: pa.DataType) -> pa.Field:
        """Return the Arrow field of a column of this library."""
        return pa.field(self.name(name, f"_{name}"), data_type)


class Tuples:
    """Decodes many tuples of one schema at once."""

    def __init__(self, schema: T.StructType, what: str) -> None:
        self.types = tuple(msgspec_type(field.dataType) for field in schema.fields)
        self._fields = schema.fields
        self._decoder = decoder_of(tuple.__class_getitem__(self.types))
        self._what = what

    def plain(self, column: BinaryColumn) -> list[tuple[Any, ...]]:
        """Return tuples in plain form."""
        return decoded(self._decoder, column, self._what)

    def arrays(self, plain: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """Return tuples in plain form as Arrow columns."""
        return [
            arrow_array(field.dataType, [row[place] for row in plain])
            for place, field in enumerate(self._fields)
        ]


class StoredKeys:
    """Decodes many stored keys at once, which have the form that keys have in the shuffle."""

    def __init__(self, schema: T.StructType, what: str) -> None:
        self.type = stored_key_type(schema.fields)
        self._decoder = decoder_of(self.type)
        self._columns = [_KeyColumn(field) for field in schema.fields]
        self._what = what

    def plain(self, column: BinaryColumn) -> list[tuple[Any, ...]]:
        """Return keys in the form that they are stored in."""
        return decoded(self._decoder, column, self._what)

    def arrays(self, keys: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """Return decoded keys as Arrow columns."""
        return [
            column.array([key[place] for key in keys]) for place, column in enumerate(self._columns)
        ]


class _KeyColumn:
    def __init__(self, field: T.StructField) -> None:
        self._type = field.dataType
        self._decode = None
        self._form = key_form_of(field.dataType)
        if self._form is KeyForm.ENCODED:
            wire = msgspec_type(field.dataType)
            self._decode = msgspec.msgpack.Decoder(tuple.__class_getitem__((wire,))).decode

    def array(self, stored: list[Any]) -> pa.Array:
        if self._decode is not None:
            return arrow_array(self._type, [self._decode(data)[0] for data in stored])
        if self._form is KeyForm.TEXT:
            return pa.array(stored, pa.string()).cast(arrow_type(self._type))
        return arrow_array(self._type, stored)


def decoder_of(value_type: Any) -> Any:
    """Return a decoder of many values of a type; see :func:`decoded`."""
    return msgspec.msgpack.Decoder(list.__class_getitem__(value_type))


def decoded(decoder: Any, column: BinaryColumn, what: str) -> list[Any]:
    """Return all values of a column: MessagePack values in a row are an array without its head."""
    try:
        values: list[Any] = decoder.decode(
            b"".join((_ARRAY, len(column).to_bytes(4, "big"), column.joined))
        )
    except UNREADABLE as exc:
        raise not_decoded(what, exc) from exc
    return values


def not_decoded(what: str, exc: Exception) -> CorruptFileError:
    """Return the error for stored bytes that are not what the handle says."""
    return CorruptFileError(
        f"{what}: stored bytes do not fit their schema ({exc}); read another snapshot"
    )


@dataclass(frozen=True, slots=True)
class Aged:
    """Values without their times, and when each expires in milliseconds, -1 if never."""

    values: BinaryColumn
    expires_ms: Numbers | None


class StateValues:
    """Decodes the values of one state: with or without a time, of any schema of its history."""

    def __init__(self, state: StateDescriptor, what: str) -> None:
        self._state = state
        self._what = what
        self._newest = len(state.earlier_schemas)
        self.schema = struct_type(state.value_schema)
        self.tuples = Tuples(self.schema, what)
        self._codec = codec_of(state, what).plain

    def aged(self, column: BinaryColumn) -> Aged:
        """Take the times off entries."""
        if not self._state.is_stamped:
            return Aged(column, None)
        ttl = self._state.ttl
        first = column.bytes_at(0)
        is_stamped = np.isin(first, list(STAMP_MARKS))
        expires_ms = np.full(len(column), -1, np.int64)
        if ttl is not None:
            if ttl.since_ms is not None:
                expires_ms[:] = min(ttl.since_ms + ttl.duration_ms, MAX_LONG)
            counts = first == stamp_mark(ttl.time)  # a time of the other kind does not count
            written_ms = column.take(counts).numbers(8, from_start=1).astype(np.int64)
            never = written_ms >= NEVER_EXPIRES_MS
            # An end beyond the last millisecond of 64 bits is that one.
            longest_ms = np.minimum(min(ttl.duration_ms, MAX_LONG), MAX_LONG - written_ms)
            expires_ms[counts] = np.where(never, -1, written_ms + longest_ms)
        try:
            return Aged(column.cut(is_stamped * STAMP_BYTES), expires_ms)
        except ValueError as exc:
            raise not_decoded(self._what, exc) from exc

    def plain(self, column: BinaryColumn) -> list[tuple[Any, ...]]:
        """Return values without times as tuples of the newest schema, in plain form."""
        if not self._newest:
            return self.tuples.plain(column)
        is_later = column.bytes_at(0) == VERSION_MARK
        is_newest = is_later & (column.bytes_at(1) == self._newest)
        if is_newest.all():
            return self.tuples.plain(column.cut(VERSION_BYTES))
        newest = iter(self.tuples.plain(column.take(is_newest).cut(VERSION_BYTES)))
        return [
            next(newest) if new else self._converted(column.value(row))
            for row, new in enumerate(is_newest.tolist())
        ]

    def _converted(self, data: bytes) -> tuple[Any, ...]:
        """Return an entry of an earlier schema."""
        try:
            return self._codec.decode(data)
        except StateValueError as exc:
            raise not_decoded(self._what, exc) from exc

    def hidden(self, aged: Aged, now_ms: int | None) -> Numbers | None:
        """Return which entries a processor would not see at a time; ``None`` if it sees all."""
        ttl = self._state.ttl
        if aged.expires_ms is None or ttl is None or now_ms is None:
            return None
        if ttl.visibility is not TtlVisibility.NEVER_RETURN_EXPIRED:
            return None
        hidden: Numbers = (aged.expires_ms >= 0) & (aged.expires_ms <= now_ms)
        return hidden if hidden.any() else None

    def now_ms(self, processing_time_ms: int, watermark_ms: int) -> int | None:
        """Return the time in which entries age, ``None`` if they do not."""
        if self._state.ttl is None:
            return None
        is_event_time = self._state.ttl.time is TtlTime.EVENT_TIME
        return watermark_ms if is_event_time else processing_time_ms


def expiry_array(expires_ms: Numbers) -> pa.Array:
    """Return times of expiry as an Arrow column; nulls for entries that never expire."""
    return pa.array(expires_ms, pa.int64(), mask=expires_ms < 0).cast(TIME)
