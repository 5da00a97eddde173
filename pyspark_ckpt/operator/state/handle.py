"""The handle that a processor's ``init`` receives: gives out states and timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateUseError, StateValueError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.state.deleted import withdraw
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.state.merging import (
    AggregateFunction,
    AggregatingState,
    ReduceFunction,
    ReducingState,
)
from pyspark_ckpt.operator.state.operator_states import (
    REDISTRIBUTIONS,
    SPLIT,
    BroadcastState,
    OperatorListState,
)
from pyspark_ckpt.operator.state.timers import Timers
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.table.catalog import StateCatalog, codec_of, ttl_descriptor
from pyspark_ckpt.operator.table.migration import migrate
from pyspark_ckpt.operator.table.sweep import LIST
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import (
    Aging,
    StateTtlConfig,
    SwitchedOff,
    TimeToLive,
    TtlTime,
)
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.operator.values.codec import Codec, TupleCodec
from pyspark_ckpt.operator.values.pandas import ValueColumns
from pyspark_ckpt.operator.values.wire_form import row_type_of

Schema = T.StructType | str
Ttl = int | StateTtlConfig | None
State = TypeVar("State")


class ProcessorHandle:
    """The methods of ``pyspark.sql.streaming.StatefulProcessorHandle``, and Flink's states.

    A processor's ``init`` gets it: on the driver once when the query is built, then on executors
    in every epoch of every subtask. States are asked for in ``init`` only. Timers are set where
    a key is handled.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    clock : EpochClock
        The epoch's times.
    where : str
        The operator and subtask, for errors.
    stored : tuple of StateDescriptor
        The states that the subtask's handle already has; their order gives the state ids.
    schemas : Mapping of str to StructType
        The DDL texts that ``init`` uses, parsed on the driver: executors have no parser.
    migrations : Mapping of str to Migration, optional
        What the user gave to bring stored states to new schemas or names, by state.

    Examples
    --------
    >>> count = handle.getValueState("count", "n long")
    >>> count.update((1,))
    >>> handle.registerTimer(60_000)
    >>> list(handle.listTimers())
    [60000]
    """

    def __init__(
        self,
        table: StateTable,
        clock: EpochClock,
        where: str,
        stored: tuple[StateDescriptor, ...],
        schemas: Mapping[str, T.StructType],
        migrations: Mapping[str, Migration] | None = None,
    ) -> None:
        self.timers = Timers(table, clock, where)
        self.table = table
        self.clock = clock
        self._where = where
        self._schemas = schemas
        self._catalog = StateCatalog(stored, where)
        self._migrations = migrations or {}
        self._aging: dict[int, TimeToLive] = {}
        self._given: dict[str, Any] = {}
        self._in_init = True

    def end_of_init(self) -> None:
        """Refuse to give out or delete states from here on, as PySpark does."""
        self._in_init = False

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """Stored states and those asked for since, in the order of their ids."""
        return self._catalog.states

    @property
    def aging(self) -> Mapping[int, TimeToLive]:
        """How entries age, by state id, of all states that have a time to live.

        Those that the processor no longer asks for have one too.
        """
        return {**self._aging_unasked(), **self._aging}

    @property
    def ages_in_event_time(self) -> bool:
        """Whether the event time of a key's rows must be known."""
        return any(aging.is_in_event_time for aging in self._aging.values())

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
        ttlDurationMs : int or StateTtlConfig, optional
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
        state = self._value_state("value", stateName, schema, ttlDurationMs)
        return self._note(stateName, state)

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: Ttl = None) -> ListState:
        """Return the list state of a name, made if it is new.

        Parameters
        ----------
        stateName : str
            The state's name, unique in the operator.
        schema : StructType or str
            The schema of the tuples; text is DDL, and a bare type is one field ``value``.
        ttlDurationMs : int or StateTtlConfig, optional
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
        state_id, codec, aging = self._state(LIST, stateName, schema, ttl=ttlDurationMs)
        return self._note(stateName, ListState(self.table, state_id, codec, aging))

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
        ttlDurationMs : int or StateTtlConfig, optional
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
        state_id, codec, aging = self._state(
            "map", stateName, valueSchema, map_key=userKeySchema, ttl=ttlDurationMs
        )
        row_type = row_type_of(self._struct_type(valueSchema).names)
        key_codec = self._map_key_codec(stateName, userKeySchema)
        state = MapState(self.table, state_id, key_codec, codec, aging, row_type)
        return self._note(stateName, state)

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
        ttlDurationMs : int or StateTtlConfig, optional
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
        value = self._value_state("reducing", stateName, schema, ttlDurationMs)
        return self._note(stateName, ReducingState(value, reduce))

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
        ttlDurationMs : int or StateTtlConfig, optional
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
        accumulator = self._value_state("aggregating", stateName, accumulatorSchema, ttlDurationMs)
        return self._note(stateName, AggregatingState(accumulator, aggregate))

    def getOperatorListState(
        self, stateName: str, schema: Schema, redistribution: str = SPLIT
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
        if redistribution not in REDISTRIBUTIONS:
            raise StateUseError(
                f"{self._where}: redistribution of state {stateName!r} is {redistribution!r}, "
                f"allowed is {', '.join(REDISTRIBUTIONS)}"
            )
        state_id, codec, _ = self._state(
            "operator-list", stateName, schema, redistribution=redistribution
        )
        return self._note(stateName, OperatorListState(self.table, state_id, codec))

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
        state_id, codec, _ = self._state("broadcast", stateName, valueSchema, map_key=keySchema)
        row_type = row_type_of(self._struct_type(valueSchema).names)
        key_codec = self._map_key_codec(stateName, keySchema)
        state = BroadcastState(self.table, state_id, key_codec, codec, row_type=row_type)
        return self._note(stateName, state)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key; registering it twice has no effect.

        Parameters
        ----------
        expiryTimestampMs : int
            When the timer fires, in milliseconds since 1970 of the operator's time mode.

        Raises
        ------
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> list(handle.listTimers())
        [60000]
        """
        self.timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key; has no effect if there is none.

        Parameters
        ----------
        expiryTimestampMs : int
            When the timer was to fire, in milliseconds since 1970.

        Raises
        ------
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> handle.deleteTimer(60_000)
        >>> list(handle.listTimers())
        []
        """
        self.timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return an iterator over the current key's timers, earliest first.

        Returns
        -------
        iterator of int
            Milliseconds since 1970.

        Raises
        ------
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> handle.registerTimer(30_000)
        >>> list(handle.listTimers())
        [30000, 60000]
        """
        return self.timers.of_current_key()

    def registerTimers(self, keys: pd.DataFrame, expiryTimestampsMs: Iterable[int]) -> None:
        """Register a timer for each of several keys.

        For ``handleInputBatch``.

        Parameters
        ----------
        keys : pandas.DataFrame
            The frame of keys that ``handleInputBatch`` got, or some of its rows.
        expiryTimestampsMs : iterable of int
            A time per row of `keys`, in milliseconds since 1970.

        Raises
        ------
        StateValueError
            If there is not one time per key, or a time is not a whole number.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        """
        self._each_timer("registerTimers", keys, expiryTimestampsMs, self.timers.register)

    def deleteTimers(self, keys: pd.DataFrame, expiryTimestampsMs: Iterable[int]) -> None:
        """Delete a timer of each of several keys.

        For ``handleInputBatch``.

        Parameters
        ----------
        keys : pandas.DataFrame
            The frame of keys that ``handleInputBatch`` got, or some of its rows.
        expiryTimestampsMs : iterable of int
            A time per row of `keys`, in milliseconds since 1970.

        Raises
        ------
        StateValueError
            If there is not one time per key, or a time is not a whole number.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        >>> handle.deleteTimers(keys, [60_000, 90_000])
        """
        self._each_timer("deleteTimers", keys, expiryTimestampsMs, self.timers.delete)

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state of all keys, if there is one.

        Its entries are removed bit by bit in the next epochs. From here on the state that
        :meth:`getValueState` or another method returned raises ``StateUseError``.

        Parameters
        ----------
        stateName : str
            The state's name.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``.

        Examples
        --------
        >>> handle.deleteIfExists("count")
        """
        self._check_in_init(f"deleteIfExists({stateName!r})")
        state_id = self._catalog.find(stateName)
        if state_id is not None:
            self._catalog.delete(state_id)
            self._aging.pop(state_id, None)
        given = self._given.pop(stateName, None)
        if given is not None:
            withdraw(given, stateName, self._where)

    def _note(self, name: str, state: State) -> State:
        """Remember which state was given out under a name."""
        self._given[name] = state
        return state

    def _each_timer(
        self,
        method: str,
        keys: pd.DataFrame,
        times_ms: Iterable[int],
        change: Callable[[int], None],
    ) -> None:
        times = list(times_ms)
        if len(times) != len(keys) or any(pd.isna(time) or int(time) != time for time in times):
            raise StateValueError(
                f"{self._where}: {method} got {len(times)} times for {len(keys)} keys: give one "
                "whole number of milliseconds per key"
            )
        current = self.table.current
        event_time_ms = current.event_time_ms
        try:
            for position, time in zip(keys.index.tolist(), times, strict=True):
                self.table.enter(position)
                change(int(time))
        finally:
            current.leave()
            current.event_time_ms = event_time_ms

    def _value_state(self, kind: str, name: str, schema: Schema, ttl: Ttl) -> ValueState:
        state_id, codec, aging = self._state(kind, name, schema, ttl=ttl)
        columns = ValueColumns(self._struct_type(schema), f"{self._where}, state {name!r}")
        return ValueState(self.table, state_id, codec, aging, columns)

    def _state(
        self,
        kind: str,
        name: str,
        schema: Schema,
        *,
        map_key: Schema | None = None,
        ttl: Ttl = None,
        redistribution: str | None = None,
    ) -> tuple[bytes, Codec, Aging | None]:
        """Return a state's id, the codec of all its entries, and how they age."""
        what = f"{self._where}, {kind} state {name!r}"
        self._check_in_init(f"the state {name!r} was asked for")
        self._catalog.claim(name)
        wanted = StateDescriptor(
            name=name,
            kind=kind,
            value_schema=self._struct_type(schema).json(),
            map_key_schema=None if map_key is None else self._struct_type(map_key).json(),
            ttl=ttl_descriptor(ttl, self.clock, what),
            is_stamped=bool(ttl),
            redistribution=redistribution,
        )
        state_id = self._id_of(wanted)
        state = self._catalog.descriptor(state_id)
        aging = self._aging_of(state_id, state, what)
        return bytes([state_id]), codec_of(state, what), aging

    def _id_of(self, wanted: StateDescriptor) -> int:
        migration = self._migrations.get(wanted.name)
        if migration is not None:
            migrated = migrate(self.table, self._catalog, wanted, migration, self._where)
            if migrated is not None:
                return migrated
        state_id = self._catalog.find(wanted.name)
        if state_id is None:
            return self._catalog.add(wanted)
        self._catalog.evolve(state_id, wanted)
        return state_id

    def _aging_of(self, state_id: int, state: StateDescriptor, what: str) -> Aging | None:
        if state.ttl is not None:
            aging = TimeToLive(state.ttl, self.clock, self.table.current, what)
            self._aging[state_id] = aging
            return aging
        return SwitchedOff() if state.is_stamped else None

    def _aging_unasked(self) -> dict[int, TimeToLive]:
        return {
            state_id: TimeToLive(state.ttl, self.clock, self.table.current, state.name)
            for state_id, state in enumerate(self._catalog.states)
            if state.ttl is not None
            and state.sweeps is None
            and state_id not in self._aging
            # Without a watermark, entries that age in event time stay as old as they are.
            and (state.ttl.time != TtlTime.EVENT_TIME or self.clock.watermark_ms is not None)
        }

    def _check_in_init(self, what: str) -> None:
        if not self._in_init:
            raise StateUseError(
                f"{self._where}: {what} outside init: do it in init, which runs in every epoch"
            )

    def _map_key_codec(self, name: str, schema: Schema) -> TupleCodec:
        what = f"{self._where}, keys of state {name!r}"
        return TupleCodec(self._struct_type(schema), what, is_key=True)

    def _struct_type(self, schema: Schema) -> T.StructType:
        if isinstance(schema, T.StructType):
            return schema
        try:
            return self._schemas[schema]
        except KeyError:
            raise StateUseError(
                f"{self._where}: the schema {schema!r} was not asked for when the query was built; "
                "give a StructType, or ask for all states in init"
            ) from None
