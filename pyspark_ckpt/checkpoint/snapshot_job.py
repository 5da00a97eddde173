"""Gathers a committed epoch in a session and in Spark jobs of its own, which can be cancelled."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.lost_attributes_notice import LostAttributesNotice
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.snapshot import take_snapshot
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.spark.jobs import SparkJobs
from pyspark_ckpt.storage.retrying import retried

_STATE_STORE_SETTINGS = "spark.sql.streaming.stateStore."


class SnapshotJob:
    """Takes the snapshots of one query, one after the other; on the driver.

    Parameters
    ----------
    spark
        A session of :func:`reading_session`.
    files
        The query's directories and operators.
    """

    def __init__(self, spark: SparkSession, files: QueryFiles) -> None:
        self._spark = spark
        self._files = files
        self._jobs: SparkJobs | None = None
        self._notice = LostAttributesNotice(files.query_id)

    def take(self, epoch: int) -> CheckpointMetadata:
        """Gather a committed epoch; as :func:`take_snapshot`."""
        what = f"handles of epoch {epoch}, query {self._files.query_id}"
        self._jobs = SparkJobs(self._spark.sparkContext, what)
        with self._jobs.running():
            snapshot = retried(lambda: take_snapshot(self._spark, self._files, epoch))
        for operator in snapshot.operators:
            self._notice.look_at(operator.uid, operator.handles)
        return snapshot

    def cancel(self) -> None:
        """Cancel the Spark jobs of the newest :meth:`take`, from another thread."""
        if self._jobs is not None:
            self._jobs.cancel()


def has_ended(spark: SparkSession) -> bool:
    """Tell whether the application of a session was stopped."""
    context: Any = spark.sparkContext._jsc  # noqa: SLF001  # PySpark does not tell
    return context is None or bool(context.sc().isStopped())


def reading_session(spark: SparkSession) -> SparkSession:
    """Return a new session that reads Spark's state store as the query does.

    The user's session may be given other settings while the query runs.
    """
    session = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if key.startswith(_STATE_STORE_SETTINGS):
            session.conf.set(key, value)
    return session
