"""The output of the two programs: kept for an epoch, and compared with Spark as multisets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.shadowing.report import RowPair, Rules, pair_rows
from pyspark_ckpt.values.nesting import sql_name
from pyspark_ckpt.values.types import NUMBERS, Kind, kind_of

MOST_ROWS = 200_000
"""So many different rows of an epoch are collected; more are counted only."""

_LONG_DIGITS, _MOST_DIGITS = 19, 38

_TIMES = "pyspark_ckpt times"

_WRITTEN_WHOLE = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Else the user's conf may drop microseconds, or refuse or move old dates. No option does that."""

_READ_BY_NAME = {"spark.sql.parquet.fieldId.read.enabled": "false"}
"""Else columns with an id may be null, if the user's conf lets files be written without ids."""


class KeptOutput:
    """A ``foreachBatch`` function that writes an epoch's output into a directory of the shadow."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, df: DataFrame, epoch: int) -> None:
        """Write the rows; an epoch that runs again replaces its output.

        The session of `df` has to be of this run of Spark's query alone, as that of
        ``foreachBatch`` is: its conf is changed.
        """
        _set_conf(df.sparkSession, _WRITTEN_WHOLE)
        df.write.mode("overwrite").parquet(self.path(epoch))

    def path(self, epoch: int) -> str:
        """Return where the output of an epoch is."""
        return f"{self._url}/epoch-{epoch}"


@dataclass(frozen=True, slots=True)
class Output:
    """Where a program's output is, and its schema."""

    kept: KeptOutput
    schema: T.StructType


class ComparedOutput:
    """Compares the output of epochs.

    `spark` belongs to the shadow alone, because its conf is changed. `note` is called with how
    values are compared whose types differ, and `skip` with what is not compared and why.
    """

    def __init__(
        self,
        spark: SparkSession,
        old: Output,
        new: Output,
        keys: list[str],
        rules: Rules,
        note: Callable[[str], None],
        skip: Callable[[str], None],
    ) -> None:
        _set_conf(spark, _READ_BY_NAME)
        self._spark = spark
        self._old, self._new = old, new
        self._rules = rules
        types = {field.name: field.dataType for field in new.schema.fields}
        ignored = rules.ignored_columns([*old.schema.names, *types])
        only = sorted(({*old.schema.names} ^ {*types}) - ignored)
        if only:
            skip(f"output: only one program has {', '.join(only)}")
        self._casts: dict[str, T.DataType | None] = {}
        for field in old.schema.fields:
            if field.name in ignored or field.name not in types:
                continue
            self._casts[field.name] = common = _common(field.dataType, types[field.name])
            if field.dataType.simpleString() != types[field.name].simpleString():
                note(
                    f"output.{field.name} is {field.dataType.simpleString()} in the original and "
                    f"{types[field.name].simpleString()} in the candidate: compared as "
                    f"{'string' if common is None else common.simpleString()}"
                )
        self.keys = [name for name in keys if name in self._casts]

    def rows(self, epoch: int) -> int:
        """Return how many rows the original put out in an epoch."""
        return self._read(self._old, epoch).count()

    def differing(self, epoch: int) -> tuple[Iterator[RowPair], int]:
        """Return the rows of an epoch that differ, and how many more were not collected."""
        if not self._casts:
            return iter(()), 0
        sides = [
            self._read(side, epoch).select(*self._columns(side), F.lit(sign).alias(_TIMES))
            for side, sign in ((self._old, 1), (self._new, -1))
        ]
        columns = [F.col(sql_name(name)) for name in self._casts]
        both = sides[0].unionAll(sides[1]).groupBy(*columns)
        counted = both.agg(F.sum(sql_name(_TIMES)).alias(_TIMES))
        different = counted.where(F.col(sql_name(_TIMES)) != 0)
        found = different.limit(MOST_ROWS + 1).collect()
        more = different.count() - MOST_ROWS if len(found) > MOST_ROWS else 0
        old: list[dict[str, Any]] = []
        new: list[dict[str, Any]] = []
        for row in found[:MOST_ROWS]:
            fields = row.asDict(recursive=True)
            times = fields.pop(_TIMES)
            kept = min(abs(times), MOST_ROWS - len(old) - len(new))  # one row may come often
            (old if times > 0 else new).extend([fields] * kept)
            more += abs(times) - kept
        return pair_rows(old, new, self.keys, self._rules.tolerance), more

    def _read(self, side: Output, epoch: int) -> DataFrame:
        reader = self._spark.read.schema(side.schema)
        reader = reader.options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
        return reader.parquet(side.kept.path(epoch))

    def _columns(self, side: Output) -> list[Column]:
        return [
            _cast(F.col(sql_name(name)), side.schema[name].dataType, common).alias(name)
            for name, common in self._casts.items()
        ]


def _cast(column: Column, own: T.DataType, common: T.DataType | None) -> Column:
    if common is None:
        return column.cast("string")
    # All that is read from files may be null, and no cast takes that back.
    return column if own.simpleString() == common.simpleString() else column.cast(common)


def _set_conf(spark: SparkSession, conf: dict[str, str]) -> None:
    for key, value in conf.items():
        spark.conf.set(key, value)


def _common(old: T.DataType, new: T.DataType) -> T.DataType | None:
    """Return the type in which values of both are compared, ``None`` for text."""
    if old.simpleString() == new.simpleString():  # whether parts may be null does not count
        return None if old.simpleString() == "variant" else new
    kinds = {kind_of(old), kind_of(new)}
    if not kinds <= NUMBERS:
        return None
    if Kind.FRACTION in kinds:
        return T.DoubleType()
    if kinds == {Kind.INTEGER}:
        return T.LongType()
    return _common_decimal(*map(_as_decimal, (old, new))) or T.DoubleType()


def _as_decimal(data_type: T.DataType) -> T.DecimalType:
    return data_type if isinstance(data_type, T.DecimalType) else T.DecimalType(_LONG_DIGITS, 0)


def _common_decimal(old: T.DecimalType, new: T.DecimalType) -> T.DecimalType | None:
    """Return the decimal that holds all values of both, ``None`` if there is none."""
    scale = max(old.scale, new.scale)
    digits = max(old.precision - old.scale, new.precision - new.scale) + scale
    return T.DecimalType(digits, scale) if digits <= _MOST_DIGITS else None
