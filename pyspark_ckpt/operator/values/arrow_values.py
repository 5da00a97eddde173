"""Spark's types as Arrow types, and stored values as Arrow columns and back.

Values are in plain form, as MessagePack stores them: times are integers, structs are tuples. So
times beyond those that Python can hold pass, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.values.types import leaf_of


def arrow_type(data_type: T.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type."""
    if isinstance(data_type, T.ArrayType):
        return pa.list_(arrow_type(data_type.elementType))
    if isinstance(data_type, T.MapType):
        return pa.map_(arrow_type(data_type.keyType), arrow_type(data_type.valueType))
    if isinstance(data_type, T.StructType):
        return pa.struct([(field.name, arrow_type(field.dataType)) for field in data_type.fields])
    return leaf_of(data_type).arrow(data_type)


def in_type(column: Any, wanted: pa.DataType) -> Any:
    """Return an array, or a chunked one, cast to a type; fields that a struct lacks are null.

    Arrow's own cast leaves lists and maps of nulls with fewer nulls than they say they have, and
    PyArrow 18 refuses structs that lack fields.
    """
    if column.type == wanted:
        return column
    if not _has_nulls_inside(wanted):
        try:
            return column.cast(wanted)
        except pa.ArrowTypeError:
            if not _may_lack_fields(wanted):
                raise
    try:
        made = pa.array(column.to_pylist(), wanted)
        return pa.chunked_array([made], wanted) if isinstance(column, pa.ChunkedArray) else made
    except OverflowError as exc:
        raise pa.ArrowInvalid(str(exc)) from exc


def _has_nulls_inside(kind: pa.DataType) -> bool:
    fields = [kind.field(n) for n in range(kind.num_fields)]
    return any(pa.types.is_null(each.type) or _has_nulls_inside(each.type) for each in fields)


def _may_lack_fields(kind: pa.DataType) -> bool:
    """Return whether structs in a type may lack fields in Python's values: they are null then."""
    structs = list(_structs(kind))
    return bool(structs) and all(
        len({field.name for field in fields}) == len(fields)
        and all(field.nullable for field in fields)
        for fields in structs
    )


def _structs(kind: pa.DataType) -> Iterator[list[pa.Field]]:
    """Yield the fields of each struct in a type."""
    fields = [kind.field(n) for n in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        yield fields
    for field in fields:
        yield from _structs(field.type)


def arrow_array(data_type: T.DataType, plain: Sequence[Any]) -> pa.Array:
    """Return plain values of a Spark type as an Arrow array."""
    convert = _for_arrow(data_type)
    if convert is not None:
        plain = [None if value is None else convert(value) for value in plain]
    return pa.array(plain, arrow_type(data_type))


def plain_values(
    data_type: T.DataType,
    array: pa.Array,
    pack_map: Callable[[Iterable[tuple[Any, Any]]], Any] = dict,
) -> list[Any]:
    """Return the values of an Arrow array of a Spark type in plain form."""
    if isinstance(data_type, T.ArrayType):
        items = iter(plain_values(data_type.elementType, array.flatten(), pack_map))
        lengths = array.value_lengths().to_pylist()
        return [None if length is None else list(islice(items, length)) for length in lengths]
    if isinstance(data_type, T.MapType):
        keys = plain_values(data_type.keyType, array.keys, pack_map)
        values = plain_values(data_type.valueType, array.items, pack_map)
        bounds, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
        return [
            pack_map(zip(keys[start:end], values[start:end], strict=True)) if is_valid else None
            for start, end, is_valid in zip(bounds, bounds[1:], valid, strict=False)
        ]
    if isinstance(data_type, T.StructType | T.VariantType):
        kinds = (
            [field.dataType for field in data_type.fields]
            if isinstance(data_type, T.StructType)
            else [T.BinaryType()] * 2
        )
        # By position, because a struct may have two fields of one name.
        fields = [
            plain_values(kind, field, pack_map)
            for kind, field in zip(kinds, array.flatten(), strict=True)
        ]
        structs = zip(*fields, strict=True) if fields else [()] * len(array)
        valid = array.is_valid().to_pylist()
        return [each if is_valid else None for each, is_valid in zip(structs, valid, strict=True)]
    kind = arrow_type(data_type)
    if pa.types.is_temporal(kind):
        array = array.cast(kind).cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    values_of_leaf: list[Any] = array.to_pylist()
    return values_of_leaf


def _for_arrow(data_type: T.DataType) -> Callable[[Any], Any] | None:
    """Return what turns plain values into values that Arrow takes, ``None`` if they are that."""
    if isinstance(data_type, T.VariantType):
        return lambda parts: {"value": parts[0], "metadata": parts[1]}
    if isinstance(data_type, T.ArrayType):
        item = _for_arrow(data_type.elementType)
        return None if item is None else _each(item)
    if isinstance(data_type, T.MapType):
        return _entries(_for_arrow(data_type.keyType), _for_arrow(data_type.valueType))
    if isinstance(data_type, T.StructType):
        return _struct(data_type)
    return None


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda items: [None if item is None else convert(item) for item in items]


def _entries(
    key: Callable[[Any], Any] | None, value: Callable[[Any], Any] | None
) -> Callable[[Any], Any]:
    def convert(entries: Any) -> list[tuple[Any, Any]]:
        pairs = entries.items() if isinstance(entries, dict) else entries
        return [
            (
                k if key is None else key(k),
                v if value is None or v is None else value(v),
            )
            for k, v in pairs
        ]

    return convert


def _struct(data_type: T.StructType) -> Callable[[Any], Any]:
    converts = [_for_arrow(field.dataType) for field in data_type.fields]

    def pairs(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        for name, convert, value in zip(data_type.names, converts, values, strict=True):
            yield name, value if convert is None or value is None else convert(value)

    if len({*data_type.names}) < len(data_type.names):
        return lambda values: list(pairs(values))  # a dict would have one of two fields only
    return lambda values: dict(pairs(values))
