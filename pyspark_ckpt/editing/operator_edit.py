"""What an edit does with one operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.editing.encoding import (
    Place,
)
from pyspark_ckpt.editing.given_columns import in_spark, quoted, selected
from pyspark_ckpt.editing.typed_frames import (
    ReadRaw,
    ReadState,
    ReadTimers,
    RekeyRows,
    RowsFunction,
    TableColumns,
    Times,
    as_written,
    columns_of,
    raw_columns,
    shown_times,
    stored_table,
    stored_times,
    timer_columns,
)
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.quarantine.quarantined_keys import KEYS_STATE
from pyspark_ckpt.operator.rows.key_columns import check_key
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.operator.table.catalog import FREE, FREE_PLACE, struct_type
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.stored.unify import UnifiedStates, newest_of

DEFAULT_BACKEND = "rocksdb"


@dataclass(slots=True)
class OperatorEdit:
    """The changes of one operator; nothing is written before ``OperatorJob.written``.

    `states` and `put` are by the id of the state. `stored` is ``None`` if the operator is new. If
    `timers` or `raw` is ``None``, the stored timers or the stored raw state stay.
    """

    where: str
    operator: OperatorDescriptor
    states: list[StateDescriptor]
    stored: OperatorMetadata | None = None
    unified: UnifiedStates | None = None
    source: str = ""
    watermark_ms: int = 0
    put: dict[int, DataFrame] = field(default_factory=dict)
    timers: DataFrame | None = None
    raw: DataFrame | None = None
    erased: list[DataFrame] = field(default_factory=list)
    keyed: bool = True
    dropped: set[int] = field(default_factory=set)

    @property
    def is_touched(self) -> bool:
        """Whether the operator's state is written anew rather than copied."""
        changes = self.put or self.erased or self.dropped or not self.keyed
        replaced = self.timers is not None or self.raw is not None
        return bool(changes) or replaced or self.stored is None

    @property
    def key_schema(self) -> T.StructType:
        """The schema of the key columns."""
        return struct_type(self.operator.key_schema)

    @property
    def place(self) -> Place:
        """Where the operator's keys lie."""
        operator = self.operator
        return Place(self.key_schema, operator.parallelism, operator.max_parallelism)

    def state_id(self, name: str) -> int:
        """Return the id of a state."""
        for state_id, state in enumerate(self.states):
            if state.name == name and state.kind != FREE:
                return state_id
        names = ", ".join(repr(each.name) for each in self.states if each.kind != FREE)
        raise PlanError(f"{self.where} has no state {name!r}; its states are {names or 'none'}")

    def columns(self, state_id: int) -> TableColumns:
        """Return the columns of a state's table."""
        return columns_of(self.key_schema, self.states[state_id])

    def movement(self, state_id: int) -> Movement:
        """Return what a state belongs to: a key, a subtask or all subtasks."""
        return kind_of(self.states[state_id]).movement

    def put_state(self, name: str, rows: DataFrame, *, in_ms: bool = False) -> None:
        """Replace a state by rows, whose times may be in milliseconds."""
        state_id = self.state_id(name)
        state, columns = self.states[state_id], self.columns(state_id)
        rows = selected(rows, columns, f"{self.where}, state {name!r}", in_ms=in_ms)
        self.put[state_id] = stored_times(rows, columns, state, in_ms=in_ms)

    def put_timers(self, rows: DataFrame, *, in_ms: bool = False) -> None:
        """Replace all timers by rows, whose times may be in milliseconds."""
        if self.operator.time_mode is TimeMode.NONE:
            raise PlanError(f"{self.where} has timeMode='None', so it cannot have timers")
        columns = timer_columns(self.key_schema)
        rows = selected(rows, columns, f"{self.where}, timers", in_ms=in_ms)
        self.timers = stored_times(rows, columns, None, in_ms=in_ms)

    def table(self, spark: SparkSession, name: str) -> DataFrame:
        """Return a state as it is now, with the changes so far, as a DataFrame."""
        state_id = self.state_id(name)
        rows = self._rows(spark, state_id)
        return shown_times(rows, self.columns(state_id), self.states[state_id])

    def _rows(self, spark: SparkSession, state_id: int) -> DataFrame:
        """Return a state as :meth:`table` does, with stored times."""
        if (put := self.put.get(state_id)) is not None:
            return put
        schema = in_spark(self.columns(state_id))
        read = ReadState(self.source, as_written(self._aging(state_id)), schema, self.where)
        handles = self._stored_handles()
        if handles and self.movement(state_id) is Movement.COPIED:
            handles = (newest_of(handles),)
        rows = stored_table(spark, handles, read)
        is_keyed = self.movement(state_id) is Movement.WITH_KEY
        return self._without_erased(rows) if is_keyed else rows

    def _aging(self, state_id: int) -> StateDescriptor:
        """Return a state in which every entry has an age.

        Entries without a time begin to age with the next epoch of their subtask, if that had none
        since their time to live was switched on. Written anew they have to have a time.
        """
        state = self.states[state_id]
        if state.ttl is None or state.ttl.since_ms is not None:
            return state
        since_ms = Times(now_ms(), self.watermark_ms).of(state)
        return msgspec.structs.replace(
            state, ttl=msgspec.structs.replace(state.ttl, since_ms=since_ms)
        )

    def timers_table(self, spark: SparkSession) -> DataFrame:
        """Return the timers as they are now, with the changes so far, as a DataFrame."""
        return shown_times(self._timer_rows(spark), timer_columns(self.key_schema), None)

    def _timer_rows(self, spark: SparkSession) -> DataFrame:
        if self.timers is not None:
            return self.timers
        schema = in_spark(timer_columns(self.key_schema))
        read = ReadTimers(self.source, schema, self.where)
        return self._without_erased(stored_table(spark, self._stored_handles(), read))

    def put_raw(self, rows: DataFrame) -> None:
        """Replace the raw state of all subtasks by rows."""
        self.raw = selected(rows, raw_columns(), f"{self.where}, raw state")

    def raw_table(self, spark: SparkSession) -> DataFrame:
        """Return the raw state as it is now, with the changes so far, as a DataFrame."""
        if self.raw is not None:
            return self.raw
        read = ReadRaw(self.source, in_spark(raw_columns()), self.where)
        return stored_table(spark, self._stored_handles(), read)

    def _stored_handles(self) -> tuple[Handle, ...]:
        return () if self.stored is None else self.stored.handles

    def drop_state(self, name: str) -> None:
        """Remove a state."""
        state_id = self.state_id(name)
        self.states[state_id] = FREE_PLACE
        self.dropped.add(state_id)
        self.put.pop(state_id, None)

    def add_state(self, state: StateDescriptor) -> None:
        """Add a state that is not stored, or give a stored state the schema that is declared."""
        if len(self.states) == MAX_STATES:
            raise PlanError(f"{self.where} has {MAX_STATES} states already: drop some")
        self.states.append(state)

    def erase(self, keys: DataFrame) -> None:
        """Remove all that belongs to some keys; what is put later stays."""
        erased = selected(keys, TableColumns(keys=tuple(self.key_schema.fields)), self.where)
        self.erased.append(erased)
        for state_id, rows in self.put.items():
            if self.movement(state_id) is Movement.WITH_KEY:
                self.put[state_id] = self._without(rows, erased)
        if self.timers is not None:
            self.timers = self._without(self.timers, erased)

    def metadata(self, operator_id: int, handles: tuple[Handle, ...]) -> OperatorMetadata:
        """Return the operator as the savepoint describes it."""
        states = tuple(state for state in self.states if state.kind != FREE)
        backend = DEFAULT_BACKEND if self.stored is None else self.stored.backend
        operator = msgspec.structs.replace(self.operator, states=states)
        return operator.stored(operator_id, backend, handles)

    def rekey(self, spark: SparkSession, function: RowsFunction, key_schema: T.StructType) -> None:
        """Give all that belongs to keys the keys that a function makes of theirs."""
        for each in key_schema.fields:
            check_key(each)
        self._check_none_quarantined(spark)
        keyed = [
            state_id
            for state_id, state in enumerate(self.states)
            if state.kind != FREE and self.movement(state_id) is Movement.WITH_KEY
        ]
        tables = [(state_id, self._rows(spark, state_id)) for state_id in keyed]
        given = [self.columns(state_id).of_rows(rows.columns) for state_id, rows in tables]
        timers = self._timer_rows(spark)
        width = len(self.key_schema.fields)
        self.operator = msgspec.structs.replace(self.operator, key_schema=key_schema.json())
        self.keyed, self.erased = False, []
        for (state_id, rows), before in zip(tables, given, strict=True):
            columns = self.columns(state_id)
            if before.expires_at is None:
                columns = columns.of_rows(())
            self.put[state_id] = self._rekeyed(rows, columns, width, function)
        self.timers = None
        if self.operator.time_mode is not TimeMode.NONE:
            self.timers = self._rekeyed(timers, timer_columns(key_schema), width, function)

    def _check_none_quarantined(self, spark: SparkSession) -> None:
        """Refuse quarantined keys: their rows have the old key, under which they would be given."""
        if all(state.kind == FREE or state.name != KEYS_STATE for state in self.states):
            return
        quarantined = self.table(spark, KEYS_STATE).limit(1)
        if collected(quarantined, f"looking for quarantined keys of operator {self.operator.uid}"):
            raise PlanError(
                f"{self.where}: keys are quarantined, whose rows cannot get other keys: release "
                "them with query.release first, or erase them"
            )

    def _rekeyed(
        self, rows: DataFrame, columns: TableColumns, width: int, function: RowsFunction
    ) -> DataFrame:
        schema = in_spark(columns)
        old, new = rows.schema.fields[:width], schema.fields[: len(columns.keys)]
        change = RekeyRows(function, T.StructType(old), T.StructType(new), schema, self.where)
        return rows.mapInArrow(change, schema)

    def _without_erased(self, rows: DataFrame) -> DataFrame:
        """Return stored rows without those of erased keys."""
        return reduce(self._without, self.erased, rows)

    def _without(self, rows: DataFrame, keys: DataFrame) -> DataFrame:
        # Other names: the keys may come from the same frame as the rows.
        names = [f"__ckpt_erased_{number}" for number in range(len(keys.columns))]
        named = zip(self.key_schema.names, names, strict=True)
        same = [quoted(name).eqNullSafe(F.col(erased)) for name, erased in named]
        erased = F.broadcast(keys.toDF(*names))
        return rows.join(erased, on=reduce(Column.__and__, same), how="left_anti")
