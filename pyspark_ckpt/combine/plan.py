"""The plan of a combination: combined in each map task, merged with state after the shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.combine.combination import Aggregates, Combination, FunctionOverTables
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.modes.mode import ARROW
from pyspark_ckpt.operator.modes.processors import ArrowProcessor
from pyspark_ckpt.operator.plan.operator import KeyedInput, OperatorArguments, OperatorPlan
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.schema.evolution import PRESENT_MARK
from pyspark_ckpt.operator.table.keys import KEY_POSITION
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.values.nesting import sql_name
from pyspark_ckpt.values.types import is_grouped

COMBINE_ROWS = "combineRows"
"""How errors name it: it has no uid, because it has no state."""

MOST_BYTES = 64 << 20
"""How much of the input is held at once."""

_PAYS = 0.7
"""Part of the rows that may be left: if more are, merging takes longer than it saves."""

_BATCH_ROWS = 100_000

STATE = "combined"
"""The name of the state."""


@dataclass(frozen=True, slots=True)
class CombinationPlan:
    """Everything that goes into a combination; built on the driver.

    `uid` is ``None`` for the only operator of a query. If `before_shuffle` is ``None``, rows are
    combined in the map tasks wherever that cannot change a result. A key is kept for `ttl_ms` after
    its last row, forever if it is ``None``.
    """

    keyed: KeyedInput
    combination: Aggregates | FunctionOverTables
    uid: str | None
    output_mode: str
    before_shuffle: bool | None
    ttl_ms: int | None

    def build(self) -> DataFrame:
        """Return a row per key and epoch that has rows of the key."""
        before_shuffle = self._combines_before_shuffle()
        keys = self.keyed.columns.key_schema
        _check_names([*keys.names, *self.combination.schema.names], self._where)
        df = _read_columns(self.keyed, self.combination)
        if before_shuffle:
            df = _combined(df, keys, self.combination)
        columns = InputColumns(
            _nullable(df.schema.fields), keys.names, self.keyed.columns.time_zone
        )
        arguments = OperatorArguments.checked(
            CombiningProcessor(
                self.combination, combines_rows=not before_shuffle, ttl_ms=self.ttl_ms
            ),
            _nullable([*keys.fields, *self.combination.schema.fields]),
            self.output_mode,
            # Also with a time to live: it needs no time mode, which a location fixes, and in
            # processing time Spark runs epochs without rows, one after another.
            "None",
            self.uid,
            None,
        )
        keyed = KeyedInput(df, columns, self.keyed.parallelism, self.keyed.max_parallelism)
        return OperatorPlan(keyed, None, None, arguments, ARROW).build()

    def _combines_before_shuffle(self) -> bool:
        if self.before_shuffle is False:
            return False
        other = _not_grouped(self.keyed, self.combination)
        if self.before_shuffle and other:
            raise PlanError(
                f"{self._where}: beforeShuffle=True, but the columns {other} have types that are "
                "only combined after the shuffle: leave beforeShuffle out"
            )
        return not other and (bool(self.before_shuffle) or not self.combination.needs_order)

    @property
    def _where(self) -> str:
        return where(self.uid)


def rows_combined(keyed: KeyedInput, aggregates: Aggregates, *, in_any_order: bool) -> KeyedInput:
    """Return a stream of partial rows: one for each key of a piece of a map task's rows, or more.

    `in_any_order` says whether a result may depend on the order in which rows are taken. If it must
    not and does, ``PlanError`` is raised.
    """
    other = _not_grouped(keyed, aggregates)
    if other:
        raise PlanError(
            f"{COMBINE_ROWS}: the columns {other} have types that cannot be combined before the "
            "shuffle: leave combineRows out, or cast them"
        )
    if aggregates.needs_order and not in_any_order:
        raise PlanError(
            f"{COMBINE_ROWS}: sums of fractions, First, Last and CollectList may depend on the "
            "order in which rows are combined: give anyOrder=True if any result will do"
        )
    keys = keyed.columns.key_schema
    _check_names([*keys.names, *aggregates.schema.names], COMBINE_ROWS)
    df = _combined(_read_columns(keyed, aggregates), keys, aggregates)
    columns = InputColumns(df.schema, keys.names, keyed.columns.time_zone)
    return KeyedInput(df, columns, keyed.parallelism, keyed.max_parallelism, is_combined=True)


def _read_columns(keyed: KeyedInput, combination: Aggregates | FunctionOverTables) -> DataFrame:
    """Return the key columns, and the columns that are combined."""
    return keyed.df.select(
        *keyed.columns.plain_key_columns(),
        *[F.col(sql_name(name)).alias(alias) for name, alias in combination.inputs.items()],
    )


def _combined(
    df: DataFrame, keys: T.StructType, combination: Aggregates | FunctionOverTables
) -> DataFrame:
    fields = _nullable([*keys.fields, *combination.schema.fields])
    return df.mapInArrow(CombinedBeforeShuffle(combination, keys.names), fields)


def _not_grouped(keyed: KeyedInput, combination: Aggregates | FunctionOverTables) -> list[str]:
    """Return the columns that only the operator after the shuffle can combine."""
    rows = keyed.columns.schema
    fields = [*keyed.columns.key_schema, *(rows[name] for name in combination.inputs)]
    return [field.name for field in fields if not is_grouped(field.dataType)]


def _check_names(names: list[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlanError(f"{where}: {twice} are keys and results, or twice: rename them")
    taken = [name for name in names if name == KEY_POSITION or name.startswith("__")]
    if taken:
        raise PlanError(f"{where}: the names {taken} are taken: rename them")


def where(uid: str | None) -> str:
    """Return the operator, for errors."""
    return "combine" if uid is None else f"operator {uid!r}"


def _nullable(fields: list[T.StructField]) -> T.StructType:
    """Return fields without metadata and as nullable, however the rows come."""
    return T.StructType([T.StructField(field.name, field.dataType) for field in fields])


class CombinedBeforeShuffle:
    """The function given to ``mapInArrow``."""

    def __init__(
        self, combination: Combination, keys: Sequence[str], most_bytes: int = MOST_BYTES
    ) -> None:
        self._combination = combination
        self._keys = list(keys)
        self._most_bytes = most_bytes

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return partial rows: one per key of each piece of the input, or all rows of a piece.

        A sum of a piece may not fit its type where the whole sum does. Only the operator after the
        shuffle has all rows of a key, so it decides.
        """
        pays = True
        for rows in _pieces(batches, self._most_bytes):
            partials = self._combination.partials(rows, self._keys)
            merged = self._combination.merge_some(partials, self._keys) if pays else None
            if merged is not None:
                partials = merged
                # The keys of the next piece are as many as those of this one.
                pays = len(partials) <= _PAYS * len(rows)
            yield from partials.to_batches(max_chunksize=_BATCH_ROWS)


