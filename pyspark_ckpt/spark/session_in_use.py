"""The session that a call works in: given, of a DataFrame, of the thread, or of the process."""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.spark.session import why_ended


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
