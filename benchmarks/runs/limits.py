"""The floor: the same query without an operator, with a function only, and with an idle operator.

They show how much of an epoch is Spark's. The first and the last pass on about as many rows as
a running count emits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from benchmarks.runs.case import Contender, Kind
from benchmarks.runs.input_files import read_files

SAMPLED_BELOW = -80
"""Values below it are a tenth of all in the running count's data."""

_OUTPUT = "key long, n long, total long"
_PARTITION = "partition"


def _without_operator(df: DataFrame) -> DataFrame:
    value = F.col("value")
    sampled = df.where(value < SAMPLED_BELOW)
    return sampled.select("key", value.alias("n"), value.alias("total"))


def _with_idle_operator(df: DataFrame) -> DataFrame:
    partitions = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)
    partition = F.pmod(F.xxhash64("key"), F.lit(partitions)).cast("int")
    return (
        df.withColumn(_PARTITION, partition)
        .groupBy(_PARTITION)
        .applyInPandasWithState(
            _sample, _OUTPUT, "handle binary", "append", GroupStateTimeout.NoTimeout
        )
    )


def _sample(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    for frame in frames:
        sampled = frame[frame["value"] < SAMPLED_BELOW]
        yield pd.DataFrame(
            {"key": sampled["key"], "n": sampled["value"], "total": sampled["value"]}
        )
    state.update((b"",))


def _with_function_only(df: DataFrame) -> DataFrame:
    return df.mapInPandas(_one_by_one, _OUTPUT)


def _one_by_one(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"key": frame["key"], "n": 1, "total": frame["value"]})


def _with_map_in_jvm(df: DataFrame) -> DataFrame:
    return df.select("key", F.lit(1).cast("long").alias("n"), F.col("value").alias("total"))


def sampled_rows(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas what a query without an operator, or with an idle one, passes on."""
    rows = read_files(files)
    sampled = rows[rows["value"] < SAMPLED_BELOW]
    return pd.DataFrame({"key": sampled["key"], "n": sampled["value"], "total": sampled["value"]})


def all_rows(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas what the queries that map all rows emit."""
    rows = read_files(files)
    return pd.DataFrame({"key": rows["key"], "n": 1, "total": rows["value"]})


NONE = Contender("no operator at all", Kind.LIMIT, _without_operator, expected=sampled_rows)
IDLE = Contender(
    "an operator that does nothing", Kind.LIMIT, _with_idle_operator, expected=sampled_rows
)
JVM_MAP = Contender("map in the JVM, no state", Kind.LIMIT, _with_map_in_jvm, expected=all_rows)
MAP_ONLY = Contender("map only, no state", Kind.LIMIT, _with_function_only, expected=all_rows)
