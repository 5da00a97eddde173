"""The session that a call works in, and what the library reads from it. Driver only."""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, GroupedData, SparkSession

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.sessions.session import session_of

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


def id_of_session(spark: SparkSession) -> str:
    """Return the id of a session, which all of PySpark's objects of it have; asks a JVM for it."""
    session = session_of(spark)
    return str(spark._jsparkSession.sessionUUID()) if session.has_jvm else session.id


def reading_session(spark: SparkSession) -> SparkSession:
    """Return a new session that reads Spark's state store as the query does.

    The user's session may get other settings while the query runs. Settings without Spark's prefix
    are Hadoop's, as ``fs.s3a.access.key``: Spark gives them to its file systems.
    """
    return session_of(spark).new_session(
        lambda key: key.startswith(_STATE_STORE_SETTINGS) or not key.startswith("spark.")
    )


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
    if not isinstance(given, kinds) and session_of(given).has_jvm:
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
    if session_of(session).why_ended() is not None:
        raise error(f"{call} needs a Spark session, and this one was stopped: give a running one")
    return session
