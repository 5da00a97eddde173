"""Batches of rows as Spark sends them to Python, made without the library's own conversions."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN
from pyspark_ckpt.values.arrow import viewed

try:
    from pyspark.sql.conversion import LocalDataToArrowConversion
except ImportError:  # PySpark 4.0
    from pyspark.sql.connect.conversion import LocalDataToArrowConversion

_AS_OTHERS = {
    re.compile('"interval (?:year|month)(?: to month)?"'): '"integer"',
    re.compile(r'"(?:var)?char\(\d+\)"'): '"string"',
}
_MICROSECOND = datetime.timedelta(microseconds=1)

Change = Callable[[pa.DataType], pa.DataType]


def as_sent(kind: pa.DataType) -> pa.DataType:
    """Return the type itself, as Spark sends it with its default conf in UTC."""
    return kind


def in_new_york(kind: pa.DataType) -> pa.DataType:
    """Return a type as Spark sends it in another time zone of the session."""
    return pa.timestamp("us", "America/New_York") if _is_instant(kind) else kind


def large(kind: pa.DataType) -> pa.DataType:
    """Return a type as Spark sends it with ``useLargeVarTypes``."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def sent_columns(
    schema: T.StructType, rows: Sequence[tuple[Any, ...]], change: Change = as_sent
) -> list[pa.Array]:
    """Return the columns of rows, with some of their types changed.

    Times may also be integers, texts also bytes, and maps also lists of entries: Spark has more of
    them than Python.
    """
    text = schema.json()
    for others, replacement in _AS_OTHERS.items():
        text = others.sub(replacement, text)
    given = T.StructType.fromJson(json.loads(text))
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in given])
    nulls = [(None,) * len(nullable)]
    kinds = LocalDataToArrowConversion.convert(nulls, nullable, use_large_var_types=False).schema
    columns = []
    for place, (field, kind) in enumerate(zip(schema.fields, kinds.types, strict=True)):
        wanted = changed(kind, change)
        values = [_plain(field.dataType, row[place]) for row in rows]
        try:
            columns.append(pa.array(values, wanted))
        except pa.ArrowInvalid:  # texts that are not UTF-8
            columns.append(viewed(pa.array(values, changed(wanted, _as_bytes)), wanted))
    return columns


def sent_batch(
    schema: T.StructType, rows: Sequence[tuple[Any, ...]], *groups: int, change: Change = as_sent
) -> pa.RecordBatch:
    """Return rows as they come out of the shuffle; their key groups are 0 if none are given."""
    columns = {f"c{n}": each for n, each in enumerate(sent_columns(schema, rows, change))}
    columns[KEY_GROUP] = pa.array(groups or [0] * len(rows), pa.int32())
    columns[TOKEN] = pa.array([12] * len(rows), pa.int32())
    return pa.RecordBatch.from_pydict(columns)


def _is_instant(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def changed(kind: pa.DataType, change: Change) -> pa.DataType:
    """Return a type with its leaves changed."""
    inner = partial(changed, change=change)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(inner(kind.value_type)))
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(inner(kind.item_type))
        return pa.map_(kind.key_field.with_type(inner(kind.key_type)), item)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(inner(field.type)) for field in kind])
    return change(kind)


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    return pa.large_binary() if pa.types.is_large_string(kind) else kind


def _plain(kind: T.DataType, value: Any) -> Any:
    """Return a value as Arrow takes it."""
    if value is None:
        return None
    if isinstance(kind, T.ArrayType):
        return [_plain(kind.elementType, item) for item in value]
    if isinstance(kind, T.MapType):
        entries = value.items() if isinstance(value, dict) else value
        return [(_plain(kind.keyType, k), _plain(kind.valueType, v)) for k, v in entries]
    if isinstance(kind, T.StructType):
        values = map(value.get, kind.names) if isinstance(value, dict) else value
        return {
            field.name: _plain(field.dataType, item)
            for field, item in zip(kind.fields, values, strict=True)
        }
    if isinstance(kind, T.VariantType):
        return {"value": value.value, "metadata": value.metadata}
    if isinstance(kind, T.TimestampType) and isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc)
    if isinstance(value, datetime.timedelta):
        return value // _MICROSECOND  # PyArrow does not convert the longest negative ones
    return value
