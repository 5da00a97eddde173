"""A processor in all ways to run it: with this library, and with PySpark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.runs.case import Contender, Kind

Prepare = Callable[[DataFrame], DataFrame]
"""What a query does before the operator, such as setting a watermark."""

ROWS = "transformWithState"
PANDAS = "transformWithStateInPandas"
BATCHES = "transformWithStateInBatches"
ARROW = "transformWithStateInArrow"
_MODES = {ROWS: "rows", PANDAS: "pandas", BATCHES: "batches", ARROW: "Arrow"}
COMBINE = "combined before the shuffle"
BACKENDS = ("rocksdb", "heap")


def ours_name(mode: str, backend: str) -> str:
    """Return the name of one of this library's contenders in figures."""
    return f"pyspark_ckpt {_MODES[mode]}, {backend}"


def ours(
    mode: str,
    processor: Callable[[], StatefulProcessor],
    key: str,
    output: str,
    backend: str,
    prepare: Prepare = lambda df: df,
    time_mode: str = "None",
    combine: Mapping[str, ckpt.agg.Aggregate] | None = None,
    **others: Any,
) -> Contender:
    """Return a contender of this library.

    Parameters
    ----------
    mode
        The method of ``key_by``: :data:`ROWS`, :data:`PANDAS`, :data:`BATCHES` or :data:`ARROW`.
    processor, key, output
        What makes the processor, the key column, and the DDL of the output.
    backend
        A state backend.
    prepare, time_mode
        What comes before the operator, and its time mode.
    combine
        What the operator gets partial rows of, combined before the shuffle.
    others
        Further fields of the contender.
    """

    def query(df: DataFrame) -> DataFrame:
        keyed = ckpt.key_by(prepare(df), *key.split(", "))
        operator = getattr(keyed if combine is None else keyed.combineRows(combine), mode)
        result: DataFrame = operator(
            statefulProcessor=processor(),
            outputStructType=output,
            outputMode="Append",
            timeMode=time_mode,
            uid="operator",
        )
        return result

    options = {"spark.ckpt.state.backend.type": backend, **others.pop("options", {})}
    name = others.pop("name", ours_name(mode, backend))
    return Contender(name, Kind.OURS, query, options=options, **others)


def combined(
    aggregates: Mapping[str, ckpt.agg.Aggregate],
    key: str,
    backend: str,
    *,
    before_shuffle: bool = True,
) -> Contender:
    """Return a contender that keeps aggregates, combined before the shuffle or only after it."""

    def query(df: DataFrame) -> DataFrame:
        keyed = ckpt.key_by(df, key)
        return keyed.combine(aggregates, uid="operator", beforeShuffle=before_shuffle)

    options = {"spark.ckpt.state.backend.type": backend}
    name = COMBINE if before_shuffle else "combined behind the shuffle"
    return Contender(f"pyspark_ckpt {name}, {backend}", Kind.OURS, query, options=options)


def pysparks(
    mode: str,
    processor: Callable[[], StatefulProcessor],
    key: str,
    output: str,
    prepare: Prepare = lambda df: df,
    time_mode: str = "None",
) -> Contender:
    """Return PySpark's own operator with the same processor; parameters as of :func:`ours`."""

    def query(df: DataFrame) -> DataFrame:
        result: DataFrame = getattr(prepare(df).groupBy(key), mode)(
            statefulProcessor=processor(),
            outputStructType=output,
            outputMode="Append",
            timeMode=time_mode,
        )
        return result

    return Contender(mode, Kind.PEER, query, slow=True)
