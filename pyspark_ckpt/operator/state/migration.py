"""Migrates one stored state: the user's functions change every entry once, and it is rewritten.

The migrated state gets a new id, and the old state is deleted in the same epoch. So a retry starts
from the same entries as the first attempt, and no entry is migrated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import CkptError, IncompatibleStateError, ProcessorError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.verdict import StateSchema, used_migration
from pyspark_ckpt.operator.state.kinds import Entries, kind_of
from pyspark_ckpt.operator.state.list import decode_chunk, encode_chunk
from pyspark_ckpt.operator.table.catalog import (
    StateCatalog,
    codec_of,
    continued_ttl,
    same_schema,
    struct_type,
)
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_START,
    OPERATOR_STATE,
    is_keyed,
    state_id_of,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import without_stamp
from pyspark_ckpt.operator.task_failure import user_frames
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.message_pack import end_of_value
from pyspark_ckpt.values.plain import row_type_of
from pyspark_ckpt.values.words import shortened

_Tuple = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """The parts of a stored entry."""

    prefix: bytes
    """The stored key before the state id."""
    key: bytes
    """The user's key; empty in operator state."""
    rest: bytes
    """Map key or chunk number."""
    stamp: bytes
    data: bytes


def migrate(
    table: StateTable,
    catalog: StateCatalog,
    wanted: StateDescriptor,
    migration: Migration,
    where: str,
) -> int | None:
    """Migrate a stored state into the wanted one, unless it is migrated already.

    Called on an executor in every epoch, before the first row. Reads all of the subtask's state
    once. The new entries are writes of the epoch.

    Returns the id of the migrated state, or ``None`` if there was nothing to migrate.
    """
    source_id = catalog.find(migration.renamed_from or wanted.name)
    if source_id is None:
        return None
    source = catalog.descriptor(source_id)
    if used_migration(schema_of(source), schema_of(wanted), migration) is None:
        return None
    if source.kind != wanted.kind:
        raise IncompatibleStateError(
            f"{where}: state {source.name!r} is stored as {source.kind} state, a migration cannot "
            f"make {wanted.kind} state of it; use a new name"
        )
    ttl = continued_ttl(source, wanted.ttl)
    target_id = catalog.add(msgspec.structs.replace(wanted, ttl=ttl, is_stamped=True))
    rewrite = EntryRewrite(source, wanted, migration, f"{where}, state {source.name!r}")
    for entry in _entries_of(table, source_id):
        prefix = entry.prefix + bytes([target_id]) + entry.key
        rest, data = rewrite(entry.rest, entry.data)
        if migration.key is not None and table.is_written(prefix + rest):
            raise IncompatibleStateError(
                f"{where}: the migration of state {source.name!r} gives two keys of a map the same "
                f"new key, stored as {rest.hex()}: one entry would be lost; correct the migration"
            )
        table.write_below(prefix, prefix + rest, entry.stamp + data)
    catalog.delete(source_id)
    return target_id


def schema_of(state: StateDescriptor) -> StateSchema:
    """Return a stored state in the form that verdicts compare, without its time to live."""
    keys = None if state.map_key_schema is None else struct_type(state.map_key_schema)
    return StateSchema(state.name, state.kind, struct_type(state.value_schema), keys)


def _entries_of(table: StateTable, state_id: int) -> Iterator[_Entry]:
    for stored_key, value in table.scan_stored(b""):
        if is_keyed(stored_key):
            if state_id_of(stored_key) != state_id:
                continue
            key_start = KEY_START
            key_end = end_of_value(stored_key, key_start)
        elif stored_key.startswith(OPERATOR_STATE + bytes([state_id])):
            key_start = key_end = len(OPERATOR_STATE) + 1
        else:
            continue
        data = without_stamp(value)
        yield _Entry(
            prefix=stored_key[: key_start - 1],
            key=stored_key[key_start:key_end],
            rest=stored_key[key_end:],
            stamp=value[: len(value) - len(data)],
            data=data,
        )


class EntryRewrite:
    """Turns entries of a stored state into entries of another state; runs on an executor."""

    def __init__(
        self,
        source: StateDescriptor,
        target: StateDescriptor,
        migration: Migration | None,
        where: str,
    ) -> None:
        self._where = where
        self._entries = kind_of(source).entries
        self._new = codec_of(target, where)
        value = None if migration is None else migration.value
        if value is None:  # what no user sees stays as it is stored
            # Each entry from its own schema: it may have a field that the newest stored one lacks.
            self._old = codec_of(_with_schema_of(source, target), where).plain
            self._new = self._new.plain
            self._value = None
        else:
            self._old = codec_of(source, where)
            self._value = _on_rows(value, struct_type(source.value_schema))
        if source.map_key_schema is not None and target.map_key_schema is not None:
            stored_key = struct_type(source.map_key_schema)
            key = None if migration is None else migration.key
            self._map_key = None if key is None else _on_rows(key, stored_key)
            self._old_key = TupleCodec(stored_key, where, is_key=True)
            self._new_key = TupleCodec(struct_type(target.map_key_schema), where, is_key=True)

    def __call__(self, rest: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Rewrite an entry.

        `rest` is the part of the stored key that follows the user's key: the key of a map, or the
        number of a chunk. `data` is the entry without its stamp.
        """
        try:
            return self._rewrite(rest, data)
        except CkptError:
            raise
        except Exception as exc:
            raise ProcessorError(
                f"{self._where}: the migration raised {type(exc).__name__}: "
                f"{shortened(str(exc))}; correct it and start the query again, nothing of this "
                f"epoch was committed{user_frames(exc)}"
            ) from exc

    def _rewrite(self, rest: bytes, data: bytes) -> tuple[bytes, bytes]:
        if self._entries is Entries.CHUNKS:
            if not rest:  # the list's number of chunks
                return b"", data
            return rest, encode_chunk([self._item(item) for item in decode_chunk(data)])
        if self._entries is Entries.BY_MAP_KEY:
            if self._map_key is not None:
                rest = self._new_key.encode(self._map_key(self._old_key.decode(rest)))
            return rest, self._item(data)
        return b"", self._item(data)

    def _item(self, data: bytes) -> bytes:
        values = self._old.decode(data)
        return self._new.encode(values if self._value is None else self._value(values))


def _with_schema_of(source: StateDescriptor, target: StateDescriptor) -> StateDescriptor:
    """Return a stored state whose newest schema is that of another one."""
    if same_schema(source.value_schema, target.value_schema):
        return source
    earlier = (*source.earlier_schemas, source.value_schema)
    return msgspec.structs.replace(
        source, value_schema=target.value_schema, earlier_schemas=earlier
    )


def _on_rows(function: Callable[[Any], _Tuple], schema: T.StructType) -> Callable[[_Tuple], _Tuple]:
    """Return a function over tuples that calls the user's function with named rows."""
    row_type = row_type_of(schema.names)
    return lambda values: function(tuple.__new__(row_type, values))
