"""Spark's types as Arrow types, and stored values as Arrow columns and back.

Values are in plain form, as MessagePack stores them: times are integers, structs are tuples. So
times beyond those that Python can hold pass, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.values.columns import leaf_values, plain_times, with_nulls
from pyspark_ckpt.values.types import find_leaf, leaf_of


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


def viewed(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return an array in another type of the same buffers; only large ones are copied.

    Types are compared by place, so fields of a struct may have other names. Arrow's own view leaves
    lists and maps of nulls with fewer nulls than they say they have, and refuses the variants of
    Spark that are null.
    """
    kind = column.type
    if kind == wanted:
        return column
    if _is_large(kind) and not _is_large(wanted):
        return viewed(_small(column), wanted)
    inner = _inner_arrays(column)
    if not inner or len(inner) != wanted.num_fields:
        return column.view(wanted)
    return _with_inner(
        column, wanted, [viewed(one, wanted.field(place).type) for place, one in enumerate(inner)]
    )


def with_offsets(column: pa.Array) -> pa.Array:
    """Return an array in which empty inner arrays have the one offset that they have to have.

    PySpark 4.0 sends them without, and Arrow reads the offset where there is no memory. Other
    arrays are returned as they are.
    """
    kind = column.type
    if not len(column):
        return pa.array([], kind) if kind.num_fields or _has_offsets(kind) else column
    inner = _inner_arrays(column)
    whole = [with_offsets(each) for each in inner]
    if all(given is made for given, made in zip(inner, whole, strict=True)):
        return column
    return _with_inner(column, kind, whole)


def _has_offsets(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind)


def _inner_arrays(column: pa.Array) -> list[pa.Array]:
    """Return the arrays inside of a struct, a list or a map, whose entries are one struct."""
    kind = column.type
    if pa.types.is_struct(kind):
        return [column.field(place) for place in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [column.values]
    return []


def _with_inner(column: pa.Array, kind: pa.DataType, inner: list[pa.Array]) -> pa.Array:
    """Return a struct, a list or a map as another type, with other arrays inside."""
    buffers, offset = column.buffers()[:2], column.offset
    if pa.types.is_struct(column.type):
        buffers, offset = [column.is_valid().buffers()[1] if column.null_count else None], 0
    return pa.Array.from_buffers(kind, len(column), buffers, offset=offset, children=inner)


def _is_large(kind: pa.DataType) -> bool:
    is_large = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)
    return any(is_it(kind) for is_it in is_large)


def _small(column: pa.Array) -> pa.Array:
    """Return an array of a large type in the usual one; ArrowInvalid if it has too much."""
    if not pa.types.is_large_list(column.type):
        is_text = pa.types.is_large_string(column.type)
        return column.cast(pa.string() if is_text else pa.binary())
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    mask = column.is_null() if column.null_count else None
    items = column.values.slice(first, last - first)
    small = pc.subtract(offsets, first).cast(pa.int32())
    return pa.ListArray.from_arrays(small, items, mask=mask)


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


@dataclass(frozen=True, slots=True)
class ColumnStyle:
    """The Python objects that the values of a column become.

    `leaves` has functions from a column of a leaf type to its values, where they are not those that
    Arrow gives; `array` and `map` also get the type of the items or keys.
    """

    leaves: Callable[[T.DataType], Callable[[pa.Array], list[Any]] | None]
    struct: Callable[[list[str]], Callable[[tuple[Any, ...]], Any]]
    map: Callable[[T.DataType, Iterable[tuple[Any, Any]]], Any]
    array: Callable[[T.DataType, list[Any]], Any]


def python_values(data_type: T.DataType, array: pa.Array, style: ColumnStyle) -> list[Any]:
    """Return the values of an Arrow array of a Spark type, ``None`` for nulls."""
    if isinstance(data_type, T.ArrayType):
        kind, make_array = data_type.elementType, style.array
        items = iter(python_values(kind, array.flatten(), style))
        lengths = array.value_lengths().to_pylist()
        return [
            None if length is None else make_array(kind, list(islice(items, length)))
            for length in lengths
        ]
    if isinstance(data_type, T.MapType):
        bounds, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
        first, length = bounds[0], bounds[-1] - bounds[0]  # the children are those of all rows
        keys = python_values(data_type.keyType, array.keys.slice(first, length), style)
        values = python_values(data_type.valueType, array.items.slice(first, length), style)
        make_map, kind = style.map, data_type.keyType
        return [
            make_map(
                kind,
                zip(keys[start - first : end - first], values[start - first : end - first],
                    strict=True),
            )
            if is_valid
            else None
            for start, end, is_valid in zip(bounds, bounds[1:], valid, strict=False)
        ]  # fmt: skip
    leaf = style.leaves(data_type)
    if leaf is not None:
        return leaf(array)
    if isinstance(data_type, T.StructType | T.VariantType):
        # By position, because a struct may have two fields of one name.
        kinds: list[T.DataType] = [T.BinaryType(), T.BinaryType()]
        if isinstance(data_type, T.StructType):
            kinds = [field.dataType for field in data_type.fields]
        columns = [
            python_values(kind, field, style)
            for kind, field in zip(kinds, array.flatten(), strict=True)
        ]
        structs: Iterable[Any] = zip(*columns, strict=True) if columns else [()] * len(array)
        if isinstance(data_type, T.StructType):
            structs = map(style.struct(data_type.names), structs)
        return with_nulls(list(structs), array)
    return leaf_values(array)


def _plain_leaf(data_type: T.DataType) -> Callable[[pa.Array], list[Any]] | None:
    row = find_leaf(data_type)
    is_time = row is not None and pa.types.is_temporal(row.arrow(data_type))
    return plain_times if is_time else None


def _a_tuple(_: list[str]) -> Callable[[tuple[Any, ...]], Any]:
    return tuple


def a_list(_: T.DataType, items: list[Any]) -> Any:
    """Return the items of an array as a list."""
    return items


def plain_values(
    data_type: T.DataType,
    array: pa.Array,
    pack_map: Callable[[Iterable[tuple[Any, Any]]], Any] = dict,
) -> list[Any]:
    """Return the values of an Arrow array of a Spark type in plain form."""
    style = ColumnStyle(_plain_leaf, _a_tuple, lambda _, entries: pack_map(entries), a_list)
    return python_values(data_type, in_type(array, arrow_type(data_type)), style)


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
