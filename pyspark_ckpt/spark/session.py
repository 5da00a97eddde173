"""What the library reads from a session and its application. Driver only."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.sessions import connect
from pyspark_ckpt.sessions.kind import is_connect

STATE_STORE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STATE_STORE_CLASSES = "org.apache.spark.sql.execution.streaming.state."
STATE_STORE_PROVIDERS = frozenset(
    {
        f"{_STATE_STORE_CLASSES}HDFSBackedStateStoreProvider",
        f"{_STATE_STORE_CLASSES}RocksDBStateStoreProvider",
    }
)
"""The state stores that a file of a checkpoint may name."""

_STATE_STORE_SETTINGS = "spark.sql.streaming.stateStore."


def is_grouped(groups: object) -> bool:
    """Return whether an object is what ``groupBy`` returns, on either kind of session."""
    return isinstance(groups, GroupedData) or type(groups).__name__ == GroupedData.__name__


def frame_of_groups(groups: GroupedData) -> DataFrame:
    """Return the DataFrame that ``groupBy`` was called on; PySpark has no public way."""
    return groups._df


def spark_writer(df: DataFrame) -> DataStreamWriter:
    """Return Spark's own writer of a query, also where ``df.writeStream`` was replaced."""
    return connect.stream_writer(df) if is_connect(df) else DataStreamWriter(df)


def has_ended(spark: SparkSession) -> bool:
    """Return whether the application of a session was stopped; PySpark has no public way."""
    if is_connect(spark):
        return connect.has_ended(spark)
    context: Any = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks the application runs at once; a small job over Spark Connect."""
    if is_connect(spark):
        return connect.tasks_at_once(spark)
    return spark.sparkContext.defaultParallelism


def reading_session(spark: SparkSession) -> SparkSession:
    """Return a new session that reads Spark's state store as the query does.

    The user's session may get other settings while the query runs.
    """
    if is_connect(spark):
        return connect.new_session(spark)
    session = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if key.startswith(_STATE_STORE_SETTINGS):
            session.conf.set(key, value)
    return session
