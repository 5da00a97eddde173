"""The kinds of state: one table of what each kind is, and the getter of each kind.

All modules that treat kinds differently read the table: the sweep, the migration, the move to
another parallelism, the counts and the harness.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any, TypeVar

from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import ListRedistribution
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.state.merging import (
    AggregateFunction,
    AggregatingState,
    ReduceFunction,
    ReducingState,
)
from pyspark_ckpt.operator.state.operator_states import BroadcastState, OperatorListState
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import Aging, StateTtlConfig
from pyspark_ckpt.values.codec import Codec, TupleCodec
from pyspark_ckpt.values.plain import row_type_of
from pyspark_ckpt.values.state_columns import ValueColumns

Schema = T.StructType | str
Ttl = int | timedelta | StateTtlConfig | None
State = TypeVar("State")


class Entries(Enum):
    """How a state's entries lie in the table."""

    ONE = auto()
    """One entry of the state's schema, at the state's own place."""

    CHUNKS = auto()
    """The number of chunks at the state's own place, and chunks of many values below it."""

    BY_MAP_KEY = auto()
    """One entry per map key, below the state's own place."""


class Movement(Enum):
    """Where a state's entries go when the parallelism changes."""

    WITH_KEY = auto()
    """To the subtask that gets the key; the state is keyed."""

    DEALT_OUT = auto()
    """Dealt out, or all to every subtask, as ``ListRedistribution`` says; belongs to a subtask."""

    COPIED = auto()
    """One subtask's entries to every subtask; the state is the same in all subtasks."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What is known of a kind; `name` is stored in every handle, so it never changes."""

    name: str
    state_class: type
    entries: Entries
    movement: Movement


class StateKind(Enum):
    """The table of kinds."""

    VALUE = _Row("value", ValueState, Entries.ONE, Movement.WITH_KEY)
    LIST = _Row("list", ListState, Entries.CHUNKS, Movement.WITH_KEY)
    MAP = _Row("map", MapState, Entries.BY_MAP_KEY, Movement.WITH_KEY)
    REDUCING = _Row("reducing", ReducingState, Entries.ONE, Movement.WITH_KEY)
    AGGREGATING = _Row("aggregating", AggregatingState, Entries.ONE, Movement.WITH_KEY)
    OPERATOR_LIST = _Row("operator-list", OperatorListState, Entries.CHUNKS, Movement.DEALT_OUT)
    BROADCAST = _Row("broadcast", BroadcastState, Entries.BY_MAP_KEY, Movement.COPIED)

    @property
    def stored_name(self) -> str:
        """The name of the kind in handles, reports and errors."""
        return self.value.name

    @property
    def state_class(self) -> type:
        """The class of the object that a processor gets."""
        return self.value.state_class

    @property
    def entries(self) -> Entries:
        """How the entries lie in the table."""
        return self.value.entries

    @property
    def movement(self) -> Movement:
        """Where the entries go when the parallelism changes."""
        return self.value.movement

    @property
    def has_map_key(self) -> bool:
        """Whether the state has a schema of map keys."""
        return self.entries is Entries.BY_MAP_KEY

    def content_of(self, state: Any) -> Any:
        """Return all that a state of this kind holds for the current key, or for the subtask.

        The result is a list of chunks, a dict of entries by map key, or else what ``get`` returns.
        """
        if self.entries is Entries.CHUNKS:
            return list(state.get())
        if self.entries is Entries.BY_MAP_KEY:
            return dict(state.iterator())
        return state.get()


_BY_NAME = {kind.stored_name: kind for kind in StateKind}


def kind_of(state: StateDescriptor) -> StateKind:
    """Return the kind of a stored state that is not a free place."""
    kind = _BY_NAME.get(state.kind)
    if kind is None:
        raise IncompatibleStateError(
            f"state {state.name!r} is stored as {state.kind!r} state, which this version does not "
            "know: upgrade pyspark_ckpt"
        )
    return kind


