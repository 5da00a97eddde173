"""Walks over types that have other types inside: arrays, maps and structs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import types as T


def inner_types(data_type: T.DataType) -> list[T.DataType]:
    """Return the types right inside a type; a leaf has none."""
    if isinstance(data_type, T.StructType):
        return [field.dataType for field in data_type.fields]
    if isinstance(data_type, T.MapType):
        return [data_type.keyType, data_type.valueType]
    return [data_type.elementType] if isinstance(data_type, T.ArrayType) else []


def types_in(data_type: T.DataType) -> Iterator[T.DataType]:
    """Yield a type and all types inside it."""
    yield data_type
    for inner in inner_types(data_type):
        yield from types_in(inner)


def holds(data_type: T.DataType, kinds: type[T.DataType] | tuple[type[T.DataType], ...]) -> bool:
    """Return whether a type is or contains one of these types."""
    return any(isinstance(each, kinds) for each in types_in(data_type))


def pairs(one: T.DataType, other: T.DataType) -> Iterator[tuple[T.DataType, T.DataType]]:
    """Yield the leaves of two types that are at one place, and what differs in its nesting."""
    inner, others = inner_types(one), inner_types(other)
    if type(one) is type(other) and (inner or others):
        for first, second in zip(inner, others, strict=True):
            yield from pairs(first, second)
    else:
        yield one, other


def as_it_is(leaf: T.DataType) -> T.DataType:
    """Return a leaf."""
    return leaf


def mapped(
    data_type: T.DataType,
    leaf: Callable[[T.DataType], T.DataType] = as_it_is,
    names: Callable[[list[str]], list[str]] | None = None,
) -> T.DataType:
    """Return a type with other leaves, all nullable; `names` renames the fields of a struct."""
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(mapped(data_type.elementType, leaf, names))
    if isinstance(data_type, T.MapType):
        key = mapped(data_type.keyType, leaf, names)
        return T.MapType(key, mapped(data_type.valueType, leaf, names))
    if isinstance(data_type, T.StructType):
        own = data_type.names
        fields = zip(names(own) if names else own, data_type.fields, strict=True)
        return T.StructType(
            [T.StructField(name, mapped(each.dataType, leaf, names)) for name, each in fields]
        )
    return leaf(data_type)


def by_place(names: list[str]) -> list[str]:
    """Return names of fields that say their places: fields of a struct may have equal names."""
    return [f"c{place}" for place in range(len(names))]


def same_type(stored: T.DataType, wanted: T.DataType, *, nullability: bool = True) -> bool:
    """Return whether two types are equal in names, order, types and nullability.

    Metadata is ignored, and with `nullability` false also nullability.
    """
    inner, others = inner_types(stored), inner_types(wanted)
    if type(stored) is not type(wanted) or not (inner or isinstance(stored, T.StructType)):
        return stored == wanted
    return (
        len(inner) == len(others)
        and _names(stored) == _names(wanted)
        and (not nullability or _nulls(stored) == _nulls(wanted))
        and all(
            same_type(one, other, nullability=nullability)
            for one, other in zip(inner, others, strict=True)
        )
    )


def _names(data_type: T.DataType) -> list[str]:
    return data_type.names if isinstance(data_type, T.StructType) else []


def _nulls(data_type: Any) -> list[bool]:
    """Return whether what is right inside a type may be null."""
    if isinstance(data_type, T.StructType):
        return [field.nullable for field in data_type.fields]
    is_map = isinstance(data_type, T.MapType)
    return [data_type.valueContainsNull if is_map else data_type.containsNull]


def sql_name(name: str) -> str:
    """Return a name as SQL has it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def sql_type(data_type: T.DataType) -> str:
    """Return a type as SQL, with the names of fields in backticks."""
    if isinstance(data_type, T.StructType):
        fields = (f"{sql_name(each.name)}: {sql_type(each.dataType)}" for each in data_type.fields)
        return f"struct<{', '.join(fields)}>"
    inner = ", ".join(map(sql_type, inner_types(data_type)))
    return f"{data_type.typeName()}<{inner}>" if inner else data_type.simpleString()
