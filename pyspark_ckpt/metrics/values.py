"""The values of all metrics of one running query, on the driver.

They come from what the driver has anyway: the handles and outcomes of checkpoints, and Spark's
reports of epochs. No Spark job is added. Values are computed when a reporter asks for them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.log import sizes_of
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.metrics.epoch_values import EpochValues
from pyspark_ckpt.metrics.operator_values import operator_values
from pyspark_ckpt.metrics.point import Point, point
from pyspark_ckpt.version import __version__

logger = library_logger(__name__)


@dataclass(frozen=True, slots=True)
class MeasuredQuery:
    """The query whose metrics they are.

    `operators` are the uids by their places among Spark's stateful operators. `started_at_ms` is
    when the run began, and `restored_at_ms` the same, ``None`` for a run that did not start from
    stored state.
    """

    query_id: str
    name: str
    run_id: str
    versions: tuple[str, str]
    operators: Mapping[int, str] = field(default_factory=dict)
    started_at_ms: int = field(default_factory=now_ms)
    restored_at_ms: int | None = None

    @classmethod
    def of(
        cls, spark: SparkSession, query: StreamingQuery, files: QueryFiles, *, continues: bool
    ) -> MeasuredQuery:
        """Describe a query that has just started, perhaps from stored state."""
        at_ms = now_ms()
        return cls(
            query_id=files.query_id,
            name=files.query_name or files.query_id,
            run_id=query.runId,
            versions=(__version__, spark.version),
            operators={number: each.uid for number, each in files.operators.ours.items()},
            started_at_ms=at_ms,
            restored_at_ms=at_ms if continues else None,
        )


class QueryMetrics(CheckpointListener):
    """The metrics of one run of a query; any thread may ask for the values.

    `progress_since` returns Spark's reports of the epochs after an epoch, oldest first.
    `metadata_of` returns the metadata of a retained checkpoint, with the counts of its handles.
    """

    def __init__(
        self,
        query: MeasuredQuery,
        progress_since: Callable[[int | None], Sequence[dict[str, Any]]],
        metadata_of: Callable[[int], CheckpointMetadata | None],
        is_under_way: Callable[[], bool],
    ) -> None:
        self.query = query
        self._progress_since = progress_since
        self._metadata_of = metadata_of
        self._is_under_way = is_under_way
        self._guard = threading.Lock()
        self._epochs = EpochValues(query.operators)
        self._completed = 0
        # From the start, because the first failure would not be an increase of anything.
        self._failed: Counter[str] = Counter({reason.value: 0 for reason in AbortReason})
        self._requests: Counter[str] = Counter()
        self._newest: tuple[CompletedCheckpoint, CheckpointMetadata] | None = None
        self._before: CheckpointMetadata | None = None

    @property
    def labels(self) -> tuple[str, str]:
        """The values of the labels that every metric of the query has."""
        return self.query.name, self.query.query_id

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Count a checkpoint, and the epochs before Spark forgets them."""
        metadata = self._metadata_of(checkpoint.checkpoint_id)
        with self._guard:
            self._completed += 1
            self._requests.update(checkpoint.requests or {})
            if metadata is not None:
                self._before = None if self._newest is None else self._newest[1]
                self._newest = checkpoint, metadata
            self._count_epochs()

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        """Count a checkpoint that was aborted."""
        with self._guard:
            self._failed[checkpoint.reason.value] += 1

    def points(self) -> list[Point]:
        """Return the values as they are now."""
        with self._guard:
            self._count_epochs()
            return [*self._of_the_query(), *self._of_checkpoints(), *self._of_newest()]

    def _count_epochs(self) -> None:
        try:
            self._epochs.add(self._progress_since(self._epochs.epoch))
        except Exception as exc:  # Spark has ended, or is ending
            logger.debug("query %s: no progress to report: %s", self.query.query_id, exc)

    def _of_the_query(self) -> Iterator[Point]:
        version, spark = self.query.versions
        yield point("info", 1, run_id=self.query.run_id, version=version, spark=spark)
        yield point("started_timestamp", self.query.started_at_ms / 1000)
        if self.query.restored_at_ms is not None:
            yield point("restored_timestamp", self.query.restored_at_ms / 1000)
        yield from self._epochs.points()

    def _of_checkpoints(self) -> Iterator[Point]:
        yield point("checkpoints_completed", self._completed)
        yield point("checkpoints_in_progress", int(self._is_under_way()))
        for reason, number in self._failed.items():
            yield point("checkpoints_failed", number, reason=reason)
        for kind, number in self._requests.items():
            yield point("checkpoint_requests", number, kind=kind)

    def _of_newest(self) -> Iterator[Point]:
        if self._newest is None:
            return
        newest, metadata = self._newest
        yield point("last_checkpoint_id", newest.checkpoint_id)
        yield point("last_checkpoint_epoch", newest.epoch)
        completed_at_ms = newest.triggered_at_ms + newest.duration_ms
        yield point("last_checkpoint_timestamp", completed_at_ms / 1000)
        yield point("last_checkpoint_duration", newest.duration_ms / 1000)
        yield point("last_checkpoint_size", newest.size_bytes)
        new_bytes = None if self._before is None else sizes_of(metadata, self._before).new_bytes
        if new_bytes is not None:
            yield point("last_checkpoint_new", new_bytes)
        files = {reference.path for reference in metadata.files()}
        yield point("last_checkpoint_files", len(files) + 1)
        yield point("last_checkpoint_info", 1, path=newest.path)
        for phase, duration_ms in metadata.phases_ms.items():
            yield point("last_checkpoint_phase_duration", duration_ms / 1000, phase=phase)
        yield from operator_values(metadata)
