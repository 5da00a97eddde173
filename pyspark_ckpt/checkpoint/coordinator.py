"""The coordinator: takes a query's checkpoints and savepoints while the query runs on.

One thread per query on the driver. A checkpoint is made of an epoch that Spark has committed, after
the fact; one that fails is given up with its reason and leaves those before it as they are.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.checkpoint.cleaner import garbage
from pyspark_ckpt.checkpoint.completed_checkpoints import CompletedCheckpoints
from pyspark_ckpt.checkpoint.savepoint import Savepoint, write_savepoint
from pyspark_ckpt.checkpoint.snapshot import QueryFiles, take_snapshot
from pyspark_ckpt.configuration import Settings
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, ConfigurationError
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata

_STATE_STORE_SETTINGS = "spark.sql.streaming.stateStore."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AbortedCheckpoint:
    """A checkpoint or savepoint that was given up, and why."""

    kind: str
    epoch: int | None
    triggered_at_ms: int
    reason: str


class CheckpointCoordinator:
    """Checkpoints one running query.

    Parameters
    ----------
    spark
        The session that the query was started from.
    streaming_query
        The running query.
    files
        Its directories and operators.
    settings
        Interval, retention and savepoints directory.
    """

    def __init__(
        self,
        spark: SparkSession,
        streaming_query: StreamingQuery,
        files: QueryFiles,
        settings: Settings,
    ) -> None:
        self._spark = _session_like(spark)
        self._query = streaming_query
        self._files = files
        self._settings = settings
        self._completed = CompletedCheckpoints(files.storage)
        self._metadata: dict[int, CheckpointMetadata] = {}
        self._savepoints: list[Savepoint] = []
        self._aborted: list[AbortedCheckpoint] = []
        # One checkpoint, savepoint or cleaning at a time: nothing is cleaned while it is copied.
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name=f"pyspark_ckpt coordinator {files.query_id}", daemon=True
        )

    def start(self) -> None:
        """Begin to checkpoint at the interval, until the query ends."""
        self._thread.start()

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the last checkpoint of a query that has ended."""
        self._thread.join(timeout_seconds)

    def retained(self) -> list[tuple[int, CheckpointMetadata | CkptError]]:
        """Return the retained checkpoints with their ids, oldest first.

        In the place of one that cannot be read stands the reason.
        """
        with self._lock:
            return [(number, self._read(number)) for number in self._completed.ids()]

    def savepoints(self) -> list[Savepoint]:
        """Return the savepoints taken since the query was started."""
        return list(self._savepoints)

    def aborted(self) -> list[AbortedCheckpoint]:
        """Return what was given up since the query was started."""
        return list(self._aborted)

    def path(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint."""
        return self._completed.path(checkpoint_id)

    def trigger_checkpoint(self) -> int | None:
        """Checkpoint the newest committed epoch and clean up behind it.

        Returns
        -------
        int or None
            The new checkpoint's id; ``None`` if no epoch was committed since the last one.

        Raises
        ------
        CkptError
            If it was given up; recorded with its reason.
        """
        with self._lock:
            epoch = self._files.spark_log.committed_epoch()
            if epoch is None or epoch <= self._newest_epoch():
                return None
            triggered_at_ms = _now_ms()
            try:
                return self._checkpoint(epoch)
            except Exception as exc:
                self._record_abort("checkpoint", epoch, triggered_at_ms, exc)
                raise

    def trigger_savepoint(self, directory: str | None) -> Savepoint:
        """Take a savepoint of the newest committed epoch.

        Raises
        ------
        ConfigurationError
            If there is no directory to put it in.
        CheckpointAbortedError
            If nothing is committed yet.
        """
        target = directory or self._settings.savepoints_directory
        if target is None:
            raise ConfigurationError(
                "triggerSavepoint needs a directory: give one, or set "
                "spark.ckpt.execution.checkpointing.savepoint-dir"
            )
        with self._lock:
            triggered_at_ms = _now_ms()
            epoch = self._files.spark_log.committed_epoch()
            try:
                if epoch is None:
                    raise CheckpointAbortedError(
                        f"query {self._files.query_id} has no committed epoch yet: try again "
                        "after its first one"
                    )
                snapshot = self._snapshot(epoch, triggered_at_ms)
                savepoint = write_savepoint(snapshot, self._files.storage, target)
            except Exception as exc:
                self._record_abort("savepoint", epoch, triggered_at_ms, exc)
                raise
            self._savepoints.append(savepoint)
        logger.info("query %s: savepoint %s, epoch %s", self._files.query_id, savepoint.path, epoch)
        return savepoint

    def _run(self) -> None:
        interval_seconds: Any = self._settings.interval_ms / 1000  # PySpark takes floats too
        ended = False
        while not ended:
            try:
                ended = bool(self._query.awaitTermination(interval_seconds))
            except StreamingQueryException:
                return  # the user hears of it from the query itself
            try:
                self.trigger_checkpoint()
            except Exception as exc:
                logger.warning("query %s: checkpoint given up: %s", self._files.query_id, exc)
                logger.debug("where it happened", exc_info=True)

    def _checkpoint(self, epoch: int) -> int:
        checkpoint_id = self._completed.next_id()
        snapshot = self._snapshot(epoch, _now_ms())
        metadata = msgspec.structs.replace(
            snapshot, checkpoint_id=checkpoint_id, completed_at_ms=_now_ms()
        )
        self._completed.add(checkpoint_id, metadata)
        self._metadata[checkpoint_id] = metadata
        logger.info(
            "query %s: chk-%s completed, epoch %s, %s bytes",
            self._files.query_id, checkpoint_id, epoch, metadata.size_bytes,
        )  # fmt: skip
        self._clean(epoch)
        return checkpoint_id

    def _snapshot(self, epoch: int, triggered_at_ms: int) -> CheckpointMetadata:
        self._spark.sparkContext.setJobDescription(f"pyspark_ckpt: handles of epoch {epoch}")
        snapshot = take_snapshot(self._spark, self._files, epoch)
        return msgspec.structs.replace(snapshot, triggered_at_ms=triggered_at_ms)

    def _clean(self, epoch: int) -> None:
        """Drop checkpoints beyond the retained ones, then files that nobody needs."""
        ids = self._completed.ids()
        for checkpoint_id in ids[: -self._settings.num_retained]:
            self._completed.remove(checkpoint_id)
            self._metadata.pop(checkpoint_id, None)
        needed: set[str] = set()
        for checkpoint_id in ids[-self._settings.num_retained :]:
            metadata = self._read(checkpoint_id)
            if isinstance(metadata, CkptError):
                logger.warning("nothing is cleaned, its files are unknown: %s", metadata)
                return
            needed.update(reference.path for reference in metadata.files())
        self._files.storage.delete(garbage(self._files.storage, needed, epoch))

    def _newest_epoch(self) -> int:
        ids = self._completed.ids()
        newest = self._read(ids[-1]) if ids else None
        return newest.epoch if isinstance(newest, CheckpointMetadata) else -1

    def _read(self, checkpoint_id: int) -> CheckpointMetadata | CkptError:
        if checkpoint_id not in self._metadata:
            try:
                self._metadata[checkpoint_id] = self._completed.read(checkpoint_id)
            except CkptError as exc:
                return exc
        return self._metadata[checkpoint_id]

    def _record_abort(
        self, kind: str, epoch: int | None, triggered_at_ms: int, exc: Exception
    ) -> None:
        reason = f"{type(exc).__name__}: {exc}"
        self._aborted.append(AbortedCheckpoint(kind, epoch, triggered_at_ms, reason))


def _session_like(spark: SparkSession) -> SparkSession:
    """Return a session of the coordinator's own that reads Spark's state store as the query does.

    The user's session may be given other settings while the query runs.
    """
    session = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if key.startswith(_STATE_STORE_SETTINGS):
            session.conf.set(key, value)
    return session


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