def _pieces(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= most_bytes:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


class CombiningProcessor(ArrowProcessor):
    """Merges what came for a key in an epoch with what the state has.

    If `combines_rows` is false, the rows arrive as partial rows. A key is kept for `ttl_ms` after
    its last row, forever if it is ``None``.
    """

    def __init__(
        self, combination: Combination, *, combines_rows: bool, ttl_ms: int | None = None
    ) -> None:
        self._combination = combination
        self._combines_rows = combines_rows
        self._ttl_ms = ttl_ms
        # Never null once written: null is a key without a value, or an aggregate added since.
        self._flags = [PRESENT_MARK, *combination.first_marks]

    def init(self, handle: Any) -> None:
        """Open the state."""
        flags = [T.StructField(name, T.BooleanType()) for name in self._flags]
        schema = T.StructType([*flags, *self._combination.schema.fields])
        self._state = handle.getValueState(STATE, schema, self._ttl_ms)

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        """Yield one row per key: its columns and the results."""
        del timerValues
        by = [KEY_POSITION]
        names = [KEY_POSITION, *self._combination.schema.names]
        marks = self._combination.first_marks
        new = self._combination.partials(rows, by) if self._combines_rows else rows.select(names)
        stored = self._state.getMany(keys).append_column(KEY_POSITION, keys.column(KEY_POSITION))
        old = stored.filter(stored.column(PRESENT_MARK).is_valid()).select([*names, *marks])
        partials = pa.concat_tables([old, _with_true(new, marks).cast(old.schema)])
        merged = self._combination.merge(partials, by).sort_by(KEY_POSITION)
        self._state.updateMany(keys, _with_true(merged, self._flags))
        shown = [keys.drop([KEY_POSITION]), merged.drop([KEY_POSITION])]
        yield pa.Table.from_arrays(
            [column for table in shown for column in table.columns],
            names=[name for table in shown for name in table.column_names],
        )

    def close(self) -> None:
        """Close nothing."""


def _with_true(table: pa.Table, names: Sequence[str]) -> pa.Table:
    true = pa.array(np.ones(len(table), np.bool_))
    for name in names:
        table = table.append_column(name, true)
    return table
