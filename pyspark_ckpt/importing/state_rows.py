"""State of Spark's operators as rows of typed tables; group state by a function of the user.

An entry with a time to live has the time at which it expires, as in Spark. The entry's time of
writing, which this library stores, follows from it by the duration that the processor declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.editing.given_columns import quoted
from pyspark_ckpt.editing.typed_frames import TableColumns
from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.importing.spark_operator import SparkStatefulOperator, StateVariable, struct_of
from pyspark_ckpt.operator.state.kinds import Entries, StateKind, kind_of
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.operator.task_failure import marked_errors
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.plain import STATE_STYLE, aware_timestamp

VALUE_COLUMNS = {
    StateKind.VALUE: "value",
    StateKind.LIST: "list_element",
    StateKind.MAP: "user_map_value",
}
"""Where Spark's data source has the values."""

_MAP_KEY = "user_map_key"
_EXPIRES_AT = "ttlExpirationMs"
_FIRES_AT = "expiration_timestamp_ms"
_GROUP_STATE, _TIMEOUT = "groupState", "timeoutTimestamp"
_ENTRY, _PLACE = "__ckpt_entry", "__ckpt_place"


def is_stamped(values: T.StructType, variable: StateVariable) -> bool:
    """Return whether values carry the time at which they expire."""
    return variable.has_ttl and values.names == ["value", _EXPIRES_AT]


def state_rows(
    operator: SparkStatefulOperator, variable: StateVariable, columns: TableColumns
) -> DataFrame:
    """Return a state variable as rows of its typed table; list elements are in their order.

    Times are in milliseconds, which may be more than a timestamp holds.
    """
    rows = operator.variable(variable)
    name = VALUE_COLUMNS[variable.kind]
    value, values = F.col(name), struct_of(rows.schema[name])
    selected = fields_of(F.col("key"), struct_of(rows.schema["key"]), columns.keys)
    if columns.map_keys:
        map_key = struct_of(rows.schema[_MAP_KEY])
        selected += fields_of(F.col(_MAP_KEY), map_key, columns.map_keys)
    if is_stamped(values, variable):
        assert columns.expires_at is not None  # the declared states were checked
        selected += fields_of(value["value"], struct_of(values["value"]), columns.values)
        selected.append(value[_EXPIRES_AT].alias(columns.expires_at))
    else:
        selected += fields_of(value, values, columns.values)
    return rows.select(*selected)


def timer_rows(operator: SparkStatefulOperator, columns: TableColumns) -> DataFrame:
    """Return the timers of Spark's operator as rows of their table, times in milliseconds."""
    assert columns.fires_at is not None
    rows = operator.timers()
    keys = fields_of(F.col("key"), struct_of(rows.schema["key"]), columns.keys)
    return rows.select(*keys, F.col(_FIRES_AT).alias(columns.fires_at))


def fields_of(
    column: Column, schema: T.StructType, wanted: tuple[T.StructField, ...]
) -> list[Column]:
    """Return the fields of a struct column under the names that they have in a table."""
    pairs = zip(schema.fields, wanted, strict=True)
    return [column.getField(field.name).alias(named.name) for field, named in pairs]


def _timestamp(microseconds: int) -> datetime:
    """Return a time with its zone: a local one of the hour that comes twice would become another.

    The last day of Python's years may be none of theirs in UTC.
    """
    try:
        return aware_timestamp(timezone.utc, microseconds)
    except (ValueError, OverflowError):
        local: datetime = STATE_STYLE.timestamp(microseconds)
        return local


_STYLE = replace(STATE_STYLE, timestamp=_timestamp)


@dataclass(frozen=True, slots=True)
class KeyState:
    """What one key has in the states of a processor; a mapper returns it.

    Parameters
    ----------
    states : Mapping of str to object
        The content of each state by its name: for value, reducing and aggregating state a tuple
        (the schema's value, or the accumulator), for list state a list of tuples, for map state a
        dict of tuples by tuples. A state that is left out, or ``None``, is empty.
    timers : sequence of int
        When the key's timers fire, in milliseconds since 1970.

    Examples
    --------
    >>> ckpt.KeyState({"count": (3,)}, timers=[60_000]).timers
    [60000]
    """

    states: Mapping[str, Any]
    timers: Sequence[int] = field(default=())


Mapper = Callable[[tuple[Any, ...], tuple[Any, ...] | None, int | None], KeyState]
"""Makes a key's states of its key, its state and its timeout; runs on executors."""


