"""Rows of quarantined keys: values that a state can hold, and the rows as they were sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP, InputColumns
from pyspark_ckpt.operator.time import NEVER_LATE
from pyspark_ckpt.operator.values.sent_columns import is_text, with_nulls
from pyspark_ckpt.operator.values.transport import MASK, sent_type

_KEPT_TYPES = (
    T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.BooleanType,
    T.StringType, T.BinaryType, T.DecimalType, T.DateType, T.TimestampType,
)  # fmt: skip
"""Types whose values in a state are encoded as they are sent."""


class RowKeeping(Protocol):
    """Turns sent rows into values of a state and back."""

    schema: T.StructType
    """The columns of the values."""

    def values(self, sent: Any) -> list[tuple[Any, ...]]:
        """Return each row as values in the form in which they are sent."""

    def sent(self, rows: Sequence[tuple[Any, ...]], key_group: int) -> Any:
        """Return rows of one key as they were sent."""


class QuarantinedRows:
    """Keeps the rows of a query.

    Columns of nested types are kept as the JSON text in which they travel, columns with variants as
    bytes, all other columns in their own type.
    """

    def __init__(self, columns: InputColumns) -> None:
        self._columns = columns
        self._fields = [(field.name, field.type) for field in columns.sent_schema]
        self._types = dict(self._fields)
        self.schema = T.StructType([_kept(field) for field in columns.schema.fields])

    def values(self, sent: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return each row as values, with ``None`` for nulls."""
        nulls = self._columns.null_masks.flags(sent)
        columns = []
        for index in range(len(self.schema.fields)):
            column = with_nulls(sent.column(f"c{index}"), nulls.get(index))
            values = _texts(column) if is_text(column.type) else column.to_pylist()
            if pa.types.is_struct(column.type):
                values = [
                    None if value is None else msgspec.msgpack.encode(value) for value in values
                ]
            columns.append(values)
        return list(zip(*columns, strict=True))

    def sent(self, rows: Sequence[tuple[Any, ...]], key_group: int) -> pa.RecordBatch:
        """Return rows of one key as they were sent."""
        masks = self._columns.null_masks
        columns = list(zip(*rows, strict=True))
        arrays = {KEY_GROUP: pa.array([key_group] * len(rows), self._types[KEY_GROUP])}
        for index in range(len(columns)):
            arrays[f"c{index}"] = self._array(index, columns[index])
        for number, part in enumerate(masks.parts):
            mask = np.zeros(len(rows), np.int64)
            for bit, index in enumerate(part):
                mask |= np.array([value is None for value in columns[index]], np.int64) << bit
            arrays[f"{MASK}{number}"] = pa.array(mask)
        names = [name for name, _ in self._fields]
        return pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)

    def _array(self, index: int, values: Sequence[Any]) -> pa.Array:
        columns, data_type = self._columns, self._types[f"c{index}"]
        if pa.types.is_struct(data_type):
            values = [None if value is None else msgspec.msgpack.decode(value) for value in values]
        if index in columns.null_masks.nullable:
            filler = NEVER_LATE if index == columns.event_time_index else columns.filler(index)
            values = [filler if value is None else value for value in values]
        if pa.types.is_string(data_type):
            values = [None if value is None else _bytes_of(value) for value in values]
            return pa.array(values, pa.binary()).view(data_type)
        return pa.array(values, data_type)


_BYTES = "\0bytes "
"""Begins the text that is kept in place of one that is not UTF-8; its bytes follow in hex."""


def _texts(column: pa.Array) -> list[str | None]:
    """Return texts as a state can hold them: those that are not UTF-8 as the hex of their bytes."""
    binary = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    return [None if data is None else _text_of(data) for data in column.view(binary).to_pylist()]


def _text_of(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _BYTES + data.hex()
    return _BYTES + data.hex() if text.startswith(_BYTES) else text


def _bytes_of(text: str) -> bytes:
    if text.startswith(_BYTES):
        return bytes.fromhex(text.removeprefix(_BYTES))
    return text.encode()


def _kept(field: T.StructField) -> T.StructField:
    kept: T.DataType = field.dataType
    if type(kept) in _KEPT_TYPES:
        return T.StructField(field.name, kept)
    kept = T.BinaryType() if isinstance(sent_type(field), T.StructType) else T.StringType()
    # A value of another nested type may look the same: the type is part of the stored schema.
    return T.StructField(field.name, kept, metadata={"type": field.dataType.simpleString()})
