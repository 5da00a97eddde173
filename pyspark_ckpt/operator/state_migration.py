"""A user's migration of one stored state: every entry is read, changed and written anew, once.

The migrated state gets an id of its own; the old one is deleted in the same epoch. So a retry
starts from where the first attempt did, and what was migrated is never migrated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import CkptError, IncompatibleStateError, ProcessorError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.on_disk.handle import StateDescriptor
from pyspark_ckpt.operator.codec import TupleCodec
from pyspark_ckpt.operator.message_pack import end_of_value
from pyspark_ckpt.operator.row_types import row_type_of
from pyspark_ckpt.operator.state_catalog import (
    StateCatalog,
    codec_of,
    continued_ttl,
    struct_type,
)
from pyspark_ckpt.operator.state_table import StateTable
from pyspark_ckpt.operator.state_verdict import StateSchema, used_migration
from pyspark_ckpt.operator.stored_keys import KEY_GROUP_BYTES, OPERATOR_STATE, is_keyed, state_id_of
from pyspark_ckpt.operator.time_to_live import without_stamp

_chunk_encoder = msgspec.msgpack.Encoder()
_chunk_decoder = msgspec.msgpack.Decoder(list[bytes])
_LISTS = ("list", "operator-list")
_MAPS = ("map", "broadcast")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A stored entry taken apart."""

    prefix: bytes
    """Up to the state id, without it."""
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
    """Migrate a stored state into the one that is wanted, if it has not been yet.

    Called on an executor before the epoch's first row, in every epoch; reads all of the subtask's
    state once. The new entries are writes of the epoch.

    Returns
    -------
    int or None
        The id of the migrated state; ``None`` if there was nothing to migrate.

    Raises
    ------
    IncompatibleStateError
        If the stored state is of another kind.
    ProcessorError
        If the user's function raises.
    """
    source_id = catalog.find(migration.renamed_from or wanted.name)
    if source_id is None:
        return None
    source = catalog.descriptor(source_id)
    if used_migration(_schema_of(source), _schema_of(wanted), migration) is None:
        return None
    if source.kind != wanted.kind:
        raise IncompatibleStateError(
            f"{where}: state {source.name!r} is stored as {source.kind} state, a migration cannot "
            f"make {wanted.kind} state of it; use a new name"
        )
    ttl = continued_ttl(source, wanted.ttl)
    target_id = catalog.add(msgspec.structs.replace(wanted, ttl=ttl, is_stamped=True))
    rewrite = _Rewrite(source, wanted, migration, f"{where}, state {source.name!r}")
    for entry in _entries_of(table, source_id):
        prefix = entry.prefix + bytes([target_id]) + entry.key
        rest, data = rewrite(entry)
        table.write_below(prefix, prefix + rest, entry.stamp + data)
    catalog.delete(source_id)
    return target_id


def _schema_of(state: StateDescriptor) -> StateSchema:
    keys = None if state.map_key_schema is None else struct_type(state.map_key_schema)
    return StateSchema(state.name, state.kind, struct_type(state.value_schema), keys)


class _Rewrite:
    """Turns an entry of the stored state into one of the wanted state."""

    def __init__(
        self, source: StateDescriptor, wanted: StateDescriptor, migration: Migration, where: str
    ) -> None:
        self._where = where
        self._kind = source.kind
        self._old = codec_of(source, where)
        self._new = TupleCodec(struct_type(wanted.value_schema), where)
        self._value = _on_rows(migration.value, struct_type(source.value_schema))
        if source.map_key_schema is not None and wanted.map_key_schema is not None:
            key_schema = struct_type(source.map_key_schema)
            self._old_key = TupleCodec(key_schema, where, is_key=True)
            self._new_key = TupleCodec(struct_type(wanted.map_key_schema), where, is_key=True)
            self._map_key = _on_rows(migration.key, key_schema)

    def __call__(self, entry: _Entry) -> tuple[bytes, bytes]:
        """Return the entry's new map key or chunk number, and its new data."""
        try:
            return self._rewritten(entry)
        except CkptError:
            raise
        except Exception as exc:
            raise ProcessorError(
                f"{self._where}: the migration raised {type(exc).__name__}: {exc}; mend it and "
                "start the query again, nothing of this epoch was committed"
            ) from exc

    def _rewritten(self, entry: _Entry) -> tuple[bytes, bytes]:
        if self._kind in _LISTS:
            if not entry.rest:  # the list's number of chunks
                return b"", entry.data
            items = [self._item(item) for item in _chunk_decoder.decode(entry.data)]
            return entry.rest, _chunk_encoder.encode(items)
        if self._kind in _MAPS:
            key = self._map_key(self._old_key.decode(entry.rest))
            return self._new_key.encode(key), self._item(entry.data)
        return b"", self._item(entry.data)

    def _item(self, data: bytes) -> bytes:
        return self._new.encode(self._value(self._old.decode(data)))


def _on_rows(
    function: Callable[[Any], tuple[Any, ...]] | None, schema: T.StructType
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a user's function as one over tuples; it gets named rows."""
    if function is None:
        return lambda values: values
    row_type = row_type_of(schema.names)
    return lambda values: function(tuple.__new__(row_type, values))


def _entries_of(table: StateTable, state_id: int) -> Iterator[_Entry]:
    for stored_key, value in table.scan_stored(b""):
        if is_keyed(stored_key):
            if state_id_of(stored_key) != state_id:
                continue
            key_start = KEY_GROUP_BYTES + 1
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
