"""A relation of one row that is a stream for Spark, so that it can be united with one.

It is no source: it has no offsets, and never causes an epoch. Its row is there in each epoch.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.sessions.kind import is_connect

_DATASETS = "org.apache.spark.sql.classic.Dataset"


def has_streaming_row(spark: SparkSession) -> bool:
    """Return whether a session can have such a relation: it is made in the driver's JVM."""
    return not is_connect(spark)


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
