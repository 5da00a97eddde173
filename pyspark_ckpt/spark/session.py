"""The session that a call works in, and what the library reads from it. Driver only."""

from __future__ import annotations

import threading
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.log_fields import library_logger
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
_making_session = threading.Lock()
_TRIES = 2
logger = library_logger(__name__)
_STRING = "java.lang.String"

_BETWEEN = "\0"
"""Between settings that are read in one call. A setting that has it itself is read on its own."""


def context_is_stopped(context: SparkContext) -> bool:
    """Return whether a context was stopped; calls of it then fail with errors of Python."""
    java: Any = context._jsc
    return java is None


def is_grouped(groups: object) -> bool:
    """Return whether an object is what ``groupBy`` returns, on either kind of session."""
    return isinstance(groups, GroupedData) or type(groups).__name__ == GroupedData.__name__


def frame_of_groups(groups: GroupedData) -> DataFrame:
    """Return the DataFrame that ``groupBy`` was called on; PySpark has no public way."""
    return groups._df


def spark_writer(df: DataFrame) -> DataStreamWriter:
    """Return Spark's own writer of a query, also where ``df.writeStream`` was replaced."""
    return connect.stream_writer(df) if is_connect(df) else DataStreamWriter(df)


def why_ended(spark: SparkSession) -> str | None:
    """Return why a session runs nothing any more, ``None`` while it runs; asks no server.

    ``spark.stop()`` ends all sessions of a classic driver, which share one application.
    """
    if is_connect(spark):
        return connect.why_ended(spark)
    for _ in range(_TRIES):
        context: Any = spark.sparkContext._jsc
        if context is None:
            return connect.SESSION_STOPPED
        try:
            return connect.SESSION_STOPPED if context.sc().isStopped() else None
        except (Py4JError, OSError) as exc:
            # A connection that was interrupted fails once, and the next call makes another one.
            last: Exception = exc
    logger.debug("no answer of the JVM: %s", last)
    return "the JVM of its Spark application has ended"


def keep_in_use(spark: SparkSession) -> None:
    """Let a Spark Connect server see that a session is in use; it closes idle sessions."""
    if is_connect(spark):
        connect.keep_in_use(spark)


def release_ended(spark: SparkSession) -> None:
    """End what the library made of a session that has ended."""
    if is_connect(spark):
        connect.release_ended(spark)


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks the application runs at once; a small job over Spark Connect."""
    if is_connect(spark):
        return connect.tasks_at_once(spark)
    return spark.sparkContext.defaultParallelism


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return all settings of a session.

    PySpark's own ``getAll`` asks a classic session's JVM for each of them, and then for one more,
    which fails; that took 25 ms, several times at each start of a query.
    """
    if is_connect(spark):
        return spark.conf.getAll
    java: Any = spark._jvm
    entries = spark.conf._jconf.getAllAsJava()
    values_in_java = entries.__getattr__("values")()  # Py4J's own `values` asks for each of them
    keys, values = (
        getattr(java, _STRING).join(_BETWEEN, part).split(_BETWEEN)
        for part in (entries.keySet(), values_in_java)
    )
    if not len(keys) == len(values) == entries.size():
        return spark.conf.getAll
    return dict(zip(keys, values, strict=True))


def python_session(spark: SparkSession, java_session: Any) -> SparkSession:
    """Return a session of Spark's as a session of PySpark, in addition to that of the user.

    PySpark makes ``rdd.toDF()`` return frames of the session object that was made last. Afterwards
    it returns those of the same session as before.
    """
    with _making_session:
        before = getattr(RDD, "toDF", None)
        session = SparkSession(spark.sparkContext, java_session)
        if before is not None and _is_of(getattr(RDD, "toDF", None), session):
            RDD.toDF = before  # type: ignore[method-assign]
    return session


def _is_of(to_df: Any, session: SparkSession) -> bool:
    cells = getattr(to_df, "__closure__", None) or ()
    return any(cell.cell_contents is session for cell in cells)


def reading_session(spark: SparkSession) -> SparkSession:
    """Return a new session that reads Spark's state store as the query does.

    The user's session may get other settings while the query runs. Settings without Spark's prefix
    are Hadoop's, as ``fs.s3a.access.key``: Spark gives them to its file systems.
    """
    if is_connect(spark):
        return connect.new_session(spark)
    session = python_session(spark, spark._jsparkSession.newSession())
    for key, value in settings_of(spark).items():
        if key.startswith(_STATE_STORE_SETTINGS) or not key.startswith("spark."):
            session.conf.set(key, value)
    return session


def session_in_use(
    call: str,
    error: type[CkptError],
    given: SparkSession | None,
    *frames: DataFrame,
) -> SparkSession:
    """Return the session that a call of the user works in; it makes and changes none.

    PySpark's active session belongs to a thread. In another one, PySpark's default session is
    taken: the first that the process made and has not stopped.

    The session of `frames` counts if `given` is ``None``.
    """
    kinds: tuple[type, ...] = (SparkSession, type(None))
    if not isinstance(given, kinds) and not is_connect(given):
        raise error(f"{call} got {type(given).__name__} for spark: give a SparkSession")
    session = given
    if session is None and frames:
        session = frames[0].sparkSession
    if session is None:
        try:
            session = SparkSession.active()
        except PySparkRuntimeError as exc:
            raise error(
                f"{call} needs a Spark session, and this process has none: make one, or give spark="
            ) from exc
    if why_ended(session) is not None:
        raise error(f"{call} needs a Spark session, and this one was stopped: give a running one")
    return session
