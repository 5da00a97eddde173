"""The handle that a processor's ``init`` receives: gives out states and timers."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as T

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.state.key_timers import KeyTimers
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
from pyspark_ckpt.operator.state.registry import Schema, StateRegistry, Ttl
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.table.sweep import LIST
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.operator.values.wire_form import row_type_of


class ProcessorHandle(StateRegistry, KeyTimers):
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
        KeyTimers.__init__(self, table, clock, where)
        StateRegistry.__init__(self, table, clock, where, stored, schemas, migrations)

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