class GroupStateRows:
    """The rows of ``applyInPandasWithState``, mapped to the states of a processor.

    `mapper` is called once per key and state, so it must have no effects.
    """

    def __init__(
        self,
        operator: SparkStatefulOperator,
        mapper: Mapper,
        states: tuple[str, ...],
        uid: str,
        *,
        has_timers: bool,
    ) -> None:
        self._operator = operator
        self._mapped = Mapped(mapper, states, f"operator {uid!r}", has_timers=has_timers)

    def state(self, state: StateDescriptor, columns: TableColumns) -> DataFrame:
        """Return the rows of a state's table."""
        fields = [*columns.map_keys, *columns.values]
        entries = EntriesOf(self._mapped, state)
        rows = self._with_entries(entries, fields, columns)
        if columns.position is None:
            return rows.drop(_PLACE)
        return rows.withColumnRenamed(_PLACE, columns.position)

    def timers(self, columns: TableColumns) -> DataFrame:
        """Return the rows of the timers' table, times in milliseconds."""
        assert columns.fires_at is not None
        fires_at = T.StructField(columns.fires_at, T.LongType())
        return self._with_entries(_TimersOf(self._mapped), [fires_at], columns).drop(_PLACE)

    def _with_entries(
        self, entries: Callable[..., Any], fields: list[T.StructField], columns: TableColumns
    ) -> DataFrame:
        """Return the keys, each with its entries and the place of the entry."""
        rows = self._operator.rows()
        value = struct_of(rows.schema["value"])
        state, timeout = F.col("value"), F.lit(None).cast("long")
        if _GROUP_STATE in value.names:  # else Spark keeps no timeouts
            state = F.col("value").getField(_GROUP_STATE)
            if _TIMEOUT in value.names:
                timeout = F.col("value").getField(_TIMEOUT)
        nullable = [T.StructField(each.name, each.dataType) for each in fields]
        made = F.udf(entries, T.ArrayType(T.StructType(nullable)), useArrow=False)
        keys = fields_of(F.col("key"), struct_of(rows.schema["key"]), columns.keys)
        exploded = rows.select(
            *keys, F.posexplode(made("key", state, timeout)).alias(_PLACE, _ENTRY)
        )
        names = [quoted(each.name) for each in columns.keys]
        entry = F.col(_ENTRY)
        return exploded.select(
            *names,
            F.col(_PLACE).cast("long"),
            *[entry.getField(each.name).alias(each.name) for each in fields],
        )


class Mapped:
    """Calls the user's function and checks what it returns."""

    def __init__(
        self, mapper: Mapper, states: tuple[str, ...], where: str, *, has_timers: bool
    ) -> None:
        self._mapper, self._states, self._where = mapper, states, where
        self._has_timers = has_timers

    def __call__(self, key: Any, state: Any, timeout_ms: int | None) -> KeyState:
        """Return the states of a key."""
        timeout = None if timeout_ms is None or timeout_ms < 0 else timeout_ms
        found = self._mapper(tuple(key), None if state is None else tuple(state), timeout)
        if not isinstance(found, KeyState):
            raise PlanError(
                f"{self._where}: the function for key {tuple(key)!r} returned "
                f"{type(found).__name__}: return a pyspark_ckpt.KeyState"
            )
        unknown = sorted(set(found.states) - set(self._states))
        if unknown:
            raise PlanError(
                f"{self._where}: the function for key {tuple(key)!r} returned the states "
                f"{', '.join(map(repr, unknown))}, the processor declares "
                f"{', '.join(map(repr, self._states))}: use these names"
            )
        if found.timers and not self._has_timers:
            raise PlanError(
                f"{self._where}: the function for key {tuple(key)!r} returned timers, and with "
                "time_mode None they would be lost: give time_mode='ProcessingTime' or "
                "'EventTime', or return no timers"
            )
        return found

    def refuse(self, name: str, content: Any, wanted: str) -> NoReturn:
        """Raise because the content of a state is not what is `wanted`."""
        raise StateValueError(
            f"{self._where}, state {name!r}: the function returned {content!r:.120}: return "
            f"{wanted}"
        )


class EntriesOf:
    """Returns the entries of one state of a key, each as one flat tuple.

    Values are taken as the state's own methods take them. Spark alone would make null of a number
    of another kind, and cut one that is too large.
    """

    def __init__(self, mapped: Mapped, state: StateDescriptor) -> None:
        self._mapped, self._name, self._entries = mapped, state.name, kind_of(state).entries
        self._schemas = state.map_key_schema, state.value_schema

    @cached_property
    def _codecs(self) -> tuple[TupleCodec | None, TupleCodec]:
        """The codecs of map keys and values, which are not sent to executors."""
        key, value = self._schemas
        what = f"state {self._name!r}"
        return (
            None if key is None else TupleCodec(struct_type(key), what, style=_STYLE),
            TupleCodec(struct_type(value), what, style=_STYLE),
        )

    def __call__(self, key: Any, state: Any, timeout_ms: int | None) -> list[tuple[Any, ...]]:
        """Return the entries of a key; called by Spark on an executor."""
        with marked_errors():
            return list(self._of(self._mapped(key, state, timeout_ms).states.get(self._name)))

    def _of(self, content: Any) -> Iterator[tuple[Any, ...]]:
        if content is None:
            return
        key_codec, codec = self._codecs
        if self._entries is Entries.BY_MAP_KEY:
            if not isinstance(content, Mapping):
                self._mapped.refuse(self._name, content, "a dict of tuples by tuples")
            yield from (
                (*self._checked(map_key, key_codec), *self._checked(value, codec))
                for map_key, value in content.items()
            )
        elif self._entries is Entries.CHUNKS:
            if not isinstance(content, list):
                self._mapped.refuse(self._name, content, "a list of tuples")
            yield from (self._checked(value, codec) for value in content)
        else:
            yield self._checked(content, codec)

    def _checked(self, value: Any, codec: TupleCodec | None) -> tuple[Any, ...]:
        assert codec is not None  # a map state has a schema of its keys
        if not isinstance(value, tuple):
            self._mapped.refuse(self._name, value, "tuples with a value per column")
        return codec.decode(codec.encode(value))


class _TimersOf:
    """Returns the timers of a key."""

    def __init__(self, mapped: Mapped) -> None:
        self._mapped = mapped

    def __call__(self, key: Any, state: Any, timeout_ms: int | None) -> list[tuple[int]]:
        with marked_errors():
            timers = self._mapped(key, state, timeout_ms).timers
            return [(int(time_ms),) for time_ms in timers]
