"""What the library reads from a session and its application. Driver only."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, GroupedData, SparkSession

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


def is_classic(df: DataFrame) -> bool:
    """Return whether a DataFrame belongs to a classic session, not to Spark Connect."""
    return hasattr(df, "_jdf")


def frame_of_groups(groups: GroupedData) -> DataFrame:
    """Return the DataFrame that ``groupBy`` was called on; PySpark has no public way."""
    return groups._df


def has_ended(spark: SparkSession) -> bool:
    """Return whether the application of a session was stopped; PySpark has no public way."""
    context: Any = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def reading_session(spark: SparkSession) -> SparkSession:
    """Return a new session that reads Spark's state store as the query does.

    The user's session may get other settings while the query runs.
    """
    session = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if key.startswith(_STATE_STORE_SETTINGS):
            session.conf.set(key, value)
    return session
