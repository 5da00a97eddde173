"""The history of a query's checkpoints as a DataFrame whose rows are on the driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.history.log import HistoryEntry

_TEXT = (T.StringType(), pa.string())
_NUMBER = (T.LongType(), pa.int64())
_TIME = (T.TimestampType(), pa.timestamp("us", "UTC"))
_NUMBERS = (T.MapType(T.StringType(), T.LongType()), pa.map_(pa.string(), pa.int64()))
_COLUMNS: dict[str, tuple[T.DataType, pa.DataType]] = {
    "kind": _TEXT,
    "status": _TEXT,
    "checkpoint_id": _NUMBER,
    "epoch": _NUMBER,
    "triggered_at": _TIME,
    "duration_ms": _NUMBER,
    "size_bytes": _NUMBER,
    "new_bytes": _NUMBER,
    "files": _NUMBER,
    "phases_ms": _NUMBERS,
    "requests": _NUMBERS,
    "path": _TEXT,
    "reason": _TEXT,
    "parallelism_before": _NUMBER,
    "parallelism": _NUMBER,
    "pause_ms": _NUMBER,
}


def as_spark_frame(spark: SparkSession, entries: Iterable[HistoryEntry]) -> DataFrame:
    """Return a DataFrame with a row for each entry.

    Rows made from Arrow are part of the plan, so a query that uses all slots does not delay them.
    """
    arrow = pa.schema([(name, in_arrow) for name, (_, in_arrow) in _COLUMNS.items()])
    schema = T.StructType([T.StructField(name, each) for name, (each, _) in _COLUMNS.items()])
    return spark.createDataFrame(pa.Table.from_pylist(list(map(_row, entries)), arrow), schema)


def _row(entry: HistoryEntry) -> dict[str, Any]:
    row = msgspec.to_builtins(entry)
    triggered_at_us = None if entry.triggered_at_ms is None else 1000 * entry.triggered_at_ms
    return {
        **row,
        "triggered_at": triggered_at_us,
        "phases_ms": _pairs(entry.phases_ms),
        "requests": _pairs(entry.requests),
    }


def _pairs(numbers: dict[str, int] | None) -> list[tuple[str, int]] | None:
    return None if numbers is None else list(numbers.items())
