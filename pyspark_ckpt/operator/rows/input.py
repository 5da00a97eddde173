"""Input rows as they cross the shuffle: columns that survive pandas exactly.

Spark hands the operator pandas frames, where a null turns an integer column into floats and a
timestamp loses range. So null flags travel as bits of one mask column, and dates and timestamps as
integers; :class:`InputColumns` builds that in the plan and takes it apart on the executor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
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

from pyspark_ckpt.operator.rows.key_columns import (
    Codes,
    canonical_column,
    check_key,
    codes_of_numbers,
    codes_of_objects,
    codes_of_texts,
    combined,
)
from pyspark_ckpt.operator.time import (
    NEVER_LATE,
    WATERMARK_DELAY,
    event_time_index,
    is_emitted,
    never_late_column,
)
from pyspark_ckpt.operator.values.json import JsonKey, JsonReader
from pyspark_ckpt.operator.values.pandas import pandas_column
from pyspark_ckpt.operator.values.transport import (
    NullMasks,
    all_received,
    received,
    sent_type,
    transport_of,
)
from pyspark_ckpt.operator.values.wire_form import row_type_of

TOKEN = "__ckpt_token"  # noqa: S105
KEY_GROUP = "__ckpt_key_group"

NO_DERIVED_KEYS: Mapping[str, str] = MappingProxyType({})

_NAN = float("nan")


class InputColumns:
    """The columns of a keyed stream, on the driver and, after the shuffle, on the executor.

    Parameters
    ----------
    schema
        Schema of the user's DataFrame.
    key_names
        Its key columns, in the order given to ``key_by``.
    time_zone
        The session's time zone, which timestamps of rows and keys carry.
    derived_keys
        Key columns that the user's DataFrame does not have: from their names in the schema, where
        they are the last, to the names that the user sees. Rows do not have them.

    Raises
    ------
    NotBuiltYetError
        If a column has a type that is not built yet; names column and type.
    PlanError
        If a key column has a type that cannot be a key; names column and type.
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
        self._sent_keys = tuple(key_names)
        self._shown = len(schema.fields) - len(derived_keys)
        self.time_zone = time_zone
        self._transports = [transport_of(field, time_zone) for field in schema.fields]
        self._masks = NullMasks(
            [
                index
                for index, field in enumerate(schema.fields)
                if field.nullable and self._transports[index].filler is not None
            ]
        )
        self._key_indexes = [schema.names.index(name) for name in key_names]
        self.event_time_index = event_time_index(schema)
        for field in self._key_fields:
            check_key(field)
        self._json_keys = {
            index: JsonKey(schema.fields[index], time_zone)
            for index in self._key_indexes
            if isinstance(self._transports[index].receive, JsonReader)
        }

        self._arrow_types = to_arrow_schema(
            T.StructType(
                [T.StructField(f"c{n}", sent_type(field)) for n, field in enumerate(schema.fields)]
            )
        ).types
        self._keys_as_sent = not any(self._transports[index].receive for index in self._key_indexes)

    @property
    def key_schema(self) -> T.StructType:
        """The schema of a key tuple."""
        return T.StructType(self._key_fields)

    def key_columns(self) -> list[Column]:
        """Return the key columns in the form that is hashed."""
        return [
            canonical_column(_quoted(name), self.schema[name].dataType) for name in self._sent_keys
        ]

    def columns(self) -> list[Column]:
        """Return the expressions that travel: the columns by position, then the null masks."""
        values = []
        for index, field in enumerate(self.schema.fields):
            transport = self._transports[index]
            column = transport.send(_quoted(field.name))
            filler = transport.filler
            if index == self.event_time_index:
                filler = NEVER_LATE
            if index in self._masks.nullable:
                column = F.coalesce(column, F.lit(filler).cast(sent_type(field)))
            values.append(self._named(column, index))
        masks = self._masks.columns([_quoted(name) for name in self.schema.names])
        # An operator emits at a timer's time, which the watermark has passed: no such row is late.
        never_late = [never_late_column()] if self._is_emitted else []
        return values + masks + never_late

    @property
    def sent_schema(self) -> pa.Schema:
        """The Arrow schema of the frames that come out of the shuffle, without the token."""
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
        types = [
            Decimal | None if isinstance(field.dataType, T.DecimalType) else Any
            for field in self._key_fields
        ]
        decode = msgspec.msgpack.Decoder(tuple.__class_getitem__(tuple(types))).decode
        # PySpark shows the key of a fired timer as a Row.
        return lambda data: tuple.__new__(row_type, self.user_key(decode(data)))

    def rows(self, frame: pd.DataFrame) -> Iterator[Row]:
        """Return sent rows as the user's Rows, in their order."""
        return self.row_slices(frame)(0, len(frame))

    def row_slices(self, frame: pd.DataFrame) -> Callable[[int, int], Iterator[Row]]:
        """Return a function that makes the Rows between two places of a sent frame.

        Each Row is made when it is asked for, so that it is gone early: holding the Rows of an
        epoch took as long as using them.
        """
        columns = self._received_values(self._sent_values(frame, range(self._shown)))
        make_row, row_type = tuple.__new__, row_type_of(self.schema.names[: self._shown])

        def rows(start: int, stop: int) -> Iterator[Row]:
            values = zip(*[column[start:stop] for column in columns], strict=True)
            return map(make_row, repeat(row_type), values)

        return rows

    def sent_keys(self, frame: pd.DataFrame) -> Sequence[tuple[Any, ...]]:
        """Return the key of each row in its shuffle form."""
        sent = self._sent_values(frame, self._key_indexes)
        columns = [self._canonical_keys(index, sent[index]) for index in self._key_indexes]
        return list(zip(*columns, strict=True))

    def key_groups(self, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
        """Return the key group of each row."""
        return frame[KEY_GROUP].to_numpy()

    def pandas_frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return sent rows in the user's columns, with the dtypes that PySpark's Arrow gives."""
        nulls = self._masks.flags(frame)
        return pd.DataFrame(
            {
                self.schema.names[index]: self._pandas_column(index, frame, nulls)
                for index in range(self._shown)
            }
        )

    def pandas_keys(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the keys of sent rows as columns, as :meth:`pandas_frame` has them."""
        nulls = self._masks.flags(frame)
        return pd.DataFrame(
            {
                name: self._pandas_column(index, frame, nulls)
                for name, index in zip(self.key_names, self._key_indexes, strict=True)
            }
        )

    def newest_event_time_ms(self, rows: pd.DataFrame) -> int | None:
        """Return the newest event time in a frame of :meth:`pandas_frame`."""
        if self.event_time_index is None:
            return None
        newest = rows[self.schema.names[self.event_time_index]].max()
        if newest is pd.NaT:
            return None
        zoned = newest.tz_localize(self.time_zone, ambiguous=False, nonexistent="shift_forward")
        return int(zoned.timestamp() * 1000)

    def key_codes(self, frame: pd.DataFrame) -> Codes:
        """Return a number for each row: equal for equal keys, and without gaps."""
        nulls = self._masks.flags(frame)
        return combined(
            [self._codes(index, frame, nulls.get(index)) for index in self._key_indexes]
        )

    def user_keys(self, sent_keys: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        """Return keys as the user's processor sees them."""
        return sent_keys if self._keys_as_sent else list(map(self.user_key, sent_keys))

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

    def _pandas_column(
        self, index: int, frame: pd.DataFrame, nulls: Mapping[int, np.ndarray[Any, Any]]
    ) -> pd.Series[Any]:
        return pandas_column(
            self.schema.fields[index].dataType,
            frame[f"c{index}"],
            nulls.get(index),
            self._transports[index],
            self.time_zone,
        )

    def _codes(self, index: int, frame: pd.DataFrame, nulls: np.ndarray[Any, Any] | None) -> Codes:
        column = frame[f"c{index}"]
        if column.dtype.kind in "iufb":
            return codes_of_numbers(column.to_numpy(), nulls)
        arrow_type = self._arrow_types[index]
        if index not in self._json_keys and arrow_type in (pa.string(), pa.binary()):
            return codes_of_texts(column.to_numpy(), arrow_type)
        return codes_of_objects(self._canonical_keys(index, column.tolist()))

    def _named(self, column: Column, index: int) -> Column:
        name = f"c{index}"
        if index != self.event_time_index or self._is_emitted:
            return column.alias(name)
        # Spark finds event time by this metadata, and compares microseconds, whatever the type.
        delay = self.schema.fields[index].metadata[WATERMARK_DELAY]
        return column.alias(name, metadata={WATERMARK_DELAY: delay})

    @property
    def _is_emitted(self) -> bool:
        """Whether event time comes from an operator of this library rather than a source."""
        index = self.event_time_index
        return index is not None and is_emitted(self.schema.fields[index])

    def _sent_values(
        self, frame: pd.DataFrame, indexes: Sequence[int] | None = None
    ) -> list[list[Any]]:
        """Return the sent columns as lists, with ``None`` for nulls; of all columns or of some."""
        wanted = range(len(self.schema.fields)) if indexes is None else indexes
        columns: list[list[Any]] = [[]] * len(self.schema.fields)
        for index in wanted:
            columns[index] = frame[f"c{index}"].tolist()
        for index, flags in self._masks.flags(frame).items():
            if columns[index]:
                for row in flags.nonzero()[0].tolist():
                    columns[index][row] = None
        return columns

    def _received_values(self, sent: list[list[Any]]) -> list[list[Any]]:
        return [
            all_received(transport, values)
            for transport, values in zip(self._transports, sent[: self._shown], strict=False)
        ]

    def _canonical_keys(self, index: int, sent: list[Any]) -> list[Any]:
        if index in self._json_keys:
            return list(map(self._json_keys[index].canonical, sent))
        if isinstance(self.schema.fields[index].dataType, T.FloatType | T.DoubleType):
            return [_canonical_key(value) for value in sent]
        return sent


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _canonical_key(value: float | None) -> float | None:
    # One NaN object, so that dictionaries find it; -0.0 and 0.0 are the same key.
    if value is None:
        return None
    return _NAN if math.isnan(value) else value + 0.0
