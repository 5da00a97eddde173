"""The columns of a state's typed table, for states that are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import types as T

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, kind_of
from pyspark_ckpt.operator.table.catalog import struct_type

POSITION, EXPIRES_AT, FIRES_AT = "position", "expires_at", "fires_at"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of a table's columns by their part; the fields have Spark's types.

    `position` and `expires_at` are ``None`` if the table has no such column.
    """

    keys: tuple[T.StructField, ...]
    map_keys: tuple[T.StructField, ...] = ()
    values: tuple[T.StructField, ...] = ()
    position: str | None = None
    expires_at: str | None = None
    fires_at: str | None = None

    def all_of(self) -> list[tuple[str, T.DataType]]:
        """Return the name and Spark type of each column, in the order of the table."""
        named = [
            *((each.name, each.dataType) for each in (*self.keys, *self.map_keys)),
            (self.position, T.LongType()),
            *((each.name, each.dataType) for each in self.values),
            (self.expires_at, T.TimestampType()),
            (self.fires_at, T.TimestampType()),
        ]
        return [(name, data_type) for name, data_type in named if name is not None]


def columns_of(key_schema: T.StructType, state: StateDescriptor) -> TableColumns:
    """Return the columns of a keyed state's table."""
    taken = set(key_schema.names)
    map_key = None if state.map_key_schema is None else struct_type(state.map_key_schema)
    map_keys = tuple(_named(map_key, "map_key_", taken)) if map_key is not None else ()
    has_position = kind_of(state).entries is Entries.CHUNKS
    position = _own(POSITION, taken) if has_position else None
    values = tuple(_named(struct_type(state.value_schema), "value_", taken))
    has_time = state.ttl is not None or state.is_stamped
    return TableColumns(
        keys=tuple(key_schema.fields),
        map_keys=map_keys,
        values=values,
        position=position,
        expires_at=_own(EXPIRES_AT, taken) if has_time else None,
    )


def timer_columns(key_schema: T.StructType) -> TableColumns:
    """Return the columns of an operator's timers."""
    fires_at = _own(FIRES_AT, set(key_schema.names))
    return TableColumns(keys=tuple(key_schema.fields), fires_at=fires_at)


def _named(schema: T.StructType, prefix: str, taken: set[str]) -> Iterator[T.StructField]:
    for field in schema.fields:
        name = prefix + field.name if field.name in taken else field.name
        taken.add(name)
        yield T.StructField(name, field.dataType)


def _own(name: str, taken: set[str]) -> str:
    own = f"_{name}" if name in taken else name
    taken.add(own)
    return own
