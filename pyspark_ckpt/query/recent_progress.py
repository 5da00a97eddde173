"""The progress of a query's operators in its last epochs, read on demand.

Spark keeps the state of its last 100 epochs, and in it the counts of each subtask. Therefore an
epoch costs nothing until it is read. A caller that reads at least every 100 epochs misses none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.checkpoint.handles import committed_handles, handles_written_in
from pyspark_ckpt.checkpoint.lost_attributes import LostAttributesNotice
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.clock import ms_of_text
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.operator_progress import operator_progress
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.log_fields import library_logger

KEPT_EPOCHS = 100
"""As many as Spark's ``recentProgress`` and its state store keep by default."""

logger = library_logger(__name__)


class RecentProgress(CheckpointListener):
    """The operators' progress in the last epochs of one run of a query; on the driver.

    It listens to the checkpoints because it reports their age.

    `spark` is a session of :func:`reading_session`.
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery, files: QueryFiles) -> None:
        self._spark = spark
        self._query = query
        self._files = files
        committed = files.spark_log.committed_epoch()
        self._next = 0 if committed is None else committed + 1
        self._handles: dict[int, dict[int, Handle]] = {}
        self._epochs: deque[list[dict[str, Any]]] = deque(maxlen=KEPT_EPOCHS)
        self._checkpointed_at_ms: deque[int] = deque(maxlen=2 * KEPT_EPOCHS)
        self._notice = LostAttributesNotice(files.query_id)
        self._reading = threading.Lock()

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Remember when it was complete."""
        self._checkpointed_at_ms.append(checkpoint.triggered_at_ms + checkpoint.duration_ms)

    def last(self) -> list[dict[str, Any]]:
        """Return the progress of each operator in the newest committed epoch, of any run."""
        epoch = self._files.spark_log.committed_epoch()
        if epoch is None:
            return []
        of_spark = _by_epoch(self._query).get(epoch)
        return [
            self._progress(
                number, epoch, committed_handles(self._spark, self._files, epoch, number), of_spark
            )
            for number in self._files.operators.ours
        ]

    def recent(self) -> list[dict[str, Any]]:
        """Return each operator's progress in the last epochs of this run, oldest first."""
        with self._reading:
            committed = self._files.spark_log.committed_epoch()
            if committed is not None and committed >= self._next:
                first = max(self._next, committed + 1 - KEPT_EPOCHS)
                self._epochs.extend(self._read(range(first, committed + 1)))
                self._next = committed + 1
            return [dict(operator) for epoch in self._epochs for operator in epoch]

    def _read(self, epochs: range) -> list[list[dict[str, Any]]]:
        of_spark = _by_epoch(self._query)
        by_epoch: dict[int, list[dict[str, Any]]] = {epoch: [] for epoch in epochs}
        for number in self._files.operators.ours:
            for epoch, handles in self._handles_of(number, epochs):
                progress = self._progress(number, epoch, handles, of_spark.get(epoch))
                by_epoch[epoch].append(progress)
        return [by_epoch[epoch] for epoch in epochs if by_epoch[epoch]]

    def _handles_of(self, number: int, epochs: range) -> Iterator[tuple[int, list[Handle]]]:
        """Yield an operator's handles after each epoch that can be read."""
        written = handles_written_in(self._spark, self._files, epochs, number)
        if written is None:
            for epoch in epochs:
                handles = self._all_handles(number, epoch)
                if handles is not None:
                    yield epoch, handles
            return
        known = self._handles.get(number)
        if known is None or epochs.start != self._next:
            before = self._all_handles(number, epochs.start - 1) if epochs.start else []
            known = {handle.subtask: handle for handle in before or ()}
        for epoch in epochs:
            known.update({handle.subtask: handle for handle in written if handle.epoch == epoch})
            yield epoch, [known[subtask] for subtask in sorted(known)]
        self._handles[number] = known

    def _all_handles(self, number: int, epoch: int) -> list[Handle] | None:
        try:
            return list(committed_handles(self._spark, self._files, epoch, number))
        except (CkptError, PySparkException) as exc:  # Spark has deleted the epoch
            logger.debug("query %s: no progress of epoch %s: %s", self._files.query_id, epoch, exc)
            return None

    def _progress(
        self, number: int, epoch: int, handles: Any, of_spark: dict[str, Any] | None
    ) -> dict[str, Any]:
        uid = self._files.operators.ours[number].uid
        self._notice.look_at(uid, handles)
        progress = operator_progress(uid, epoch, self._files.backend_type, handles)
        progress.update(self._of_the_epoch(number, of_spark))
        return progress

    def _of_the_epoch(self, number: int, of_spark: dict[str, Any] | None) -> dict[str, Any]:
        """Return the values from Spark's own progress of the epoch, ``None`` for unknown ones."""
        found: dict[str, Any] = dict.fromkeys(
            ("timestamp", "watermarkLagMs", "numRowsDroppedByWatermark", "lastCheckpointAgeMs")
        )
        if of_spark is None:
            return found
        found["timestamp"] = of_spark["timestamp"]
        began_ms = ms_of_text(of_spark["timestamp"])
        watermark = of_spark.get("eventTime", {}).get("watermark")
        if watermark is not None and ms_of_text(watermark) > 0:
            found["watermarkLagMs"] = began_ms - ms_of_text(watermark)
        operators = of_spark.get("stateOperators", [])
        if number < len(operators):
            found["numRowsDroppedByWatermark"] = operators[number]["numRowsDroppedByWatermark"]
        ended_ms = began_ms + of_spark["durationMs"].get("triggerExecution", 0)
        before = [at_ms for at_ms in list(self._checkpointed_at_ms) if at_ms <= ended_ms]
        if before:
            found["lastCheckpointAgeMs"] = ended_ms - max(before)
        return found


def _by_epoch(query: StreamingQuery) -> dict[int, dict[str, Any]]:
    """Return Spark's progress by epoch, without reports that Spark makes while it is idle."""
    return {
        each["batchId"]: each for each in query.recentProgress if "addBatch" in each["durationMs"]
    }
