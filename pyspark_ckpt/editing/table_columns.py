"""The columns of a state's typed table, for states that are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import types as T

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import struct_type

POSITION, EXPIRES_AT, FIRES_AT = "position", "expires_at", "fires_at"
SUBTASK, STREAM, DATA = "subtask", "stream", "data"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of a table's columns by their part; the fields have Spark's types.

    `position`, `expires_at`, `fires_at` and `subtask` are ``None`` if the table has no such column.
    """

    keys: tuple[T.StructField, ...]
    map_keys: tuple[T.StructField, ...] = ()
    values: tuple[T.StructField, ...] = ()
    position: str | None = None
    expires_at: str | None = None
    fires_at: str | None = None
    subtask: str | None = None

    def all_of(self, *, in_ms: bool = False) -> list[tuple[str, T.DataType]]:
        """Return the name and Spark type of each column, in the order of the table.

        The table's own times are timestamps, or milliseconds.
        """
        time = T.LongType() if in_ms else T.TimestampType()
        named = [
            (self.subtask, T.IntegerType()),
            *((each.name, each.dataType) for each in (*self.keys, *self.map_keys)),
            (self.position, T.LongType()),
            *((each.name, each.dataType) for each in self.values),
            (self.expires_at, time),
            (self.fires_at, time),
        ]
        return [(name, data_type) for name, data_type in named if name is not None]

    def of_rows(self, names: Sequence[str]) -> TableColumns:
        """Return the columns that rows with these names have: they may lack `expires_at`."""
        return self if self.expires_at in names else replace(self, expires_at=None)


def columns_of(key_schema: T.StructType, state: StateDescriptor) -> TableColumns:
    """Return the columns of a state's table."""
    names = _Names()
    movement = kind_of(state).movement
    keys = names.fields(key_schema, "key") if movement is Movement.WITH_KEY else ()
    map_key = None if state.map_key_schema is None else struct_type(state.map_key_schema)
    map_keys = () if map_key is None else names.fields(map_key, "map_key")
    values = names.fields(struct_type(state.value_schema), "value")
    has_position = kind_of(state).entries is Entries.CHUNKS
    has_time = state.ttl is not None or state.is_stamped
    return TableColumns(
        subtask=names.own(SUBTASK) if movement is Movement.DEALT_OUT else None,
        keys=keys,
        map_keys=map_keys,
        values=values,
        position=names.own(POSITION) if has_position else None,
        expires_at=names.own(EXPIRES_AT) if has_time else None,
    )


def timer_columns(key_schema: T.StructType) -> TableColumns:
    """Return the columns of an operator's timers."""
    names = _Names()
    return TableColumns(keys=names.fields(key_schema, "key"), fires_at=names.own(FIRES_AT))


def raw_columns() -> TableColumns:
    """Return the columns of an operator's raw state."""
    fields = (T.StructField(STREAM, T.IntegerType()), T.StructField(DATA, T.BinaryType()))
    return TableColumns(keys=(), values=fields, subtask=SUBTASK)


class _Names:
    """Gives each column a name of its own, as the tables that are read; case does not count."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fields(self, schema: T.StructType, prefix: str) -> tuple[T.StructField, ...]:
        return tuple(
            T.StructField(self._name(each.name, f"{prefix}_{each.name}"), each.dataType)
            for each in schema.fields
        )

    def own(self, name: str) -> str:
        return self._name(name, f"_{name}")

    def _name(self, name: str, otherwise: str) -> str:
        while name.lower() in self._taken:
            name, otherwise = otherwise, f"_{otherwise}"
        self._taken.add(name.lower())
        return name
