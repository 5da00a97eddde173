"""Input rows: the columns of a keyed stream in the plan, and as a processor gets them.

Rows travel as Spark has them: the columns by position, in Spark's own Arrow types.
:class:`InputColumns` says so in the plan, and shows them on the executor as Rows, frames or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cache, cached_property, partial
from itertools import repeat
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.rows.key_columns import (
    Codes,
    canonical_column,
    canonical_keys,
    check_key,
    codes_of_column,
    combined,
)
from pyspark_ckpt.operator.rows.sent_rows import Places
from pyspark_ckpt.operator.time import (
    MOST_MS,
    WATERMARK_DELAY,
    event_time_index,
    is_emitted,
    is_window,
    never_late_column,
)
from pyspark_ckpt.values.arrow import arrow_array, arrow_type
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.columns import numbers_of
from pyspark_ckpt.values.encoded import Form, encoded_tuples
from pyspark_ckpt.values.frames import check_frame, loses_digits, pandas_column
from pyspark_ckpt.values.nesting import holds, sql_name
from pyspark_ckpt.values.plain import aware_timestamp, fields_converter, row_style, row_type_of
from pyspark_ckpt.values.shown import (
    NOT_HELD,
    ValueNotHeldError,
    check_held,
    check_texts,
    newest_ms,
    retyped,
    shown_column,
    values_of,
)
from pyspark_ckpt.values.spark import sent
from pyspark_ckpt.values.time_zones import python_zone, zone_of
from pyspark_ckpt.values.types import INSTANTS, KeyForm, Kind, key_form_of, leaf_of, stored_key_type
from pyspark_ckpt.values.user import Converter

logger = library_logger(__name__)

TOKEN = "__ckpt_token"  # noqa: S105
KEY_GROUP = "__ckpt_key_group"

_ROWS_AT_ONCE = 512
"""Rows that are made at once, of several keys: they stay in the processor's cache. Made for each
key, ten rows took 2.8 us and not 1.8, one row 1.3 us and not 0.3 (measured)."""

NO_DERIVED_KEYS: Mapping[str, str] = MappingProxyType({})


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
        if holds(schema, INSTANTS):
            zone_of(time_zone)  # refused here rather than on the executors
        self._types = [_arrow_type(field) for field in schema.fields]
        self._key_indexes = [schema.names.index(name) for name in key_names]
        self._frames_are_exact = False
        self.keeps_late_rows = False
        """Whether late rows reach the operator, which Spark drops otherwise."""
        self.event_time_index = event_time_index(schema)
        for field in self._key_fields:
            check_key(field)

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
            canonical_column(F.col(sql_name(name)), self.schema[name].dataType)
            for name in self.sent_key_names
        ]

    def plain_key_columns(self) -> list[Column]:
        """Return the key columns as they are, under the names that the user sees."""
        return [
            F.col(sql_name(name)).alias(shown)
            for name, shown in zip(self.sent_key_names, self.key_names, strict=True)
        ]

    def columns(self) -> list[Column]:
        """Return the expressions that travel: the columns by position."""
        columns = [
            self._named(sent(field.dataType, F.col(sql_name(field.name))), index)
            for index, field in enumerate(self.schema.fields)
        ]
        return columns if self._spark_drops_late_rows else [*columns, never_late_column()]

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the rows once :meth:`arriving` has seen them."""
        fields = [(f"c{index}", kind) for index, kind in enumerate(self._types)]
        return pa.schema([(KEY_GROUP, pa.int32()), *fields])

    def arriving(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that come out of the shuffle in the library's Arrow types."""
        arrays = [
            retyped(batch.column(f"c{index}"), kind) for index, kind in enumerate(self._types)
        ]
        names = [f"c{index}" for index in range(len(arrays))]
        return pa.RecordBatch.from_arrays(
            [batch.column(KEY_GROUP), *arrays], names=[KEY_GROUP, *names]
        )

    @property
    def decode_key(self) -> Callable[[bytes], tuple[Any, ...]]:
        """A function from a stored key to the key that the processor sees."""
        row_type = row_type_of(list(self.key_names))
        decode = self._decode_stored_key
        show = fields_converter([self._key_reader(index) for index in self._key_indexes])
        # PySpark shows the key of a fired timer as a Row.
        return lambda data: tuple.__new__(row_type, show(decode(data)))

    def arrow_stored_keys(self, stored: Sequence[bytes]) -> pa.Table:
        """Return stored keys as columns, as :meth:`arrow_keys` has those of rows.

        No value of a column of times becomes one of Python, which has fewer years than Spark.
        """
        arrays = [column for _, column in self._stored_columns(stored)]
        return pa.Table.from_arrays(arrays, names=list(self.key_names))

    def pandas_stored_keys(self, stored: Sequence[bytes]) -> pd.DataFrame:
        """Return stored keys as columns, as :meth:`pandas_keys` has those of rows."""
        return pd.DataFrame(
            {
                self._field(index).name: self._pandas_column(index, column)
                for index, column in self._stored_columns(stored)
            }
        )

    def rows(self, sent: pa.RecordBatch) -> Iterator[Row]:
        """Return sent rows as the user's Rows, in their order."""
        return self.row_slices(sent)(0, len(sent))

    def row_slices(self, sent: pa.RecordBatch) -> Callable[[int, int], Iterator[Row]]:
        """Return a function that makes the Rows between two places of sent rows.

        Rows are made shortly before they are asked for, so that they are gone early: holding the
        Rows of an epoch took as long as using them.
        """
        columns = [self._values(index, sent.column(f"c{index}")) for index in range(self._shown)]
        make_row, row_type = tuple.__new__, row_type_of(self.schema.names[: self._shown])

        def made(start: int, stop: int) -> Iterator[Row]:
            if not columns:  # which have no number of rows
                return map(make_row, repeat(row_type, min(stop, len(sent)) - start), repeat(()))
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

    def key_groups(self, sent: pa.RecordBatch) -> Places:
        """Return the key group of each row."""
        return numbers_of(sent.column(KEY_GROUP))

    def encoded_keys(self, sent: pa.RecordBatch) -> pa.BinaryArray:
        """Return the key of each row as it is stored."""
        columns = [sent.column(f"c{index}") for index in self._key_indexes]
        for field, column in zip(self._key_fields, columns, strict=True):
            check_texts(field, column)  # others can no longer be read
        return encoded_tuples(columns, self.key_schema, Form.KEY)

    def keys_of(self, sent: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return the keys of rows as the processor sees them."""
        columns = [
            self._values(index, canonical_keys(self._field(index), sent.column(f"c{index}")))
            for index in self._key_indexes
        ]
        return list(zip(*columns, strict=True))

    def key_codes(self, sent: pa.RecordBatch) -> Codes:
        """Return a number for each row: equal for equal keys, and without gaps."""
        return combined(
            [
                codes_of_column(self._field(index), sent.column(f"c{index}"))
                for index in self._key_indexes
            ]
        )

    def with_exact_frames(self) -> InputColumns:
        """Return the columns, whose frames keep all digits of integers in columns with nulls."""
        exact = copy(self)
        exact._frames_are_exact = True  # noqa: SLF001
        return exact

    @property
    def is_emitted(self) -> bool:
        """Whether event time comes from an operator of this library rather than a source."""
        index = self.event_time_index
        return index is not None and is_emitted(self.schema.fields[index])

    def with_late_rows(self) -> InputColumns:
        """Return the columns of rows that reach the operator however late they are."""
        if self.event_time_index is None or self.is_emitted:
            return self
        keeping = copy(self)
        keeping.keeps_late_rows = True
        return keeping

    def divided_by_time(
        self, sent: pa.RecordBatch, late_ms: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that are late, and the others; a row without event time is not late."""
        times_us = self._event_times(sent).cast(pa.int64())
        late_us = min(late_ms * 1_000, MOST_MS)
        is_late = pc.less_equal(times_us, late_us).fill_null(False)  # noqa: FBT003  # of Arrow
        if not is_late.true_count:
            return sent.slice(0, 0), sent
        return sent.filter(is_late), sent.filter(pc.invert(is_late))

    def pandas_frame(self, sent: pa.RecordBatch) -> pd.DataFrame:
        """Return sent rows in the user's columns, with the dtypes that PySpark's Arrow gives.

        Integers in columns with nulls are floats, or ``Int64`` after :meth:`with_exact_frames`.
        """
        return pd.DataFrame(
            {
                self.schema.names[index]: self._pandas_column(index, sent.column(f"c{index}"))
                for index in range(self._shown)
            }
        )

    def pandas_keys(self, sent: pa.RecordBatch) -> pd.DataFrame:
        """Return the keys of sent rows as columns, as :meth:`pandas_frame` has them."""
        return pd.DataFrame(
            {
                self._field(index).name: self._pandas_column(
                    index, canonical_keys(self._field(index), sent.column(f"c{index}"))
                )
                for index in self._key_indexes
            }
        )

    def arrow_rows(self, sent: pa.RecordBatch) -> pa.Table:
        """Return sent rows in the user's columns, in Arrow."""
        columns = [
            shown_column(self.schema.fields[index].dataType, sent.column(f"c{index}"))
            for index in range(self._shown)
        ]
        return pa.Table.from_arrays(columns, names=self.schema.names[: self._shown])

    def arrow_keys(self, sent: pa.RecordBatch) -> pa.Table:
        """Return the keys of sent rows as columns, as :meth:`arrow_rows` has them."""
        columns = [
            shown_column(
                self.schema.fields[index].dataType,
                canonical_keys(self._field(index), sent.column(f"c{index}")),
            )
            for index in self._key_indexes
        ]
        return pa.Table.from_arrays(columns, names=list(self.key_names))

    def newest_times_ms(self, sent: pa.RecordBatch, bounds: Sequence[int]) -> list[int | None]:
        """Return the newest event time of the rows from each bound to the next, ``None`` without.

        It is taken from what was sent, so that it does not depend on how a processor sees times.
        """
        if self.event_time_index is None:
            return [None] * (len(bounds) - 1)
        return newest_ms(self._event_times(sent), bounds)

    def _event_times(self, sent: pa.RecordBatch) -> pa.Array:
        assert self.event_time_index is not None  # the caller has looked
        column = sent.column(f"c{self.event_time_index}")
        if is_window(self.schema.fields[self.event_time_index].dataType):
            _, column = column.flatten()  # its end
        return column

    @cached_property
    def _decode_stored_key(self) -> Callable[[bytes], tuple[Any, ...]]:
        """A function from a stored key to the values in it."""
        return msgspec.msgpack.Decoder(stored_key_type(self._key_fields)).decode

    @cached_property
    def _decode_bytes(self) -> dict[int, Callable[[bytes], tuple[Any, ...]]]:
        """Functions from a value in a stored key to its plain form, where it is bytes."""
        return {
            index: TupleCodec(
                T.StructType([field]), f"key column {field.name!r}", is_key=True, style=None
            ).decode
            for index, field in zip(self._key_indexes, self._key_fields, strict=True)
            if key_form_of(field.dataType) is KeyForm.ENCODED
        }

    def _key_reader(self, index: int) -> Converter | None:
        """Return a function from a value in a stored key to the one that a processor sees."""
        field = self._field(index)
        data_type = field.dataType
        if key_form_of(data_type) is KeyForm.ENCODED:
            style, what = row_style(zone_of(self.time_zone)), f"key column {field.name!r}"
            codec = TupleCodec(T.StructType([field]), what, is_key=True, style=style)
            return lambda data: codec.decode(data)[0]
        row = leaf_of(data_type)
        if row.kind is Kind.INSTANT:
            return partial(aware_timestamp, zone_of(self.time_zone))
        if row.key_form is KeyForm.TEXT:
            return _local_time
        return None if row.read is None else row.read(data_type)

    def _stored_columns(self, stored: Sequence[bytes]) -> list[tuple[int, pa.Array]]:
        """Return the columns of stored keys, each with its place in the schema."""
        columns = zip(*map(self._decode_stored_key, stored), strict=True)
        return [
            (index, self._stored_column(index, values))
            for index, values in zip(self._key_indexes, columns, strict=True)
        ]

    def _stored_column(self, index: int, values: Sequence[Any]) -> pa.Array:
        data_type = self.schema.fields[index].dataType
        decode = self._decode_bytes.get(index)
        if decode is not None:
            return arrow_array(data_type, [decode(value)[0] for value in values])
        if key_form_of(data_type) is KeyForm.TEXT:
            # Arrow cannot read years before the first and after 9999.
            texts = ["1970-01-01" if value is None else value for value in values]
            times = np.array(texts, "datetime64[us]").astype(np.int64)
            nulls = np.array([value is None for value in values], bool)
            return pa.array(times, mask=nulls).view(arrow_type(data_type))
        return arrow_array(data_type, values)

    def _values(self, index: int, column: pa.Array) -> list[Any]:
        data_type = self.schema.fields[index].dataType
        try:
            return values_of(data_type, column, self.time_zone)
        except NOT_HELD:
            read = partial(values_of, data_type, time_zone=self.time_zone)
            check_held(self._field(index), column, read)
            raise

    def _pandas_column(self, index: int, column: pa.Array) -> pd.Series[Any]:
        field = self._field(index)
        make = partial(
            pandas_column, field.dataType, time_zone=self.time_zone, exact=self._frames_are_exact
        )
        if not self._frames_are_exact and loses_digits(column):
            _warn_of_lost_digits(field.name)
        try:
            return make(column)
        except NOT_HELD as exc:
            read = partial(values_of, field.dataType, time_zone=self.time_zone)
            check_held(field, column, read)
            check_frame(field, make, column)
            raise ValueNotHeldError(
                f"column {field.name!r}: {exc}; set spark.sql.session.timeZone to UTC, or make "
                "timestamp_ntz of the keys"
            ) from exc

    def _field(self, index: int) -> T.StructField:
        """Return a column under the name that the user sees."""
        field = self.schema.fields[index]
        shown = self.derived_keys.get(field.name)
        return field if shown is None else T.StructField(shown, field.dataType)

    def _named(self, column: Column, index: int) -> Column:
        name = f"c{index}"
        if index != self.event_time_index or not self._spark_drops_late_rows:
            return column.alias(name, metadata={})
        return column.alias(name, metadata={WATERMARK_DELAY: self.watermark_delay_ms})

    @property
    def _spark_drops_late_rows(self) -> bool:
        # An operator emits at a timer's time, which the watermark has passed: no such row is late.
        return not (self.keeps_late_rows or self.is_emitted)


def _local_time(text: str) -> datetime:
    # Without trailing zeros of the fraction, and Python 3.10 cannot read such a fraction.
    seconds, _, fraction = text.partition(".")
    time = datetime.fromisoformat(seconds)
    return time.replace(microsecond=int(fraction.ljust(6, "0"))) if fraction else time


def _arrow_type(field: T.StructField) -> pa.DataType:
    try:
        return arrow_type(field.dataType)
    except NotBuiltYetError as exc:
        raise NotBuiltYetError(
            f"column {field.name!r}: {exc}; drop it or turn it into strings before key_by"
        ) from None


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
