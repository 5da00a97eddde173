"""The states of a subtask by name: their lasting ids, and the history of their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec
import numpy as np
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, StateUseError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor, TtlDescriptor
from pyspark_ckpt.formats.metadata_check import checked_schema, not_a_schema
from pyspark_ckpt.formats.modes import TtlTime, TtlUpdate, TtlVisibility
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.schema.evolution import Verdict, compare, converter
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig, now_ms
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.values.codec import MAX_VERSION, Codec, EarlierSchema, TupleCodec, VersionedCodec
from pyspark_ckpt.values.nesting import same_type

KEY_SCHEMA = "key schema"
"""The part that a location fixes and no restore changes: see :func:`fixed_parts`."""

FREE = "free"
"""The stored kind of a place in the list of states that no entry refers to any more."""

FREE_PLACE = StateDescriptor(
    name="", kind=FREE, value_schema='{"fields":[],"type":"struct"}', sweeps=0
)
"""Replaces a deleted state without entries; it has a schema because stored schemas are checked."""


def is_deleted(state: StateDescriptor) -> bool:
    """Return whether a state was deleted and may still have entries."""
    return state.sweeps is not None and state.kind != FREE


_FEW = 1_000
"""Entries and key groups of a deleted state that are looked at to spare a new id."""

_TRIED = 4
"""Deleted states that are looked at for that."""


class Emptied(Protocol):
    """Removes the entries of a deleted state."""

    def __call__(self, state_id: int, most: int | None, *, is_deleted_now: bool) -> bool:
        """Remove all entries, if there are not more than `most`; return whether none is left."""


class StateCatalog:
    """The states of a subtask's handle, changed to what the processor asks for.

    `stored` are in the order of their ids. `emptied` removes all entries of a deleted state for a
    new one, if it can, and returns whether it did.
    """

    def __init__(
        self,
        stored: tuple[StateDescriptor, ...],
        where: str,
        emptied: Emptied | None = None,
    ) -> None:
        self._states = list(stored)
        self._where = where
        self._emptied = emptied
        self._given: set[str] = set()
        self._deleted: set[int] = set()
        self._large: set[int] = set()

    @property
    def states(self) -> tuple[StateDescriptor, ...]:
        """All states in the order of their ids, deleted ones included."""
        return tuple(self._states)

    def claim(self, name: str) -> None:
        """Note that the processor asks for a state of this name."""
        if name in self._given:
            raise StateUseError(f"{self._where}: init asks for the state {name!r} twice")
        self._given.add(name)

    def find(self, name: str) -> int | None:
        """Return the id of a stored state, ``None`` if it does not exist or was deleted."""
        for state_id, state in enumerate(self._states):
            if state.name == name and state.sweeps is None:
                return state_id
        return None

    def descriptor(self, state_id: int) -> StateDescriptor:
        """Return the state with an id."""
        return self._states[state_id]

    def add(self, wanted: StateDescriptor) -> int:
        """Add a new state and return its id."""
        state_id = self._free_id()
        if state_id == len(self._states):
            self._states.append(wanted)
        self._states[state_id] = wanted
        self._deleted.discard(state_id)
        return state_id

    def _free_id(self) -> int:
        """Return an id that no entry has: of a free place, of a deleted state, or a new one."""
        for state_id, state in enumerate(self._states):
            if state.kind == FREE:
                return state_id
        deleted = self._deleted_before()
        for state_id in deleted[:_TRIED]:
            if self._is_emptied(state_id, _FEW):
                return state_id
        if len(self._states) < MAX_STATES:
            return len(self._states)
        for most in (_FEW, None):
            for state_id in [*reversed(deleted), *self._deleted]:
                if self._is_emptied(state_id, most):
                    return state_id
        raise StateUseError(f"{self._where}: more than {MAX_STATES} states, use fewer names")

    def _deleted_before(self) -> list[int]:
        """Return the states that earlier epochs deleted, first those with the fewest entries.

        A removal that had to stop at a key group has shown that the state has many.
        """
        found = [
            state_id
            for state_id, state in enumerate(self._states)
            if is_deleted(state) and state_id not in self._deleted
        ]
        return sorted(found, key=lambda state_id: (self._states[state_id].sweeps or 0, -state_id))

    def _is_emptied(self, state_id: int, most: int | None) -> bool:
        if self._emptied is None or (most is not None and state_id in self._large):
            return False
        is_now = state_id in self._deleted
        is_emptied = self._emptied(state_id, most, is_deleted_now=is_now)
        if not is_emptied:
            self._large.add(state_id)
        return is_emptied

    def evolve(self, state_id: int, wanted: StateDescriptor) -> None:
        """Change a stored state to what the processor asks for."""
        self._states[state_id] = evolved(self._states[state_id], wanted, self._where)

    def replace(self, state_id: int, wanted: StateDescriptor) -> None:
        """Change a stored state that has no entry."""
        self._states[state_id] = wanted

    def delete(self, state_id: int) -> None:
        """Mark a state as deleted; its entries are removed at the barrier, or epoch by epoch."""
        self._deleted.add(state_id)
        self._states[state_id] = msgspec.structs.replace(self._states[state_id], sweeps=0)


def evolved(stored: StateDescriptor, wanted: StateDescriptor, where: str) -> StateDescriptor:
    """Return the wanted state with the history of the stored state."""
    if stored.kind != wanted.kind or not same_schema(stored.map_key_schema, wanted.map_key_schema):
        raise _incompatible(stored, wanted, where, "kind and map keys cannot change")
    earlier = stored.earlier_schemas
    evolution = compare(struct_type(stored.value_schema), struct_type(wanted.value_schema))
    if evolution.verdict is Verdict.INCOMPATIBLE:
        raise _incompatible(stored, wanted, where, "; ".join(evolution.refused))
    if evolution.verdict is Verdict.EVOLVED:
        earlier = (*earlier, stored.value_schema)
        if len(earlier) > MAX_VERSION:
            raise _incompatible(stored, wanted, where, f"more than {MAX_VERSION} changes of schema")
    return msgspec.structs.replace(
        wanted,
        earlier_schemas=earlier,
        ttl=continued_ttl(stored, wanted.ttl),
        is_stamped=stored.is_stamped or wanted.is_stamped,
    )


def codec_of(state: StateDescriptor, what: str) -> Codec:
    """Return the codec of a state's entries, which may have any schema of its history."""
    schemas = [struct_type(schema) for schema in (*state.earlier_schemas, state.value_schema)]
    newest = TupleCodec(schemas[-1], what)
    if len(schemas) == 1:
        return newest
    earlier = [
        EarlierSchema(TupleCodec(schema, what), converter(*schemas[version:]) or _as_it_is)
        for version, schema in enumerate(schemas[:-1])
    ]
    return VersionedCodec(newest, earlier, what)


