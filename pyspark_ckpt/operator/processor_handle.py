"""The handle that a processor's ``init`` receives: gives out states, checks their schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, NotBuiltYetError, PlanError
from pyspark_ckpt.on_disk.handle import StateDescriptor
from pyspark_ckpt.operator.codec import TupleCodec
from pyspark_ckpt.operator.state_table import MAX_STATES, StateTable
from pyspark_ckpt.operator.states import ListState, MapState, ValueState


class ProcessorHandle:
    """The methods of ``pyspark.sql.streaming.StatefulProcessorHandle`` that are built so far.

    Parameters
    ----------
    table
        The epoch's view of the state.
    where
        The operator and subtask, for errors.
    stored
        The states that the subtask's handle already has; their order gives the state ids.
    schemas
        The DDL texts that ``init`` uses, parsed on the driver: executors have no parser.
    """

    def __init__(
        self,
        table: StateTable,
        where: str,
        stored: tuple[StateDescriptor, ...],
        schemas: Mapping[str, T.StructType],
    ) -> None:
        self._table = table
        self._where = where
        self._schemas = schemas
        self._descriptors = list(stored)
        self._given: set[str] = set()

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """Stored states and those asked for since, in the order of their ids."""
        return tuple(self._descriptors)

    def getValueState(
        self, stateName: str, schema: T.StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        """Return the value state of that name, made if it is new."""
        codec, state_id = self._state(stateName, "value", schema, ttlDurationMs)
        return ValueState(self._table, state_id, codec)

    def getListState(
        self, stateName: str, schema: T.StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        """Return the list state of that name, made if it is new."""
        codec, state_id = self._state(stateName, "list", schema, ttlDurationMs)
        return ListState(self._table, state_id, codec)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: T.StructType | str,
        valueSchema: T.StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Return the map state of that name, made if it is new."""
        key_schema = self._struct_type(userKeySchema)
        codec, state_id = self._state(stateName, "map", valueSchema, ttlDurationMs, key_schema)
        what = f"{self._where}, keys of map state {stateName!r}"
        key_codec = TupleCodec(key_schema, what, is_key=True)
        return MapState(self._table, state_id, key_codec, codec)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        """Not built yet."""
        raise self._not_built("timers (registerTimer)")

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        """Not built yet."""
        raise self._not_built("timers (deleteTimer)")

    def listTimers(self) -> Iterator[int]:
        """Not built yet."""
        raise self._not_built("timers (listTimers)")

    def deleteIfExists(self, stateName: str) -> None:
        """Not built yet."""
        raise self._not_built(f"deleteIfExists({stateName!r})")

    def _state(
        self,
        name: str,
        kind: str,
        schema: T.StructType | str,
        ttl_duration_ms: int | None,
        map_key_schema: T.StructType | None = None,
    ) -> tuple[TupleCodec, bytes]:
        if ttl_duration_ms is not None:
            raise self._not_built(f"TTL (ttlDurationMs of state {name!r})")
        value_schema = self._struct_type(schema)
        wanted = StateDescriptor(
            name=name,
            kind=kind,
            value_schema=value_schema.json(),
            map_key_schema=None if map_key_schema is None else map_key_schema.json(),
        )
        codec = TupleCodec(value_schema, f"{self._where}, {kind} state {name!r}")
        return codec, bytes([self._state_id(wanted)])

    def _struct_type(self, schema: T.StructType | str) -> T.StructType:
        if isinstance(schema, T.StructType):
            return schema
        try:
            return self._schemas[schema]
        except KeyError:
            raise PlanError(
                f"{self._where}: the schema {schema!r} was not asked for when the query was built; "
                "give a StructType, or ask for all states in init"
            ) from None

    def _state_id(self, wanted: StateDescriptor) -> int:
        if wanted.name in self._given:
            raise PlanError(f"{self._where}: init asks for the state {wanted.name!r} twice")
        self._given.add(wanted.name)
        for state_id, stored in enumerate(self._descriptors):
            if stored.name == wanted.name:
                check_unchanged(stored, wanted, self._where)
                return state_id
        if len(self._descriptors) > MAX_STATES:
            raise PlanError(f"{self._where}: more than {MAX_STATES + 1} states, use fewer names")
        self._descriptors.append(wanted)
        return len(self._descriptors) - 1

    def _not_built(self, what: str) -> NotBuiltYetError:
        return NotBuiltYetError(f"{self._where}: {what} is not built yet")


def check_unchanged(stored: StateDescriptor, wanted: StateDescriptor, where: str) -> None:
    """Check that a stored state is what the processor asks for.

    Raises
    ------
    IncompatibleStateError
        If kind or schema differ.
    """
    if stored != wanted:
        raise IncompatibleStateError(
            f"{where}: state {stored.name!r} is stored as {_text(stored)}, the processor asks for "
            f"{_text(wanted)}; give the state back its kind and schema, or use a new name (schema "
            "evolution is not built yet)"
        )


def _text(descriptor: StateDescriptor) -> str:
    schemas = [descriptor.map_key_schema, descriptor.value_schema]
    return (
        descriptor.kind
        + " state of "
        + " to ".join(schema_text(schema) for schema in schemas if schema is not None)
    )


def schema_text(schema_json: str) -> str:
    """Return the short form of a stored schema, for errors."""
    return T.StructType.fromJson(json.loads(schema_json)).simpleString()
