"""Stored keys as columns that Spark hashes as it hashed the key columns they were made of.

So the key group of a stored key, for any number of key groups, is computed by Spark itself. Times
travel as the integers that Spark hashes them as; a struct's field names are not hashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from pyspark_ckpt.operator.rows.key_columns import canonical_column
from pyspark_ckpt.operator.values.leaves import TEXTS, TIME_OF_DAY
from pyspark_ckpt.operator.values.message_pack import MESSAGE_PACK
from pyspark_ckpt.operator.values.transport import travels_as_json
from pyspark_ckpt.operator.values.wire_form import wire_type

_AS_INTEGERS = (T.DateType, T.YearMonthIntervalType)
_AS_LONGS: tuple[type[T.DataType], ...] = (
    T.TimestampType, T.TimestampNTZType, *TIME_OF_DAY, T.DayTimeIntervalType,
)  # fmt: skip


class StoredKeyColumns:
    """Columns of stored keys; on the driver, and on executors, to which it is shipped."""

    def __init__(self, key_schema: T.StructType) -> None:
        self._fields = key_schema.fields
        self.schema = T.StructType(
            [
                T.StructField(f"key{number}", _hashed_type(field))
                for number, field in enumerate(key_schema.fields)
            ]
        )

    def hash_column(self) -> Column:
        """Return Spark's hash of the keys."""
        columns = [
            canonical_column(_restored(F.col(hashed.name), field), hashed.dataType)
            for hashed, field in zip(self.schema.fields, self._fields, strict=True)
        ]
        return F.hash(*columns)

    def arrays(self, keys: Sequence[bytes | None]) -> list[pa.Array]:
        """Return the columns of encoded keys; nulls for ``None``."""
        decode = msgspec.msgpack.Decoder(stored_key_type(self._fields)).decode
        values = [None if key is None else decode(key) for key in keys]
        arrays = []
        for number, field in enumerate(self._fields):
            column = [None if value is None else value[number] for value in values]
            if travels_as_json(field.dataType):
                column = _inner_values(field, column)
            arrays.append(pa.array(column, to_arrow_type(self.schema.fields[number].dataType)))
        return arrays


def stored_key_type(fields: Sequence[T.StructField]) -> Any:
    """Return the msgspec type of a stored key; decimals are stored as text."""
    types = [
        Decimal | None if isinstance(field.dataType, T.DecimalType) else Any for field in fields
    ]
    return tuple.__class_getitem__(tuple(types))


def _inner_values(field: T.StructField, column: list[bytes | None]) -> list[Any]:
    """Return the values of a column whose keys are encoded once more, each as a tuple of one."""
    wire = wire_type(MESSAGE_PACK, field.dataType)
    decode = msgspec.msgpack.Decoder(tuple.__class_getitem__((wire,))).decode
    named = _with_field_names(field.dataType)
    return [None if data is None else named(decode(data)[0]) for data in column]


def _with_field_names(data_type: T.DataType) -> Any:
    """Return what turns plain values into those that Arrow makes structs of."""
    if isinstance(data_type, T.ArrayType):
        convert = _with_field_names(data_type.elementType)
        return lambda items: None if items is None else [convert(item) for item in items]
    if isinstance(data_type, T.StructType):
        converts = [_with_field_names(field.dataType) for field in data_type.fields]

        def to_struct(values: Any) -> Any:
            if values is None:
                return None
            pairs = enumerate(zip(converts, values, strict=True))
            return {f"c{number}": convert(value) for number, (convert, value) in pairs}

        return to_struct
    return lambda value: value


def _hashed_type(field: T.StructField) -> T.DataType:
    if isinstance(field.dataType, T.TimestampNTZType):
        return T.StringType()  # its own column travels as text
    return _plain_type(field.dataType)


def _plain_type(data_type: T.DataType) -> T.DataType:
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_plain_type(data_type.elementType))
    if isinstance(data_type, T.StructType):
        return T.StructType(
            [
                T.StructField(f"c{number}", _plain_type(field.dataType))
                for number, field in enumerate(data_type.fields)
            ]
        )
    if isinstance(data_type, _AS_INTEGERS):
        return T.IntegerType()
    if isinstance(data_type, _AS_LONGS):
        return T.LongType()
    if isinstance(data_type, TEXTS) and not isinstance(data_type, T.StringType):
        return T.StringType()
    return data_type


def _restored(column: Column, field: T.StructField) -> Column:
    is_text = isinstance(field.dataType, T.TimestampNTZType)
    return column.cast(field.dataType) if is_text else column
