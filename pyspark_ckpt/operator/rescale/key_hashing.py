"""Stored keys as columns that Spark hashes as it hashed the key columns they were made of.

So the key group of a stored key, for any number of key groups, is computed by Spark itself. Times
travel as the integers that Spark hashes them as; a struct's field names are not hashed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.key_columns import canonical_column
from pyspark_ckpt.values.arrow import arrow_array
from pyspark_ckpt.values.nesting import by_place, mapped
from pyspark_ckpt.values.plain import msgspec_type
from pyspark_ckpt.values.types import KeyForm, hashed_as, key_form_of, stored_key_type


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
            if key_form_of(field.dataType) is KeyForm.ENCODED:
                wire = msgspec_type(field.dataType)
                inner = msgspec.msgpack.Decoder(tuple.__class_getitem__((wire,))).decode
                column = [None if data is None else inner(data)[0] for data in column]
            arrays.append(arrow_array(self.schema.fields[number].dataType, column))
        return arrays


def _hashed_type(field: T.StructField) -> T.DataType:
    if key_form_of(field.dataType) is KeyForm.TEXT:
        return T.StringType()
    return mapped(field.dataType, hashed_as, by_place)


def _restored(column: Column, field: T.StructField) -> Column:
    is_text = key_form_of(field.dataType) is KeyForm.TEXT
    return column.cast(field.dataType) if is_text else column
