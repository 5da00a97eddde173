"""What a plan needs and PySpark lacks: a stream of one row, and other output modes.

It is not a source: it has no offsets, and never causes an epoch. Its row is there in each epoch.

Spark's check of a plan wants ``applyInPandasWithState`` to have the mode of the query; nothing else
in Spark looks at the operator's mode. An operator whose mode is neither append nor update passes
that check in both. Spark's method refuses such a mode, so the node of the plan is changed.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.session import session_of

_DATASETS = "org.apache.spark.sql.classic.Dataset"
_ANY_MODE = "org.apache.spark.sql.catalyst.streaming.InternalOutputModes$Complete$"
_OF_MODES = "STREAMING_OUTPUT_MODE"
OUR_NODE = "FlatMapGroupsInPandasWithState"
"""Spark's name of the node of an operator of this library."""

logger = library_logger(__name__)


def has_streaming_row(spark: SparkSession) -> bool:
    """Return whether a session can have such a relation: it is made in the driver's JVM."""
    return session_of(spark).has_jvm


def streaming_row(spark: SparkSession) -> DataFrame:
    """Return a streaming DataFrame that has one row in each epoch."""
    if not has_streaming_row(spark):
        raise NotBuiltYetError(
            "a stream of one row is not supported over Spark Connect: use a classic session"
        )
    node = _values(spark)
    streamed = streaming_relation(spark, node.output(), node.data())
    datasets: Any = getattr(spark._jvm, _DATASETS)
    return DataFrame(datasets.ofRows(spark._jsparkSession, streamed), spark)


def streaming_relation(spark: SparkSession, output: Any, data: Any) -> Any:
    """Return the node of a plan that is a stream of given rows."""
    node = _values(spark)
    is_streaming = True  # Spark allows no union of a stream and a batch
    try:
        return node.copy(output, data, is_streaming, node.stream())
    except (Py4JError, TypeError) as exc:
        raise NotBuiltYetError(
            f"PySpark {spark.version} has another relation for rows than PySpark 4.0 to 4.3 "
            f"({exc}): use one of these versions"
        ) from exc


def _values(spark: SparkSession) -> Any:
    return spark.sql("VALUES (1)")._jdf.queryExecution().analyzed()


def in_any_mode(df: DataFrame) -> DataFrame:
    """Return a DataFrame whose last node, an operator, Spark accepts in append and update mode.

    If the node of this version of Spark has other parts, it stays as it is, and Spark accepts it
    in its own mode only. Over Spark Connect the plan gets the query's mode when the query starts.
    """
    if not session_of(df).has_jvm:
        return df
    spark = df.sparkSession
    node = df._jdf.queryExecution().analyzed()
    try:
        changed = node.copy(
            node.functionExpr(),
            node.groupingAttributes(),
            node.outputAttrs(),
            node.stateType(),
            _java(df, _ANY_MODE).__getattr__("MODULE$"),
            node.timeout(),
            node.child(),
        )
        return DataFrame(_java(df, _DATASETS).ofRows(spark._jsparkSession, changed), spark)
    except (Py4JError, TypeError) as exc:
        logger.warning(
            "PySpark %s: operators cannot have another output mode than the query: %s",
            spark.version,
            exc,
        )
        return df


def plan_error(exc: AnalysisException) -> PlanError | None:
    """Return the error for a plan that Spark's check refuses, ``None`` for another error.

    Spark's own message shows the whole plan, with columns that users never named.
    """
    text = str(exc)
    if OUR_NODE not in text and _OF_MODES not in text:
        return None
    reason = text.split("\n")[0].rstrip(";").replace("applyInPandasWithState", "the operator")
    return PlanError(
        f"Spark refuses the query: {reason.rstrip('. ')}. Operators of this library run with "
        "outputMode append or update; together with an aggregation, see docs/limits.md"
    )


def _java(df: DataFrame, name: str) -> Any:
    return getattr(df.sparkSession._jvm, name)
