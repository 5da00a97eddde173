"""The handle that a processor's ``init`` receives: gives out its states, and sets timers.

PySpark raises a ``PySparkRuntimeError`` whose text begins with the action; so does this library.
The methods of a deleted state are replaced, so other states do not check for deletion on each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError, StateUseError, StateValueError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import ListRedistribution, TtlTime
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.report import LIBRARY_PREFIX
from pyspark_ckpt.operator.state.kinds import (
    Schema,
    State,
    StateGetters,
    StateKind,
    StateParts,
    Ttl,
)
from pyspark_ckpt.operator.state.migration import migrate
from pyspark_ckpt.operator.state.removal import is_keyed_state, remove_at_once
from pyspark_ckpt.operator.state.timers import Timers
from pyspark_ckpt.operator.table.catalog import StateCatalog, codec_of, ttl_descriptor
from pyspark_ckpt.operator.table.stored_keys import Numbers
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import Aging, SwitchedOff, TimeToLive
from pyspark_ckpt.operator.time import EpochClock, instant_ms, whole_instants_ms
from pyspark_ckpt.values.nesting import types_in
from pyspark_ckpt.values.types import is_key_in_python
from pyspark_ckpt.values.words import shown

Instant = int | datetime | np.datetime64

_NO_LISTS = (str, bytes, bytearray, memoryview, Set, Mapping)
"""What Python can iterate over, and what is not a list of times."""

_TRIED = {
    "exists": "checking {kind} state exists",
    "clear": "clearing {kind} state",
    "containsKey": "checking map state contains key",
    "getValue": "getting value",
    "removeKey": "removing key from map state",
    "updateValue": "updating map state value",
}

_READS = ("get", "getMany", "iterator", "keys", "values")


def as_state_schema(data_type: T.DataType) -> T.StructType:
    """Return the schema of a state; a bare type such as ``int`` becomes one field, ``value``."""
    if isinstance(data_type, T.StructType):
        return data_type
    return T.StructType([T.StructField("value", data_type)])


@dataclass(frozen=True, slots=True)
class GivenState:
    """A state that a processor asked for."""

    kind: StateKind
    state: Any


def _column(given: Any) -> Numbers | None:
    """Return the times of a column that has whole milliseconds only, ``None`` for any other."""
    if isinstance(given, pa.Array | pa.ChunkedArray):
        is_zoned = _is_time(given) and given.type.tz is not None
        is_whole = pa.types.is_signed_integer(given.type) or is_zoned
        return whole_instants_ms(np.asarray(given)) if is_whole and not given.null_count else None
    if type(given) is np.ndarray:  # and not a masked array
        return whole_instants_ms(given)
    return None


def _is_time(column: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pa.types.is_timestamp(column.type))


class ProcessorHandle(StateGetters):
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
        self._catalog = StateCatalog(stored, where, self._remove_entries)
        self._migrations = migrations or {}
        self._aging: dict[int, TimeToLive] = {}
        self._given: dict[str, GivenState] = {}
        self._in_init = True

    def end_of_init(self) -> None:
        """Refuse later calls that get or delete states, as PySpark does."""
        self._in_init = False

    @property
    def catalog(self) -> StateCatalog:
        """The states by name, also for states that the library itself uses."""
        return self._catalog

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """The stored states and the new states that were asked for, in the order of their ids."""
        return self._catalog.states

    @property
    def aging(self) -> Mapping[int, TimeToLive]:
        """How entries age, by state id, of all states that have a time to live.

        States that the processor no longer asks for are included.
        """
        return {**self._aging_unasked(), **self._aging}

    @property
    def ages_in_event_time(self) -> bool:
        """Whether the event time of a key's rows must be known."""
        return any(aging.is_in_event_time for aging in self._aging.values())

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state of all keys, if there is one.

        Its entries are removed at the end of the epoch, or bit by bit in the next epochs if there
        are many. The name can be asked for anew, and the new state is empty. The state that
        :meth:`getValueState` or another method has returned raises ``StateUseError`` from now on.

        Parameters
        ----------
        stateName : str
            The state's name.

        Raises
        ------
        StateUseError
            If it is called outside of ``init``, or the name is the library's own.

        Examples
        --------
        >>> handle.deleteIfExists("count")
        """
        self._check_in_init(f"deleteIfExists({stateName!r})")
        self._check_name(stateName)
        state_id = self._catalog.find(stateName)
        if state_id is not None:
            self._catalog.delete(state_id)
            self._aging.pop(state_id, None)
        given = self._given.pop(stateName, None)
        if given is not None:
            withdraw(given.state, given.kind, stateName, self._where)

    def _remove_entries(self, state_id: int, most: int | None, *, is_deleted_now: bool) -> bool:
        """Remove a deleted state's entries, unless this epoch may have written some of them."""
        state = self._catalog.descriptor(state_id)
        if is_deleted_now and not is_keyed_state(state):
            return False
        return remove_at_once(self.table, state_id, state, most)

    def _give_out(self, parts: StateParts, state: State) -> State:
        assert isinstance(state, parts.kind.state_class)
        self._given[parts.name] = GivenState(parts.kind, state)
        return state

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
        what = f"{self._where}, {kind.stored_name} state {name!r}"
        self._check_in_init(f"the state {name!r} was asked for")
        self._check_name(name)
        self._catalog.claim(name)
        value_type = self._struct_type(name, schema)
        map_key_type = self._struct_type(name, map_key) if kind.has_map_key else None
        for one in (value_type, map_key_type):
            self._check_fields(name, [] if one is None else one.names)
            self._check_maps(name, T.StructType() if one is None else one)
        stored_ttl = ttl_descriptor(ttl, self.clock, what)
        wanted = StateDescriptor(
            name=name,
            kind=kind.stored_name,
            value_schema=value_type.json(),
            map_key_schema=None if map_key_type is None else map_key_type.json(),
            ttl=stored_ttl,
            is_stamped=stored_ttl is not None,
            redistribution=self._redistribution(name, redistribution),
        )
        state_id = self._id_of(wanted)
        state = self._catalog.descriptor(state_id)
        return StateParts(
            kind=kind,
            name=name,
            where=self._where,
            table=self.table,
            state_id=bytes([state_id]),
            codec=codec_of(state, what),
            aging=self._aging_of(state_id, state, what),
            schema=value_type,
            map_key=map_key_type,
        )

    def _redistribution(self, name: str, given: str | None) -> ListRedistribution | None:
        try:
            return None if given is None else ListRedistribution(given)
        except ValueError:
            raise StateUseError(
                f"{self._where}: redistribution of state {name!r} is {given!r}, "
                f"use one of {', '.join(ListRedistribution)}"
            ) from None

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
            # Without a watermark, entries that age in event time do not age.
            and (state.ttl.time != TtlTime.EVENT_TIME or self.clock.watermark_ms is not None)
        }

    def _check_in_init(self, what: str) -> None:
        if not self._in_init:
            raise StateUseError(
                f"{self._where}: {what} outside init: do it in init, which runs in every epoch"
            )

    def _check_name(self, name: str) -> None:
        if not name or name.startswith(LIBRARY_PREFIX):
            raise StateUseError(
                f"{self._where}: the name of a state cannot be empty or begin with "
                f"{LIBRARY_PREFIX!r}, as the library's own do: give {name!r} another name"
            )

    def _check_fields(self, state: str, names: Sequence[str]) -> None:
        folded = [name.lower() for name in names]  # in SQL and in tables of states, n is N
        twice = [name for name in names if folded.count(name.lower()) > 1]
        if twice:
            raise StateUseError(
                f"{self._where}: the schema of state {state!r} has the field {twice[0]!r} twice "
                f"(as {', '.join(twice)}): give each field another name"
            )

    def _check_maps(self, state: str, schema: T.StructType) -> None:
        for each in types_in(schema):
            if isinstance(each, T.MapType) and not is_key_in_python(each.keyType):
                raise PlanError(
                    f"{self._where}: the schema of state {state!r} has {each.simpleString()}, "
                    f"whose keys are {each.keyType.simpleString()}: no value fits, because a "
                    "Python dict cannot have such keys; use an array of structs of key and value, "
                    "or take texts for keys"
                )

    def _struct_type(self, state: str, schema: Any) -> T.StructType:
        if isinstance(schema, T.DataType):
            return as_state_schema(schema)
        if not isinstance(schema, str):
            is_class = isinstance(schema, type) and issubclass(schema, T.DataType)
            wanted = (
                f"{schema.__name__}()" if is_class else "a StructType, or text such as 'n long'"
            )
            raise StateUseError(
                f"{self._where}: {shown(schema)} was given as a schema of state {state!r}, and is "
                f"not one: give {wanted}"
            )
        try:
            return self._schemas[schema]
        except KeyError:
            raise StateUseError(
                f"{self._where}: the schema {schema!r} was not asked for when the query was built; "
                "give a StructType, or ask for all states in init"
            ) from None

    def registerTimer(self, expiryTimestampMs: Instant) -> None:
        """Register a timer for the current key; registering it twice has no effect.

        Parameters
        ----------
        expiryTimestampMs : int, datetime or numpy.datetime64
            When the timer fires in the operator's time mode: milliseconds since 1970, a
            ``datetime`` or ``pandas.Timestamp`` with a time zone, or NumPy's time, which is in UTC.

        Raises
        ------
        StateValueError
            If it is not an instant, has no time zone, or lies between two milliseconds.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> list(handle.listTimers())
        [60000]
        """
        self.timers.register(self._instant("registerTimer", expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: Instant) -> None:
        """Delete a timer of the current key; has no effect if there is none.

        Parameters
        ----------
        expiryTimestampMs : int, datetime or numpy.datetime64
            When the timer was to fire, as for :meth:`registerTimer`.

        Raises
        ------
        StateValueError
            If it is not an instant, has no time zone, or lies between two milliseconds.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimer(60_000)
        >>> handle.deleteTimer(60_000)
        >>> list(handle.listTimers())
        []
        """
        self.timers.delete(self._instant("deleteTimer", expiryTimestampMs))

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

    def registerTimers(
        self, keys: pd.DataFrame | pa.Table, expiryTimestampsMs: Iterable[Instant]
    ) -> None:
        """Register a timer for each of several keys.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.
        expiryTimestampsMs : iterable
            A time per row of `keys`, each as for :meth:`registerTimer`, such as a list, a pandas
            or NumPy column, or an Arrow column.

        Raises
        ------
        StateValueError
            If there is not one time per key, or one is not a time as for :meth:`registerTimer`.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        """
        positions = self.table.positions_of(keys, self._where)
        self.timers.register_many(
            positions, self._instants("registerTimers", len(keys), expiryTimestampsMs)
        )

    def deleteTimers(
        self, keys: pd.DataFrame | pa.Table, expiryTimestampsMs: Iterable[Instant]
    ) -> None:
        """Delete a timer of each of several keys.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.
        expiryTimestampsMs : iterable
            A time per row of `keys`, each as for :meth:`registerTimer`, such as a list, a pandas
            or NumPy column, or an Arrow column.

        Raises
        ------
        StateValueError
            If there is not one time per key, or one is not a time as for :meth:`registerTimer`.
        TimeModeError
            If the operator has ``timeMode="None"``.

        Examples
        --------
        >>> handle.registerTimers(keys, [60_000, 90_000])
        >>> handle.deleteTimers(keys, [60_000, 90_000])
        """
        positions = self.table.positions_of(keys, self._where)
        self.timers.delete_many(
            positions, self._instants("deleteTimers", len(keys), expiryTimestampsMs)
        )

    def eachKey(self, keys: pd.DataFrame | pa.Table) -> Iterator[int]:
        """Make each of several keys the current one, one after the other.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``. In a loop over
        the result, all states and :meth:`registerTimer`, :meth:`deleteTimer` and :meth:`listTimers`
        work as in a call for one key. Value state and timers of many keys are faster with
        ``getMany``, ``updateMany`` and :meth:`registerTimers`.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.

        Yields
        ------
        int
            The row of `keys` that is current: 0, 1, 2 and so on.

        Raises
        ------
        StateUseError
            If it is not called in a call for many keys, or in a loop over another such iterator.

        Examples
        --------
        >>> visits = handle.getListState("visits", "city string")
        >>> for n in handle.eachKey(keys):
        ...     visits.appendValue(("Oslo" if n == 0 else "Rome",))
        >>> [list(visits.get()) for n in handle.eachKey(keys)]
        [[('Oslo',)], [('Rome',)]]
        """
        part, current = self.table.part, self.table.current
        if not current.is_many or current.key_group is not None:
            self._refuse_each_key()
        call = replace(current)
        try:
            for row, position in enumerate(self.table.positions_of(keys, self._where).tolist()):
                if self.table.part is not part:
                    self._refuse_each_key()
                self.table.enter(position)
                yield row
        finally:
            if self.table.part is part and current.is_many:  # it may end after its call
                current.become(call)

    def _refuse_each_key(self) -> NoReturn:
        raise StateUseError(
            f"{self._where}: eachKey was used outside of the call that its keys are of, or in "
            "another loop over it: use it in handleInputBatch, handleInputArrow or "
            "handleExpiredTimers, one loop after the other"
        )

    def _instant(self, method: str, given: Any) -> int:
        try:
            return instant_ms(given)
        except ValueError as exc:
            raise StateValueError(
                f"{self._where}: {method} got the time {given!r}: {exc}; give whole milliseconds "
                "since 1970, or a time with a zone"
            ) from exc

    def _instants(self, method: str, keys: int, given: Any) -> Numbers:
        is_ordered = isinstance(given, Iterable) and not isinstance(given, _NO_LISTS)
        if not is_ordered:
            raise StateValueError(
                f"{self._where}: {method} got the times {given!r}: give them in the order of the "
                "keys, as a list or column"
            )
        times = _column(given)
        if times is None:
            is_arrow = isinstance(given, pa.Array | pa.ChunkedArray)
            # Python's times may lack the last digits of Arrow's; its other values are shown better.
            listed = given.to_pylist() if is_arrow and not _is_time(given) else given
            times = np.array([self._instant(method, time) for time in listed], np.int64)
        if times.shape != (keys,):
            got = " by ".join(map(str, times.shape))
            raise StateValueError(
                f"{self._where}: {method} got {got} times for {keys} keys: give one time per key"
            )
        return times


def withdraw(state: object, kind: StateKind, name: str, where: str) -> None:
    """Make every later use of a state raise ``StateUseError``."""
    word = "map" if kind.has_map_key else "value"
    for method in dir(state):
        if not method.startswith("_"):
            other = "getting {kind} state" if method in _READS else "updating {kind} state"
            tried = _TRIED.get(method, other).format(kind=word)
            vars(state)[method] = partial(_refuse, f"Error {tried}: {where}: state {name!r}")


def _refuse(what: str, *_arguments: Any, **_named: Any) -> NoReturn:
    raise StateUseError(
        f"{what} was deleted with deleteIfExists; do not use it any more, or do not delete it"
    )