def _as_it_is(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values


def ttl_descriptor(
    ttl: int | timedelta | StateTtlConfig | None, clock: EpochClock, where: str
) -> TtlDescriptor | None:
    """Return a time to live that the processor asks for, in the form that is stored."""
    is_number = isinstance(ttl, int | np.integer) and not isinstance(ttl, bool | np.timedelta64)
    if ttl is None or (is_number and ttl == 0):  # 0 means none, as in PySpark
        return None
    config = ttl if isinstance(ttl, StateTtlConfig) else StateTtlConfig(ttl)  # type: ignore[arg-type]
    time = TtlTime(config.time)
    return TtlDescriptor(
        duration_ms=config.duration_ms,
        time=time,
        update=TtlUpdate(config.update),
        visibility=TtlVisibility(config.visibility),
        since_ms=now_ms(time, clock, where) or None,
    )


def continued_ttl(stored: StateDescriptor, wanted: TtlDescriptor | None) -> TtlDescriptor | None:
    """Return the wanted time to live; entries without a stamp keep the time that they age from."""
    if wanted is None or stored.ttl is None or stored.ttl.time != wanted.time:
        return wanted
    if stored.ttl.since_ms is None:
        return wanted
    return msgspec.structs.replace(wanted, since_ms=stored.ttl.since_ms)


def schema_text(schema_json: str) -> str:
    """Return the short form of a stored schema, for errors."""
    return struct_type(schema_json).simpleString()


def fixed_parts(handle: Handle, operator: OperatorDescriptor) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a location fixes for an operator: its name, as it is stored, as the query has it.

    A restart at the location cannot change it.
    """
    yield "max_parallelism", handle.max_parallelism, operator.max_parallelism
    yield "timeMode", handle.time_mode, operator.time_mode
    yield KEY_SCHEMA, schema_text(handle.key_schema), schema_text(operator.key_schema)


def same_schema(one: str | None, other: str | None) -> bool:
    """Return whether two stored schemas are the same, whatever the metadata of their fields."""
    if one is None or other is None or one == other:
        return one == other
    return same_type(struct_type(one), struct_type(other))


def is_beginning(history: Sequence[str], of: Sequence[str]) -> bool:
    """Return whether a history of schemas is the beginning of another, or all of it."""
    return len(history) <= len(of) and all(map(same_schema, history, of))


def struct_type(schema_json: str) -> T.StructType:
    """Return a stored schema.

    A schema with a user-defined type raises CorruptFileError, because PySpark would import, and
    even unpickle, what its JSON names.
    """
    fields = checked_schema(schema_json)
    try:
        return T.StructType.fromJson(fields)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        raise not_a_schema(schema_json) from exc


def _incompatible(
    stored: StateDescriptor, wanted: StateDescriptor, where: str, why: str
) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"{where}: state {stored.name!r} is stored as {_text(stored)}, the processor asks for "
        f"{_text(wanted)} ({why}); give the state back its kind and schema, use a new name, or "
        "give a migration"
    )


def _text(descriptor: StateDescriptor) -> str:
    schemas = [descriptor.map_key_schema, descriptor.value_schema]
    return (
        descriptor.kind
        + " state of "
        + " to ".join(schema_text(schema) for schema in schemas if schema is not None)
    )
