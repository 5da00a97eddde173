"""Input rows as they cross the shuffle: columns that survive pandas exactly.

Where the library cannot have Spark hand over Arrow, rows come in pandas frames, in which a null
turns an integer column into floats and a timestamp loses range. So null flags travel as bits of one
mask column, and dates and timestamps as integers; :class:`InputColumns` builds that in the plan and
takes it apart on the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from decimal import Decimal
from functools import cache, cached_property, partial
from itertools import repeat
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.rows.key_columns import (
    Codes,
    canonical_column,
    canonical_sent,
    check_key,
    codes_of_numbers,
    codes_of_objects,
    codes_of_texts,
    combined,
)
from pyspark_ckpt.operator.rows.sent_rows import Places, SentRows, joined, taken
from pyspark_ckpt.operator.time import (
    NEVER_LATE,
    WATERMARK_DELAY,
    end_of_window_column,
    event_time_index,
    is_emitted,
    is_window,
    never_late_column,
)
from pyspark_ckpt.operator.values.arrow_forms import shown_column, values_column
from pyspark_ckpt.operator.values.codec import key_encoder
from pyspark_ckpt.operator.values.json import JsonKey, JsonReader
from pyspark_ckpt.operator.values.leaves import microseconds_of
from pyspark_ckpt.operator.values.message_pack import canonical_of
from pyspark_ckpt.operator.values.message_pack_columns import Form, encoded_tuples
from pyspark_ckpt.operator.values.pandas import check_frame, loses_digits, pandas_column
from pyspark_ckpt.operator.values.sent_columns import (
    newest_ms,
    numbers_of,
    values_of,
    with_nulls,
)
from pyspark_ckpt.operator.values.time_zones import python_zone, zone_of
from pyspark_ckpt.operator.values.transport import (
    NOT_HELD,
    NullMasks,
    ValueNotHeldError,
    all_received,
    check_held,
    check_texts,
    received,
    sent_type,
    text_not_held,
    transport_of,
)
from pyspark_ckpt.operator.values.wire_form import holds, row_type_of

logger = library_logger(__name__)

TOKEN = "__ckpt_token"  # noqa: S105
KEY_GROUP = "__ckpt_key_group"

_ROWS_AT_ONCE = 512
"""Rows that are made at once, of several keys: they stay in the processor's cache. Made for each
key, ten rows took 2.8 us and not 1.8, one row 1.3 us and not 0.3 (measured)."""

_WINDOW = T.StructType(
    [T.StructField("start", T.TimestampType()), T.StructField("end", T.TimestampType())]
)

NO_DERIVED_KEYS: Mapping[str, str] = MappingProxyType({})

_ENCODED_AS_COLUMNS = (
    T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.BooleanType,
    T.StringType, T.BinaryType, T.DateType, T.TimestampType,
)  # fmt: skip
"""Types of keys that are stored as they are sent."""


class InputColumns:
    """The columns of a keyed stream, on the driver and, after the shuffle, on the executor.

    `key_names` are in the order given to ``key_by``. `derived_keys` are the key columns that the
    user's DataFrame does not have: it maps their names in the schema, where they are the last, to
    the names that the user sees. Rows do not have them.
    """

    def __init__(
        self,
        schema: T.StructType,
        key_names: Sequence[str],
        time_zone: str = "UTC",
        derived_keys: Mapping[str, str] = NO_DERIVED_KEYS,
    ) -> None:
        self.schema = schema
        self.key_names = tuple(derived_keys.get(name, name) for name in key_names)
        self._key_fields = [
            schema[name] if shown == name else T.StructField(shown, schema[name].dataType)
            for name, shown in zip(key_names, self.key_names, strict=True)
        ]
        self.sent_key_names, self.derived_keys = tuple(key_names), dict(derived_keys)
        self._shown = len(schema.fields) - len(derived_keys)
        self.time_zone = python_zone(time_zone)
        if holds(schema, T.TimestampType):
            zone_of(time_zone)  # refused here rather than on the executors
        self._transports = [transport_of(field, self.time_zone) for field in schema.fields]
        self._masks = NullMasks(
            [
                index
                for index, field in enumerate(schema.fields)
                if field.nullable and self._transports[index].filler is not None
            ]
        )
        self._key_indexes = [schema.names.index(name) for name in key_names]
        self._frames_are_exact = False
        self.event_time_index = event_time_index(schema)
        for field in self._key_fields:
            check_key(field)
        self._json_keys = {
            index: JsonKey(schema.fields[index], self.time_zone)
            for index in self._key_indexes
            if isinstance(self._transports[index].receive, JsonReader)
        }

        self._keys_as_sent = not any(self._transports[index].receive for index in self._key_indexes)

    @property
    def key_schema(self) -> T.StructType:
        """The schema of a key tuple."""
        return T.StructType(self._key_fields)

    @property
    def watermark_delay_ms(self) -> int:
        """The delay of the stream's watermark; 0 if it has none."""
        index = self.event_time_index
        return 0 if index is None else int(self.schema.fields[index].metadata[WATERMARK_DELAY])

    def key_columns(self) -> list[Column]:
        """Return the key columns in the form that is hashed."""
        return [
            canonical_column(_quoted(name), self.schema[name].dataType)
            for name in self.sent_key_names
        ]

    def plain_key_columns(self) -> list[Column]:
        """Return the key columns as they are, under the names that the user sees."""
        return [
            _quoted(name).alias(shown)
            for name, shown in zip(self.sent_key_names, self.key_names, strict=True)
        ]

    def columns(self) -> list[Column]:
        """Return the expressions that travel: the columns by position, then the null masks."""
        values = []
        for index, field in enumerate(self.schema.fields):
            transport = self._transports[index]
            column = transport.send(_quoted(field.name))
            filler = transport.filler
            if index == self.event_time_index and filler is not None:
                filler = NEVER_LATE
            if index in self._masks.nullable:
                column = F.coalesce(column, F.lit(filler).cast(sent_type(field)))
            values.append(self._named(column, index))
        masks = self._masks.columns([_quoted(name) for name in self.schema.names])
        # An operator emits at a timer's time, which the watermark has passed: no such row is late.
        event_time = [never_late_column()] if self._is_emitted else self._window_end()
        return values + masks + event_time

    def _window_end(self) -> list[Column]:
        """Return the column of event time of windows, none if event time is a separate column."""
        index = self.event_time_index
        if index is None or not is_window(self.schema.fields[index].dataType):
            return []
        window = _quoted(self.schema.fields[index].name)
        return [end_of_window_column(window, self.watermark_delay_ms)]

    @property
    def null_masks(self) -> NullMasks:
        """The masks that nulls travel in."""
        return self._masks

    def filler(self, index: int) -> Any:
        """Return what a column has in place of a null that travels in a mask."""
        return self._transports[index].filler

    @property
    def sent_schema(self) -> pa.Schema:
        """The Arrow schema of the rows that come out of the shuffle, without the token."""
        fields = [
            T.StructField(f"c{index}", sent_type(field))
            for index, field in enumerate(self.schema.fields)
        ]
        key_group = T.StructField(KEY_GROUP, T.IntegerType())
        return to_arrow_schema(T.StructType([key_group, *fields, *self._masks.fields]))

    @property
    def decode_key(self) -> Callable[[bytes], tuple[Any, ...]]:
        """A function from a stored key to the key that the processor sees."""
        row_type = row_type_of(list(self.key_names))
        decode = self._decode_sent_key
        # PySpark shows the key of a fired timer as a Row.
        return lambda data: tuple.__new__(row_type, self.user_key(decode(data)))

    def arrow_stored_keys(self, stored: Sequence[bytes]) -> pa.Table:
        """Return stored keys as columns, as :meth:`arrow_keys` has those of rows.

        No value of a column of times becomes one of Python, which has fewer years than Spark.
        """
        columns = zip(*map(self._decode_sent_key, stored), strict=True)
        arrays = [
            self._arrow_key(index, values)
            for index, values in zip(self._key_indexes, columns, strict=True)
        ]
        return pa.Table.from_arrays(arrays, names=list(self.key_names))

    def joined(self, batches: SentRows) -> pa.RecordBatch:
        """Return sent rows as one batch."""
        return joined(batches)

    def taken(self, sent: pa.RecordBatch, places: Places) -> pa.RecordBatch:
        """Return the rows at some places."""
        return taken(sent, places)

    def size_bytes(self, sent: pa.RecordBatch) -> int:
        """Return the size of sent rows in Arrow."""
        size: int = sent.select(self.sent_schema.names).nbytes
        return size

    def rows(self, sent: pa.RecordBatch) -> Iterator[Row]:
        """Return sent rows as the user's Rows, in their order."""
        return self.row_slices(sent)(0, len(sent))

    def row_slices(self, sent: pa.RecordBatch) -> Callable[[int, int], Iterator[Row]]:
        """Return a function that makes the Rows between two places of sent rows.

        Rows are made shortly before they are asked for, so that they are gone early: holding the
        Rows of an epoch took as long as using them.
        """
        columns = self._received_values(self._sent_values(sent, range(self._shown)))
        make_row, row_type = tuple.__new__, row_type_of(self.schema.names[: self._shown])

        def made(start: int, stop: int) -> Iterator[Row]:
            values = zip(*[column[start:stop] for column in columns], strict=True)
            return map(make_row, repeat(row_type), values)

        first = end = 0
        at_once: list[Row] = []

        def rows(start: int, stop: int) -> Iterator[Row]:
            nonlocal first, end, at_once
            if stop - start > _ROWS_AT_ONCE:
                return made(start, stop)
            if not first <= start <= stop <= end:
                first, end = start, start + _ROWS_AT_ONCE
                at_once = list(made(first, end))
            return iter(at_once[start - first : stop - first])

        return rows

    def sent_keys(self, sent: pa.RecordBatch) -> Sequence[tuple[Any, ...]]:
        """Return the key of each row in its shuffle form."""
        values = self._sent_values(sent, self._key_indexes)
        columns = [self._canonical_keys(index, values[index]) for index in self._key_indexes]
        return list(zip(*columns, strict=True))

    def key_groups(self, sent: pa.RecordBatch) -> Places:
        """Return the key group of each row."""
        return numbers_of(sent.column(KEY_GROUP))

    def encoded_keys(self, sent: pa.RecordBatch) -> pa.BinaryArray:
        """Return the key of each row as it is stored."""
        if not all(isinstance(field.dataType, _ENCODED_AS_COLUMNS) for field in self._key_fields):
            return pa.array(map(key_encoder(), self.sent_keys(sent)), pa.binary())
        nulls = self._masks.flags(sent)
        columns = [
            with_nulls(sent.column(f"c{index}"), nulls.get(index)) for index in self._key_indexes
        ]
        for field, column in zip(self._key_fields, columns, strict=True):
            check_texts(field, column)  # others can no longer be read
        return encoded_tuples(columns, self.key_schema, Form.KEY)

    def with_exact_frames(self) -> InputColumns:
        """Return the columns, whose frames keep all digits of integers in columns with nulls."""
        exact = copy(self)
        exact._frames_are_exact = True  # noqa: SLF001
        return exact

    def pandas_frame(self, sent: pa.RecordBatch) -> pd.DataFrame:
        """Return sent rows in the user's columns, with the dtypes that PySpark's Arrow gives.

        Integers in columns with nulls are floats, or ``Int64`` after :meth:`with_exact_frames`.
        """
        nulls = self._masks.flags(sent)
        return pd.DataFrame(
            {
                self.schema.names[index]: self._pandas_column(index, sent, nulls)
                for index in range(self._shown)
            }
        )

    def pandas_keys(self, sent: pa.RecordBatch) -> pd.DataFrame:
        """Return the keys of sent rows as columns, as :meth:`pandas_frame` has them."""
        sent = self._with_canonical_keys(sent)
        nulls = self._masks.flags(sent)
        return pd.DataFrame(
            {
                name: self._pandas_column(index, sent, nulls)
                for name, index in zip(self.key_names, self._key_indexes, strict=True)
            }
        )

    def arrow_rows(self, sent: pa.RecordBatch) -> pa.Table:
        """Return sent rows in the user's columns, in Arrow."""
        names = self.schema.names[: self._shown]
        return self._arrow_table(sent, names, range(self._shown))

    def arrow_keys(self, sent: pa.RecordBatch) -> pa.Table:
        """Return the keys of sent rows as columns, as :meth:`arrow_rows` has them."""
        sent = self._with_canonical_keys(sent)
        return self._arrow_table(sent, self.key_names, self._key_indexes)

    def newest_times_ms(self, sent: pa.RecordBatch, bounds: Sequence[int]) -> list[int | None]:
        """Return the newest event time of the rows from each bound to the next, ``None`` without.

        It is taken from what was sent, so that it does not depend on how a processor sees times.
        """
        if self.event_time_index is None:
            return [None] * (len(bounds) - 1)
        column = sent.column(f"c{self.event_time_index}")
        if is_window(self.schema.fields[self.event_time_index].dataType):
            return self._newest_ends_ms(column, bounds)
        times = numbers_of(column)
        nulls = self._masks.flags(sent).get(self.event_time_index)
        return newest_ms(times, nulls, bounds)

    def _newest_ends_ms(self, windows: pa.Array, bounds: Sequence[int]) -> list[int | None]:
        read = JsonReader(_WINDOW, "UTC")
        shown = [None if text is None else read(text) for text in windows.to_pylist()]
        ends = [None if window is None else window["end"] for window in shown]
        nulls = np.array([end is None for end in ends], dtype=bool)
        times = np.array([0 if end is None else microseconds_of(end) for end in ends], np.int64)
        return newest_ms(times, nulls, bounds)

    def key_codes(self, sent: pa.RecordBatch) -> Codes:
        """Return a number for each row: equal for equal keys, and without gaps."""
        nulls = self._masks.flags(sent)
        return combined([self._codes(index, sent, nulls.get(index)) for index in self._key_indexes])

    def text_not_held(self, sent_name: str, data: bytes) -> ValueNotHeldError:
        """Return the error for a text that is not UTF-8 in a column as it is sent."""
        return text_not_held(self._field(int(sent_name.removeprefix("c"))), data)

    def user_keys(self, sent_keys: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        """Return keys as the user's processor sees them."""
        if self._keys_as_sent:
            return sent_keys
        try:
            return list(map(self.user_key, sent_keys))
        except NOT_HELD:
            for index, values in zip(self._key_indexes, zip(*sent_keys, strict=True), strict=True):
                if index not in self._json_keys:
                    check_held(self._field(index), self._transports[index], values)
            raise

    def user_key(self, sent_key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the key as the user's processor sees it."""
        if self._keys_as_sent:
            return sent_key
        return tuple(
            self._json_keys[index].shown(value)
            if index in self._json_keys
            else received(self._transports[index], value)
            for index, value in zip(self._key_indexes, sent_key, strict=True)
        )

    @cached_property
    def _decode_sent_key(self) -> Callable[[bytes], tuple[Any, ...]]:
        """A function from a stored key to its shuffle form."""
        types = [
            Decimal | None if isinstance(field.dataType, T.DecimalType) else Any
            for field in self._key_fields
        ]
        return msgspec.msgpack.Decoder(tuple.__class_getitem__(tuple(types))).decode

    def _arrow_key(self, index: int, sent: Sequence[Any]) -> pa.Array:
        data_type = self.schema.fields[index].dataType
        if index in self._json_keys:
            return values_column(data_type, list(map(self._json_keys[index].shown, sent)))
        column = pa.array(sent, self.sent_schema.field(f"c{index}").type)
        return shown_column(data_type, column, None, self._transports[index])

    def _arrow_table(
        self, sent: pa.RecordBatch, names: Sequence[str], indexes: Sequence[int]
    ) -> pa.Table:
        nulls = self._masks.flags(sent)
        columns = [self._arrow_column(index, sent, nulls) for index in indexes]
        return pa.Table.from_arrays(columns, names=list(names))

    def _arrow_column(
        self, index: int, sent: pa.RecordBatch, nulls: Mapping[int, Places]
    ) -> pa.Array | pa.ChunkedArray:
        field, column = self._field(index), sent.column(f"c{index}")
        transport = self._transports[index]
        try:
            return shown_column(field.dataType, column, nulls.get(index), transport)
        except NOT_HELD:
            check_held(field, transport, column)
            raise

    def _pandas_column(
        self, index: int, sent: pa.RecordBatch, nulls: Mapping[int, Places]
    ) -> pd.Series[Any]:
        field, column = self._field(index), sent.column(f"c{index}")
        transport, null = self._transports[index], nulls.get(index)
        make = partial(
            pandas_column,
            field.dataType,
            transport=transport,
            time_zone=self.time_zone,
            exact=self._frames_are_exact,
        )
        if not self._frames_are_exact and loses_digits(column, null):
            _warn_of_lost_digits(field.name)
        try:
            return make(column, null)
        except NOT_HELD as exc:
            check_held(field, transport, column)
            check_frame(field, make, column, null)
            raise ValueNotHeldError(
                f"column {field.name!r}: {exc}; set spark.sql.session.timeZone to UTC, or make "
                "timestamp_ntz of the keys"
            ) from exc

    def _codes(self, index: int, sent: pa.RecordBatch, nulls: Places | None) -> Codes:
        column = sent.column(f"c{index}")
        if pa.types.is_primitive(column.type):
            return codes_of_numbers(numbers_of(column), nulls)
        if index in self._json_keys or pa.types.is_decimal(column.type):
            return codes_of_objects(self._canonical_keys(index, values_of(column)))
        return codes_of_texts(column)

    def _field(self, index: int) -> T.StructField:
        """Return a column under the name that the user sees."""
        field = self.schema.fields[index]
        shown = self.derived_keys.get(field.name)
        return field if shown is None else T.StructField(shown, field.dataType)

    def _named(self, column: Column, index: int) -> Column:
        name = f"c{index}"
        is_time = isinstance(self.schema.fields[index].dataType, T.TimestampType)
        if index != self.event_time_index or self._is_emitted or not is_time:
            return column.alias(name)
        # Spark finds event time by this metadata, and compares microseconds, whatever the type.
        return column.alias(name, metadata={WATERMARK_DELAY: self.watermark_delay_ms})

    @property
    def _is_emitted(self) -> bool:
        """Whether event time comes from an operator of this library rather than a source."""
        index = self.event_time_index
        return index is not None and is_emitted(self.schema.fields[index])

    def _sent_values(self, sent: pa.RecordBatch, indexes: Sequence[int]) -> list[list[Any]]:
        """Return some of the sent columns as lists, with ``None`` for nulls; others are empty."""
        columns: list[list[Any]] = [[]] * len(self.schema.fields)
        for index in indexes:
            column = sent.column(f"c{index}")
            try:
                columns[index] = values_of(column)
            except NOT_HELD:
                check_texts(self._field(index), column)
                raise
        for index, flags in self._masks.flags(sent).items():
            if columns[index]:
                for row in flags.nonzero()[0].tolist():
                    columns[index][row] = None
        return columns

    def _received_values(self, sent: list[list[Any]]) -> list[list[Any]]:
        return [self._received(index, values) for index, values in enumerate(sent[: self._shown])]

    def _received(self, index: int, values: list[Any]) -> list[Any]:
        transport = self._transports[index]
        try:
            return all_received(transport, values)
        except NOT_HELD:
            check_held(self._field(index), transport, values)
            raise

    def _canonical_keys(self, index: int, sent: list[Any]) -> list[Any]:
        if index in self._json_keys:
            try:
                return list(map(self._json_keys[index].canonical, sent))
            except NOT_HELD:
                check_held(self._field(index), self._transports[index], sent)
                raise
        canonical = canonical_of(self.schema.fields[index].dataType)
        if canonical is None:
            return sent
        return [None if value is None else canonical(value) for value in sent]

    def _with_canonical_keys(self, sent: pa.RecordBatch) -> pa.RecordBatch:
        """Return sent rows whose keys do not show which of several equal ones came first."""
        columns = dict(zip(sent.schema.names, sent.columns, strict=True))
        for index in self._key_indexes:
            data_type, json_key = self.schema.fields[index].dataType, self._json_keys.get(index)
            columns[f"c{index}"] = canonical_sent(columns[f"c{index}"], data_type, json_key)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=sent.schema)


@cache
def _warn_of_lost_digits(column: str) -> None:
    """Warn of a column, once in each process."""
    logger.warning(
        "input column %r has nulls and integers beyond 2**53: in this processor's frames they are "
        "floats, which do not have all digits, as in PySpark. A BatchProcessor, an ArrowProcessor "
        "and a processor of rows get them exact, and so does this one if the column is cast to "
        "string or decimal(20,0) before key_by",
        column,
    )


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