@dataclass(frozen=True, slots=True)
class StateParts:
    """What the object of one state is made of.

    `aging` is ``None`` if the state's entries never carried a time. `map_key` is the schema of map
    keys, for a kind that has them.
    """

    kind: StateKind
    name: str
    where: str
    table: StateTable
    state_id: bytes
    codec: Codec
    aging: Aging | None
    schema: T.StructType
    map_key: T.StructType | None

    def value_state(self) -> ValueState:
        """Return the state as a value state, which the merging states wrap."""
        columns = ValueColumns(self.schema, f"{self.where}, state {self.name!r}")
        return ValueState(self.table, self.state_id, self.codec, self.aging, columns)

    def of_map(
        self,
    ) -> tuple[StateTable, bytes, Codec, Codec, Aging | None, type[tuple[Any, ...]]]:
        """Return the arguments of :class:`MapState`."""
        assert self.map_key is not None  # the getter of such a kind asks for it
        what = f"{self.where}, keys of state {self.name!r}"
        key_codec = TupleCodec(self.map_key, what, is_key=True)
        row_type = row_type_of(self.schema.names)
        return self.table, self.state_id, key_codec, self.codec, self.aging, row_type


class StateGetters(ABC):
    """The part of a processor's handle that has one method per kind."""

    @abstractmethod
    def _parts(
        self,
        kind: StateKind,
        name: str,
        schema: Schema,
        *,
        map_key: Schema | None = None,
        ttl: Ttl = None,
        redistribution: str | None = None,
    ) -> StateParts:
        """Return what a state is made of; the handle then knows that the processor asked."""

    @abstractmethod
    def _give_out(self, parts: StateParts, state: State) -> State:
        """Return the state, and remember it under its name."""

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: Ttl = None
    ) -> ValueState:
        """Return the value state of a name, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        schema : StructType or str
            The schema of the tuples; text is DDL, and a bare type is one field ``value``.
        ttlDurationMs : int, timedelta or StateTtlConfig, optional
            How long entries live, in milliseconds of processing time; by default for ever.

        Returns
        -------
        ValueState
            One tuple per key.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the state was asked for twice.
        IncompatibleStateError
            If the stored state cannot become what is asked for.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long", ttlDurationMs=3_600_000)
        >>> count.update((1,))
        >>> count.get()
        (1,)
        """
        parts = self._parts(StateKind.VALUE, stateName, schema, ttl=ttlDurationMs)
        return self._give_out(parts, parts.value_state())

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: Ttl = None) -> ListState:
        """Return the list state of a name, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        schema : StructType or str
            The schema of the tuples; text is DDL, and a bare type is one field ``value``.
        ttlDurationMs : int, timedelta or StateTtlConfig, optional
            How long entries live, in milliseconds of processing time; by default for ever.

        Returns
        -------
        ListState
            A list of tuples per key.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the state was asked for twice.
        IncompatibleStateError
            If the stored state cannot become what is asked for.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> visits.appendValue(("Oslo",))
        """
        parts = self._parts(StateKind.LIST, stateName, schema, ttl=ttlDurationMs)
        state = ListState(parts.table, parts.state_id, parts.codec, parts.aging)
        return self._give_out(parts, state)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: Ttl = None,
    ) -> MapState:
        """Return the map state of a name, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        userKeySchema : StructType or str
            The schema of the map's keys.
        valueSchema : StructType or str
            The schema of the map's values.
        ttlDurationMs : int, timedelta or StateTtlConfig, optional
            How long entries live, in milliseconds of processing time; by default for ever.

        Returns
        -------
        MapState
            A map of tuples to tuples per key.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the state was asked for twice.
        IncompatibleStateError
            If the stored state cannot become what is asked for.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        """
        parts = self._parts(
            StateKind.MAP, stateName, valueSchema, map_key=userKeySchema, ttl=ttlDurationMs
        )
        return self._give_out(parts, MapState(*parts.of_map()))

    def getReducingState(
        self, stateName: str, schema: Schema, reduce: ReduceFunction, ttlDurationMs: Ttl = None
    ) -> ReducingState:
        """Return the reducing state of a name, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        schema : StructType or str
            The schema of the tuples; text is DDL, and a bare type is one field ``value``.
        reduce : callable
            Returns one tuple of `schema` for two.
        ttlDurationMs : int, timedelta or StateTtlConfig, optional
            How long entries live, in milliseconds of processing time; by default for ever.

        Returns
        -------
        ReducingState
            One merged tuple per key.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the state was asked for twice.
        IncompatibleStateError
            If the stored state cannot become what is asked for.

        Examples
        --------
        >>> total = handle.getReducingState("total", "n long", lambda a, b: (a[0] + b[0],))
        >>> total.add((2,))
        """
        parts = self._parts(StateKind.REDUCING, stateName, schema, ttl=ttlDurationMs)
        return self._give_out(
            parts, ReducingState(parts.value_state(), reduce, parts.codec.as_tuple)
        )

    def getAggregatingState(
        self,
        stateName: str,
        accumulatorSchema: Schema,
        aggregate: AggregateFunction,
        ttlDurationMs: Ttl = None,
    ) -> AggregatingState:
        """Return the aggregating state of a name, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        accumulatorSchema : StructType or str
            The schema of the accumulators.
        aggregate : AggregateFunction
            Makes, fills and reads accumulators.
        ttlDurationMs : int, timedelta or StateTtlConfig, optional
            How long entries live, in milliseconds of processing time; by default for ever.

        Returns
        -------
        AggregatingState
            An accumulator per key.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the state was asked for twice.
        IncompatibleStateError
            If the stored state cannot become what is asked for.

        Examples
        --------
        `Mean` is the example of :class:`pyspark_ckpt.AggregateFunction`.

        >>> mean = handle.getAggregatingState("mean", "total double, n long", Mean())
        >>> mean.add(2.0)
        """
        parts = self._parts(StateKind.AGGREGATING, stateName, accumulatorSchema, ttl=ttlDurationMs)
        state = AggregatingState(parts.value_state(), aggregate, parts.codec.as_tuple)
        return self._give_out(parts, state)

    def getOperatorListState(
        self, stateName: str, schema: Schema, redistribution: str = ListRedistribution.SPLIT.value
    ) -> OperatorListState:
        """Return the subtask's list of a name, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        schema : StructType or str
            The schema of the tuples; text is DDL, and a bare type is one field ``value``.
        redistribution : str
            What happens at another parallelism: ``split`` deals the values of all subtasks out,
            ``union`` gives all of them to every subtask.

        Returns
        -------
        OperatorListState
            A list of tuples per subtask.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the state was asked for twice.
        IncompatibleStateError
            If the stored state cannot become what is asked for.

        Examples
        --------
        >>> seen = handle.getOperatorListState("seen", "file string", "union")
        >>> seen.appendValue(("a.json",))
        """
        parts = self._parts(
            StateKind.OPERATOR_LIST, stateName, schema, redistribution=redistribution
        )
        state = OperatorListState(parts.table, parts.state_id, parts.codec)
        return self._give_out(parts, state)

    def getBroadcastState(
        self, stateName: str, keySchema: Schema, valueSchema: Schema
    ) -> BroadcastState:
        """Return the map of a name that is the same in all subtasks, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        keySchema : StructType or str
            The schema of the map's keys.
        valueSchema : StructType or str
            The schema of the map's values.

        Returns
        -------
        BroadcastState
            A map of tuples to tuples.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the state was asked for twice.
        IncompatibleStateError
            If the stored state cannot become what is asked for.

        Examples
        --------
        >>> rules = handle.getBroadcastState("rules", "name string", "limit long")
        >>> rules.containsKey(("calls",))
        False
        """
        parts = self._parts(StateKind.BROADCAST, stateName, valueSchema, map_key=keySchema)
        return self._give_out(parts, BroadcastState(*parts.of_map()))
