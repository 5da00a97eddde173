"""What an edit does with one operator, and the Spark job that writes the operator's state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.editing.encoding import (
    ENTRIES_SCHEMA,
    STORED_KEY,
    SUBTASK,
    EncodeKeys,
    EncodeState,
    EncodeTimers,
    Place,
)
from pyspark_ckpt.editing.stored_entries import KeptEntries, ReadEntries
from pyspark_ckpt.editing.table_columns import TableColumns, columns_of, timer_columns
from pyspark_ckpt.editing.typed_frames import (
    ReadState,
    ReadTimers,
    RekeyRows,
    RowsFunction,
    stored_table,
)
from pyspark_ckpt.editing.writing import HANDLES_SCHEMA, WriteEntries
from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor, decode_handle, encode_handle
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.modes import TimeMode, TtlTime
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, schema_fingerprint
from pyspark_ckpt.operator.rescale.unify import UnifiedStates
from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN
from pyspark_ckpt.operator.rows.key_columns import canonical_column, check_key
from pyspark_ckpt.operator.rows.key_groups import subtask_tokens
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import FREE, FREE_PLACE, struct_type
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES
from pyspark_ckpt.spark.jobs import collected

DEFAULT_BACKEND = "rocksdb"


@dataclass(frozen=True, slots=True)
class Times:
    """When rows without a time count as written, by the time that a state ages in."""

    processing_ms: int
    watermark_ms: int

    def of(self, state: StateDescriptor) -> int | None:
        """Return when an entry of a state counts as written, ``None`` if it has no time."""
        if state.ttl is None:
            return None
        if state.ttl.time is TtlTime.PROCESSING_TIME:
            return self.processing_ms
        return self.watermark_ms or None  # as in an initial state before the first watermark


@dataclass(frozen=True, slots=True)
class Target:
    """The savepoint that the operator's files belong to."""

    url: str
    token: str
    query_id: str
    epoch: int


