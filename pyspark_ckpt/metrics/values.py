"""The values of all metrics of one running query, on the driver, with their labels.

They come from what the driver has anyway: the handles and outcomes of checkpoints, and Spark's
reports of epochs. No Spark job is added. Values are computed when a reporter asks for them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.clock import ms_of_text, now_ms
from pyspark_ckpt.formats.counters import COUNTERS
from pyspark_ckpt.formats.handle import Handle, StateCounts
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.log import sizes_of
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.metrics.declared import METRICS, ROCKSDB_PROPERTIES, rocksdb_metric
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


class EpochValues:
    """What the epochs of one run of a query add up to, and the newest of them.

    `operators` has the uids by the places of the operators among Spark's stateful operators.
    """

    def __init__(self, operators: Mapping[int, str]) -> None:
        self._operators = operators
        self.epoch: int | None = None
        self._epochs = 0
        self._rows = 0
        self._late: dict[str, int] = {}
        self._newest: Mapping[str, Any] = {}

    def add(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Count epochs that Spark has reported; epochs that were counted before are left out."""
        for report in reports:
            epoch = report["batchId"]
            if self.epoch is not None and epoch <= self.epoch:
                continue
            self.epoch = epoch
            self._epochs += 1
            self._rows += sum(
                max(source.get("numInputRows") or 0, 0) for source in report.get("sources", [])
            )
            stateful = report.get("stateOperators", [])
            for number, uid in self._operators.items():
                if number < len(stateful):
                    late = stateful[number].get("numRowsDroppedByWatermark") or 0
                    self._late[uid] = self._late.get(uid, 0) + late
            self._newest = report

    def points(self) -> Iterator[Point]:
        """Yield the values."""
        yield point("epochs", self._epochs)
        yield point("input_rows", self._rows)
        for uid, late in self._late.items():
            yield point("late_rows", late, operator=uid)
        if self.epoch is None:
            return
        yield point("epoch", self.epoch)
        durations = dict(self._newest["durationMs"])
        yield point("epoch_duration", durations.pop("triggerExecution", 0) / 1000)
        for phase, duration_ms in durations.items():
            yield point("epoch_phase_duration", duration_ms / 1000, phase=phase)
        watermark = self._newest.get("eventTime", {}).get("watermark")
        if watermark is not None and (watermark_ms := ms_of_text(watermark)) > 0:
            lag_ms = ms_of_text(self._newest["timestamp"]) - watermark_ms
            yield point("watermark_lag", lag_ms / 1000)


def operator_values(metadata: CheckpointMetadata) -> Iterator[Point]:
    """Yield what each operator did in the epoch of a checkpoint, and the sizes of its states.

    A subtask that Spark did not call in the epoch counts as 0, as does one that Spark has never
    called, which has no handle.
    """
    for operator in metadata.operators:
        if operator.handles:
            idle = max(operator.parallelism - len(operator.handles), 0)
            yield from _of_subtasks(metadata, operator.uid, operator.handles, idle)
            yield from _of_rocksdb(operator.uid, operator.handles)


def _of_subtasks(
    metadata: CheckpointMetadata, uid: str, handles: Sequence[Handle], idle: int
) -> Iterator[Point]:
    over = partial(_over_subtasks, idle=idle, operator=uid)
    counted = [handle.counted(metadata.epoch) for handle in handles]
    for name, counter in COUNTERS.items():
        if counter.metric:
            yield from over(counter.metric, [counter.reported(each[name]) for each in counted])
    changelogs = [sum(each.size_bytes for each in handle.segments) for handle in handles]
    bases = [0 if handle.base is None else handle.base.size_bytes for handle in handles]
    stored = [base + changelog for base, changelog in zip(bases, changelogs, strict=True)]
    yield from over("operator_stored", stored)
    yield from over("operator_changelog", changelogs)
    yield from over("operator_changelog_segments", [len(handle.segments) for handle in handles])
    yield from over("operator_timer_overdue", [_overdue_s(handle, metadata) for handle in handles])
    yield from _counted(uid, handles, idle)


def _over_subtasks(
    name: str, values: Sequence[float], *, idle: int = 0, **labels: str
) -> Iterator[Point]:
    values = [*values, *[0] * idle]
    yield point(name, min(values), subtasks="min", **labels)
    yield point(name, max(values), subtasks="max", **labels)
    yield point(name, sum(values), subtasks="sum", **labels)


def _overdue_s(handle: Handle, metadata: CheckpointMetadata) -> float:
    """Return how long a subtask should have been called again, by the clock of its timers."""
    now_ms = (
        metadata.triggered_at_ms
        if handle.time_mode is TimeMode.PROCESSING_TIME
        else metadata.watermark_ms
    )
    if handle.timeout_ms is None or now_ms is None:
        return 0
    return max(now_ms - handle.timeout_ms, 0) / 1000


def _counted(uid: str, handles: Sequence[Handle], idle: int) -> Iterator[Point]:
    """Yield the counts of keyed state, extrapolated from the key groups that were counted."""
    counts = [handle.counts for handle in handles if handle.counts and handle.counts.groups]
    if len(counts) != len(handles):
        return  # some subtask has not counted yet
    over = partial(_over_subtasks, idle=idle, operator=uid)
    yield from over("operator_timers", [_scale(each) * each.timers for each in counts])
    names = {state.name for each in counts for state in each.states}
    for name in sorted(names):
        keys, entries, sizes = [], [], []
        for each in counts:
            (of_state,) = [state for state in each.states if state.name == name] or (None,)
            scale = _scale(each)
            keys.append(0 if of_state is None else scale * of_state.keys)
            entries.append(0 if of_state is None else scale * of_state.entries)
            sizes.append(0 if of_state is None else scale * of_state.size_bytes)
        yield from over("state_keys", keys, state=name)
        yield from over("state_entries", entries, state=name)
        yield from over("state_size", sizes, state=name)


def _scale(counts: StateCounts) -> float:
    return counts.of_groups / counts.groups


def _of_rocksdb(uid: str, handles: Sequence[Handle]) -> Iterator[Point]:
    found = [handle.metrics.backend for handle in handles if handle.metrics is not None]
    known = [each for each in found if each]
    if not known:
        return
    for name in ROCKSDB_PROPERTIES:
        values = [each.get(name, 0) for each in known]
        yield from _over_subtasks(rocksdb_metric(name).name, values, operator=uid)


class Point(NamedTuple):
    """A value; `labels` has one value for each label of the metric, in its order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def point(name: str, value: float, **labels: str) -> Point:
    """Return a value of a declared metric."""
    return Point(name, value, in_order(name, labels))


def in_order(name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of a metric's labels in the order in which they are declared."""
    declared = METRICS[name].labels
    assert set(labels) == set(declared), f"{name} has the labels {declared}, not {tuple(labels)}"
    return tuple(labels[label] for label in declared)
