"""Rows of quarantined keys: values that a state can hold, and the rows as they were sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP, InputColumns
from pyspark_ckpt.operator.rows.packed import PackedColumns, packed_type
from pyspark_ckpt.values.plain import fields_converter, items_converter
from pyspark_ckpt.values.types import TEXTS
from pyspark_ckpt.values.user import Converter


class QuarantinedRows:
    """Keeps the rows of a query as values that a table of the state shows.

    Each column has its packed type, but texts are texts.
    """

    def __init__(self, columns: InputColumns) -> None:
        fields = columns.schema.fields
        self.keeps_late_rows = columns.keeps_late_rows
        self._columns = PackedColumns(columns.schema)
        self._names = columns.arrow_schema.names
        self.schema = T.StructType(list(map(_kept, fields)))
        self._to_texts = fields_converter([_texts(field.dataType, _text_of) for field in fields])
        self._to_bytes = fields_converter([_texts(field.dataType, _bytes_of) for field in fields])

    def values(self, sent: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return each row as values in plain form, with ``None`` for nulls."""
        plain = self._columns.plain([sent.column(name) for name in self._names[1:]])
        return list(map(self._to_texts, plain))

    def sent(self, rows: Sequence[tuple[Any, ...]], key_group: int) -> pa.RecordBatch:
        """Return rows of one key as they were sent."""
        groups = pa.array([key_group] * len(rows), pa.int32())
        columns = self._columns.of_plain(list(map(self._to_bytes, rows)))
        return pa.RecordBatch.from_arrays([groups, *columns], names=[KEY_GROUP, *self._names[1:]])


_BYTES = "\0bytes "
"""Begins the text that is kept in place of one that is not UTF-8; its bytes follow in hex."""


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


def _texts(data_type: T.DataType, convert: Converter) -> Converter | None:
    """Return what converts the texts in a plain value of a packed type, ``None`` without any."""
    if isinstance(data_type, TEXTS):
        return convert
    if isinstance(data_type, T.ArrayType):
        return items_converter(_texts(data_type.elementType, convert))
    if isinstance(data_type, T.MapType):
        kinds = [data_type.keyType, data_type.valueType]
        return items_converter(_fields([_texts(kind, convert) for kind in kinds]))
    if isinstance(data_type, T.StructType):
        return _fields([_texts(field.dataType, convert) for field in data_type.fields])
    return None


def _fields(converters: Sequence[Converter | None]) -> Converter | None:
    return fields_converter(converters) if any(converters) else None


def _kept(field: T.StructField) -> T.StructField:
    kept = packed_type(field.dataType, text=T.StringType())
    if kept == field.dataType:
        return T.StructField(field.name, kept)
    # A value of another type may look the same: the type is part of the stored schema.
    return T.StructField(field.name, kept, metadata={"type": field.dataType.simpleString()})
