"""The plan of a combination: whether rows are combined before the shuffle, and the operator."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.combine.before_shuffle import CombinedBeforeShuffle
from pyspark_ckpt.combine.combination import Aggregates, FunctionOverTables
from pyspark_ckpt.combine.processor import CombiningProcessor
from pyspark_ckpt.combine.rules import has_collation
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.modes.arrow import ArrowInput
from pyspark_ckpt.operator.plan.operator import KeyedInput, OperatorArguments, OperatorPlan
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.table.key_positions import KEY_POSITION

_GROUPED = (
    T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.BooleanType,
    T.StringType, T.BinaryType, T.DecimalType, T.DateType, T.TimestampType, T.TimestampNTZType,
)  # fmt: skip
"""Types of columns that Arrow groups, and that leave a map task as they came."""

COMBINE_ROWS = "combineRows"
"""How errors name it: it has no uid, because it has no state."""


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
        return OperatorPlan(keyed, None, None, arguments, ArrowInput).build()

    def _combines_before_shuffle(self) -> bool:
        if self.before_shuffle is False:
            return False
        other = _not_grouped(self.keyed, self.combination)
        if self.before_shuffle and other:
            raise PlanError(
                f"{self._where}: beforeShuffle=True, but the columns {other} have types that are "
                "only combined behind the shuffle: leave beforeShuffle out"
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
        *[F.col(_quoted(name)).alias(alias) for name, alias in combination.inputs.items()],
    )


def _combined(
    df: DataFrame, keys: T.StructType, combination: Aggregates | FunctionOverTables
) -> DataFrame:
    fields = _nullable([*keys.fields, *combination.schema.fields])
    return df.mapInArrow(CombinedBeforeShuffle(combination, keys.names), fields)


def _not_grouped(keyed: KeyedInput, combination: Aggregates | FunctionOverTables) -> list[str]:
    """Return the columns that only the operator behind the shuffle can combine."""
    rows = keyed.columns.schema
    fields = [*keyed.columns.key_schema, *(rows[name] for name in combination.inputs)]
    return [
        field.name
        for field in fields
        if type(field.dataType) not in _GROUPED or has_collation(field.dataType)
    ]


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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _nullable(fields: list[T.StructField]) -> T.StructType:
    """Return fields without metadata and as nullable, however the rows come."""
    return T.StructType([T.StructField(field.name, field.dataType) for field in fields])