@dataclass(slots=True)
class OperatorEdit:
    """The changes of one operator; nothing is written before :meth:`written`.

    Parameters
    ----------
    where
        The savepoint and operator, for errors.
    operator
        The operator as it shall be, without its states.
    states
        Its states by their ids.
    stored
        The operator as it is stored, ``None`` if it is new.
    unified
        The stored states of all subtasks as one list.
    source
        The directory that the stored files' paths start from.
    put
        The rows that become a state, by the state's id.
    timers
        The rows that become the timers, ``None`` if the timers stay.
    erased
        The keys that are removed.
    keyed
        Whether stored entries of keys are kept.
    """

    where: str
    operator_id: int
    operator: OperatorDescriptor
    states: list[StateDescriptor]
    stored: OperatorMetadata | None = None
    unified: UnifiedStates | None = None
    source: str = ""
    put: dict[int, DataFrame] = field(default_factory=dict)
    timers: DataFrame | None = None
    erased: list[DataFrame] = field(default_factory=list)
    keyed: bool = True
    dropped: set[int] = field(default_factory=set)

    @property
    def is_touched(self) -> bool:
        """Whether the operator's state is written anew rather than copied."""
        changes = self.put or self.erased or self.dropped or not self.keyed
        return bool(changes) or self.timers is not None or self.stored is None

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
        """Return the id of a state.

        Raises
        ------
        PlanError
            If there is no state of the name.
        """
        for state_id, state in enumerate(self.states):
            if state.name == name and state.kind != FREE:
                return state_id
        names = ", ".join(repr(each.name) for each in self.states if each.kind != FREE)
        raise PlanError(f"{self.where} has no state {name!r}; its states are {names or 'none'}")

    def columns(self, state_id: int) -> TableColumns:
        """Return the columns of a state's table.

        Raises
        ------
        PlanError
            If the state does not belong to keys.
        """
        state = self.states[state_id]
        if kind_of(state).movement is not Movement.WITH_KEY:
            raise PlanError(
                f"{self.where}, state {state.name!r}: {state.kind} state does not belong to keys, "
                "and only keyed state can be written"
            )
        return columns_of(self.key_schema, state)

    def put_state(self, name: str, rows: DataFrame) -> None:
        """Replace a state by rows.

        Raises
        ------
        PlanError
            If there is no such state, or the rows lack a column.
        """
        state_id = self.state_id(name)
        columns = self.columns(state_id)
        self.put[state_id] = _selected(rows, columns, f"{self.where}, state {name!r}")
        state = self.states[state_id]
        self.states[state_id] = msgspec.structs.replace(state, earlier_schemas=())

    def put_timers(self, rows: DataFrame) -> None:
        """Replace all timers by rows.

        Raises
        ------
        PlanError
            If the operator has no clock, or the rows lack a column.
        """
        if self.operator.time_mode is TimeMode.NONE:
            raise PlanError(f"{self.where} has timeMode='None', so it cannot have timers")
        columns = timer_columns(self.key_schema)
        self.timers = _selected(rows, columns, f"{self.where}, timers")

    def table(self, spark: SparkSession, name: str) -> DataFrame:
        """Return a state as it is now, with the changes so far, as a DataFrame.

        Raises
        ------
        PlanError
            If there is no such state.
        """
        state_id = self.state_id(name)
        if state_id in self.put:
            return self._without_erased(self.put[state_id])
        schema = in_spark(self.columns(state_id), self.where)
        read = ReadState(self.source, self.states[state_id], schema, self.where)
        return self._without_erased(stored_table(spark, self._stored_handles(), read))

    def timers_table(self, spark: SparkSession) -> DataFrame:
        """Return the timers as they are now, with the changes so far, as a DataFrame."""
        if self.timers is not None:
            return self._without_erased(self.timers)
        schema = in_spark(timer_columns(self.key_schema), self.where)
        read = ReadTimers(self.source, schema, self.where)
        return self._without_erased(stored_table(spark, self._stored_handles(), read))

    def _stored_handles(self) -> tuple[Handle, ...]:
        return () if self.stored is None else self.stored.handles

    def drop_state(self, name: str) -> None:
        """Remove a state.

        Raises
        ------
        PlanError
            If there is no such state.
        """
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
        """Remove all that belongs to some keys."""
        self.erased.append(
            _selected(keys, TableColumns(keys=tuple(self.key_schema.fields)), self.where)
        )

    def written(self, spark: SparkSession, target: Target, times: Times) -> list[Handle]:
        """Write the operator's state; return the handles of its subtasks, whose files are durable.

        Raises
        ------
        CkptError
            If a row does not fit its state, or a stored file is corrupt.
        pyspark.errors.PySparkException
            If the job fails for another reason.
        """
        write = WriteEntries(
            operator=self.operator,
            states=tuple(self.states),
            lists=frozenset(
                each for each in self.put if kind_of(self.states[each]).entries is Entries.CHUNKS
            ),
            query_id=target.query_id,
            epoch=target.epoch,
            target=target.url,
            token=target.token,
        )
        frames = self._frames(spark, times)
        if not frames:
            return []
        entries = reduce(DataFrame.union, frames)
        tokens = F.array(*[F.lit(token) for token in subtask_tokens(self.operator.parallelism)])
        rows = collected(
            entries.withColumn(TOKEN, F.element_at(tokens, F.col(SUBTASK) + 1))
            .repartition(self.operator.parallelism, TOKEN)
            .select(SUBTASK, STORED_KEY, "value")
            .sortWithinPartitions(STORED_KEY)
            .mapInArrow(write, HANDLES_SCHEMA),
            f"writing operator {self.operator.uid}",
        )
        return sorted((decode_handle(bytes(row[0])) for row in rows), key=_subtask)

    def metadata(self, handles: tuple[Handle, ...]) -> OperatorMetadata:
        """Return the operator as the savepoint describes it."""
        operator, stored = self.operator, self.stored
        states = [state for state in self.states if state.kind != FREE]
        return OperatorMetadata(
            operator_id=self.operator_id,
            uid=operator.uid,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            key_schema=operator.key_schema,
            backend=DEFAULT_BACKEND if stored is None else stored.backend,
            time_mode=operator.time_mode,
            handles=handles,
            processor=operator.processor,
            code_sha256=operator.code_sha256,
            schema_sha256=schema_fingerprint(operator.key_schema, states),
        )

    def rekey(self, spark: SparkSession, function: RowsFunction, key_schema: T.StructType) -> None:
        """Give all that belongs to keys the keys that a function makes of theirs.

        Raises
        ------
        PlanError
            If a column cannot be a key.
        """
        for each in key_schema.fields:
            check_key(each)
        keyed = [
            (state_id, state.name)
            for state_id, state in enumerate(self.states)
            if state.kind != FREE and kind_of(state).movement is Movement.WITH_KEY
        ]
        tables = {state_id: self.table(spark, name) for state_id, name in keyed}
        timers = self.timers_table(spark)
        width = len(self.key_schema.fields)
        self.operator = msgspec.structs.replace(self.operator, key_schema=key_schema.json())
        self.keyed, self.erased = False, []
        for state_id, rows in tables.items():
            state = self.states[state_id]
            self.states[state_id] = msgspec.structs.replace(state, earlier_schemas=())
            self.put[state_id] = self._rekeyed(rows, self.columns(state_id), width, function)
        self.timers = None
        if self.operator.time_mode is not TimeMode.NONE:
            self.timers = self._rekeyed(timers, timer_columns(key_schema), width, function)

    def _rekeyed(
        self, rows: DataFrame, columns: TableColumns, width: int, function: RowsFunction
    ) -> DataFrame:
        schema = in_spark(columns, self.where)
        old, new = rows.schema.fields[:width], schema.fields[: len(columns.keys)]
        change = RekeyRows(function, T.StructType(old), T.StructType(new), schema, self.where)
        return rows.mapInArrow(change, schema)

    def _frames(self, spark: SparkSession, times: Times) -> list[DataFrame]:
        """Return the entries of the operator, in several frames."""
        frames = [self._encoded(state_id, rows, times) for state_id, rows in self.put.items()]
        if self.timers is not None:
            columns = timer_columns(self.key_schema)
            rows = self._without_erased(self.timers)
            frames.append(self._mapped(rows, columns, EncodeTimers(self.place)))
        if self.stored is not None and self.stored.handles:
            frames.append(self.kept_entries(spark))
        return frames

    def kept_entries(self, spark: SparkSession) -> DataFrame:
        """Return the entries that are kept as they are stored."""
        assert self.stored is not None  # the caller asks for those of a stored operator
        assert self.unified is not None
        kept = KeptEntries(
            unified=self.unified,
            states=frozenset(range(len(self.unified.states))) - self.dropped - self.put.keys(),
            timers=self.timers is None,
            erased=self.erased_keys(),
            keyed=self.keyed,
        )
        handles = tuple(map(encode_handle, self.stored.handles))
        places = spark.range(len(handles), numPartitions=len(handles))
        return places.mapInArrow(ReadEntries(handles, self.source, kept), ENTRIES_SCHEMA)

    def erased_keys(self) -> frozenset[bytes]:
        """Return the keys that are removed as they are stored, each behind its key group."""
        found: set[bytes] = set()
        columns = TableColumns(keys=tuple(self.key_schema.fields))
        for keys in self.erased:
            encoded = self._mapped(keys, columns, EncodeKeys(self.place)).select(STORED_KEY)
            rows = collected(encoded, f"keys to erase of operator {self.operator.uid}")
            found.update(bytes(row[0]) for row in rows)
        return frozenset(found)

    def _encoded(self, state_id: int, rows: DataFrame, times: Times) -> DataFrame:
        state, columns = self.states[state_id], self.columns(state_id)
        has_times = columns.expires_at is not None and columns.expires_at in rows.columns
        if columns.expires_at is not None and not has_times:
            columns = replace(columns, expires_at=None)
        encode = EncodeState(self.place, state_id, state, times.of(state), has_times=has_times)
        return self._mapped(self._without_erased(rows), columns, encode)

    def _mapped(self, rows: DataFrame, columns: TableColumns, encode: Any) -> DataFrame:
        """Return encoded rows; the first column that `encode` gets is the key group."""
        # In the type of the column, whose parts may all be null.
        types = [_in_spark(each.dataType, self.where) for each in columns.keys]
        named_keys = zip(columns.keys, types, strict=True)
        keys = [canonical_column(quoted(each.name), kind) for each, kind in named_keys]
        group = F.pmod(F.hash(*keys), F.lit(self.operator.max_parallelism))
        named = [quoted(name) for name, _ in columns.all_of()]
        return rows.select(group.alias(KEY_GROUP), *named).mapInArrow(encode, ENTRIES_SCHEMA)

    def _without_erased(self, rows: DataFrame) -> DataFrame:
        for keys in self.erased:
            # Names of their own: the keys may come from the same frame as the rows.
            names = [f"__ckpt_erased_{number}" for number in range(len(keys.columns))]
            named = zip(self.key_schema.names, names, strict=True)
            same = [quoted(name).eqNullSafe(F.col(erased)) for name, erased in named]
            erased = F.broadcast(keys.toDF(*names))
            rows = rows.join(erased, on=reduce(Column.__and__, same), how="left_anti")
        return rows


