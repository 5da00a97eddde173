"""What no operator can pass: the same query without one, and with one that does nothing.

They show how much of an epoch is Spark's. Each lets about as many rows through as the others yield.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from benchmarks.data import OUTPUT_SCHEMA, SAMPLED_BELOW

_PARTITION = "partition"


def without_operator(df: DataFrame) -> DataStreamWriter:
    """Return the query that reads and writes only."""
    value = F.col("value")
    sampled = df.where(value < SAMPLED_BELOW)
    return sampled.select("key", value.alias("n"), value.alias("total")).writeStream


def with_idle_operator(df: DataFrame) -> DataStreamWriter:
    """Return the query with one group per partition, whose rows reach Python and go back."""
    partitions = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)
    partition = F.pmod(F.xxhash64("key"), F.lit(partitions)).cast("int")
    return (
        df.withColumn(_PARTITION, partition)
        .groupBy(_PARTITION)
        .applyInPandasWithState(
            _sample, OUTPUT_SCHEMA, "handle binary", "append", GroupStateTimeout.NoTimeout
        )
        .writeStream
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
