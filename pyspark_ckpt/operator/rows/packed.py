"""Rows as bytes and as values that every schema of a state can hold; both without any loss.

Texts are bytes, because they may be no UTF-8. Maps are lists of entries, because keys of maps may
be lists, and variants are their two binaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.values.arrow import arrow_array, arrow_type, plain_values, viewed
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.encoded import Form, encoded_tuples, stored_columns
from pyspark_ckpt.values.types import TEXTS

_BYTES = T.BinaryType()


class PackedColumns:
    """The columns of a schema as columns of packed types, and back."""

    def __init__(self, schema: T.StructType) -> None:
        self._own = [arrow_type(field.dataType) for field in schema.fields]
        self.schema = T.StructType(
            [T.StructField(field.name, packed_type(field.dataType)) for field in schema.fields]
        )
        self._packed = [arrow_type(field.dataType) for field in self.schema.fields]

    def packed(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return columns as they come from Spark in packed types."""
        return [
            viewed(viewed(column, own), packed)
            for column, own, packed in zip(columns, self._own, self._packed, strict=True)
        ]

    def unpacked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return packed columns in their own types."""
        return [viewed(column, own) for column, own in zip(columns, self._own, strict=True)]

    def plain(self, columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
        """Return each row as plain values of packed types."""
        values = [
            plain_values(field.dataType, column)
            for field, column in zip(self.schema.fields, self.packed(columns), strict=True)
        ]
        return list(zip(*values, strict=True))

    def of_plain(self, rows: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """Return plain values of packed types as columns in their own types."""
        return self.unpacked(
            [
                arrow_array(field.dataType, values)
                for field, values in zip(self.schema.fields, zip(*rows, strict=True), strict=True)
            ]
        )


class RowPacking:
    """Turns record batches of one schema into bytes for each row, and back."""

    def __init__(self, schema: T.StructType) -> None:
        self.schema = schema
        self._columns = PackedColumns(schema)

    @cached_property
    def _codec(self) -> TupleCodec:
        return TupleCodec(self._columns.schema, "a packed row", style=None)

    def pack(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """Return each row as bytes."""
        columns = self._columns.packed([batch.column(name) for name in self.schema.names])
        return encoded_tuples(columns, self._columns.schema, Form.VALUE)

    def unpack(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """Return rows as a record batch."""
        columns = stored_columns(rows, self._columns.schema, b"")
        if columns is None:
            arrays = self._columns.of_plain(list(map(self._codec.decode, rows)))
        else:
            arrays = self._columns.unpacked(columns)
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)


def packed_type(data_type: T.DataType, text: T.DataType = _BYTES) -> T.DataType:
    """Return the packed type of a type, in which each text has the type `text`."""
    if isinstance(data_type, TEXTS):
        return text
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(packed_type(data_type.elementType, text))
    if isinstance(data_type, T.MapType):
        entry = [("key", data_type.keyType), ("value", data_type.valueType)]
        return T.ArrayType(_struct(entry, text))
    if isinstance(data_type, T.StructType):
        return _struct([(field.name, field.dataType) for field in data_type.fields], text)
    if isinstance(data_type, T.VariantType):
        return _struct([("value", _BYTES), ("metadata", _BYTES)], text)
    return data_type


def _struct(fields: Sequence[tuple[str, T.DataType]], text: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, packed_type(kind, text)) for name, kind in fields])