def quoted(name: str) -> Column:
    """Return the column of a name, which may have dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def _selected(rows: DataFrame, columns: TableColumns, where: str) -> DataFrame:
    """Return the rows with the columns of a table, in its types.

    Raises
    ------
    PlanError
        If a column is missing or cannot have its type.
    """
    wanted = {name: _in_spark(kind, f"{where}, column {name!r}") for name, kind in columns.all_of()}
    may_lack = {columns.position, columns.expires_at}
    missing = [name for name in wanted if name not in rows.columns and name not in may_lack]
    unknown = [name for name in rows.columns if name not in wanted]
    if missing or unknown or len(set(rows.columns)) != len(rows.columns):
        shown = ", ".join(f"{name} {kind.simpleString()}" for name, kind in wanted.items())
        raise PlanError(
            f"{where}: the rows have the columns {', '.join(rows.columns)}, and its table has "
            f"{shown}: give these columns"
        )
    if columns.position is not None and columns.position not in rows.columns:
        rows = rows.withColumn(columns.position, F.monotonically_increasing_id())
    try:
        return rows.select(
            *(_cast(rows, name, kind) for name, kind in wanted.items() if name in rows.columns)
        )
    except AnalysisException as exc:
        raise PlanError(f"{where}: a column cannot have the type of its table: {exc}") from exc


def in_spark(columns: TableColumns, where: str) -> T.StructType:
    """Return the columns of a table in the types in which they come to Python."""
    fields = [(name, _in_spark(kind, where)) for name, kind in columns.all_of()]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def _in_spark(data_type: T.DataType, where: str) -> T.DataType:
    """Return the type in which a column comes to Python: Spark has no texts of fixed length there.

    Raises
    ------
    NotBuiltYetError
        If Arrow has no such type.
    """
    if isinstance(data_type, T.CharType | T.VarcharType):
        return T.StringType()
    if isinstance(data_type, T.YearMonthIntervalType):
        raise NotBuiltYetError(
            f"{where}: writing values of type {data_type.simpleString()} is not built yet"
        )
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_in_spark(data_type.elementType, where))
    if isinstance(data_type, T.MapType):
        key = _in_spark(data_type.keyType, where)
        return T.MapType(key, _in_spark(data_type.valueType, where))
    if isinstance(data_type, T.StructType):
        fields = ((each.name, _in_spark(each.dataType, where)) for each in data_type.fields)
        return T.StructType([T.StructField(name, kind) for name, kind in fields])
    return data_type


def _cast(rows: DataFrame, name: str, kind: T.DataType) -> Column:
    column = quoted(name)
    return column if rows.schema[name].dataType == kind else column.cast(kind).alias(name)


def _subtask(handle: Handle) -> int:
    return handle.subtask
