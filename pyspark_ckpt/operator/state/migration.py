"""Migrates one stored state with the user's functions, which change every entry once.

The migrated state gets a new id, and the old state is deleted in the same epoch. So a retry starts
from the same entries as the first attempt, and no entry is migrated twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.verdict import StateSchema, used_migration
from pyspark_ckpt.operator.state.rewrite import StateRewrite
from pyspark_ckpt.operator.table.catalog import StateCatalog, continued_ttl, struct_type
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    OPERATOR_STATE,
    is_keyed,
    state_id_of,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import without_stamp
from pyspark_ckpt.operator.values.message_pack import end_of_value


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
    rewrite = StateRewrite(source, wanted, migration, f"{where}, state {source.name!r}")
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
