"""All metrics of a query: the one list, from which the reporters and the reference page are made.

Counters of subtasks are declared in :mod:`pyspark_ckpt.formats.counters`. To add another metric,
add it to :data:`METRICS` and give it values in :mod:`pyspark_ckpt.metrics.values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark_ckpt.formats.counters import COUNTERS, Unit

PREFIX = "pyspark_ckpt"
QUERY_LABELS = ("query", "query_id")
"""Labels of every metric: the query's name, or its id if it has no name, and its id."""


class Kind(Enum):
    """What may become of a metric's value."""

    COUNTER = "counter"
    """It only grows during a run of the query."""

    GAUGE = "gauge"
    """It may grow and shrink."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    `labels` are added to those of every metric. `flink` is Flink's metric for the same thing.
    """

    name: str
    kind: Kind
    unit: Unit
    help: str
    labels: tuple[str, ...] = ()
    flink: str = ""

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus."""
        parts = (PREFIX, self.name, self.unit.value, "total" if self.kind is Kind.COUNTER else "")
        return "_".join(part for part in parts if part)

    @property
    def opentelemetry_name(self) -> str:
        """The name in OpenTelemetry, which has the unit next to the name."""
        return f"{PREFIX}.{self.name}"


def _gauge(
    name: str, help: str, labels: tuple[str, ...] = (), unit: Unit = Unit.NONE, flink: str = ""
) -> Metric:
    return Metric(name, Kind.GAUGE, unit, help, labels, flink)


def _counter(name: str, help: str, labels: tuple[str, ...] = (), flink: str = "") -> Metric:
    return Metric(name, Kind.COUNTER, Unit.NONE, help, labels, flink)


_OPERATOR = ("operator", "subtasks")
_STATE = ("operator", "state", "subtasks")

_QUERY = (
    _gauge("info", "1, with the ids and versions of this run", ("run_id", "version", "spark")),
    _gauge("started_timestamp", "When this run started, as seconds since 1970", unit=Unit.SECONDS),
    _gauge("epoch", "Number of the newest epoch that Spark has reported"),
    _counter("epochs", "Epochs that Spark has reported in this run"),
    _counter("input_rows", "Rows that the sources have given in this run", flink="numRecordsIn"),
    _gauge("epoch_duration", "Duration of the newest epoch", unit=Unit.SECONDS),
    _gauge(
        "epoch_phase_duration",
        "Duration of a phase of the newest epoch; phases have Spark's names",
        ("phase",),
        Unit.SECONDS,
    ),
    _gauge(
        "watermark_lag",
        "Time from the watermark to the begin of the newest epoch",
        unit=Unit.SECONDS,
        flink="currentInputWatermark",
    ),
    _counter(
        "late_rows",
        "Rows older than the watermark that Spark has dropped before an operator",
        ("operator",),
        flink="numLateRecordsDropped",
    ),
    _gauge(
        "restored_timestamp",
        "When this run started from stored state, as seconds since 1970; else absent",
        unit=Unit.SECONDS,
        flink="lastCheckpointRestoreTimestamp",
    ),
)

_CHECKPOINTS = (
    _counter(
        "checkpoints_completed",
        "Checkpoints that were completed in this run",
        flink="numberOfCompletedCheckpoints",
    ),
    _counter(
        "checkpoints_failed",
        "Checkpoints that were aborted in this run, by reason; 0 for each reason at first",
        ("reason",),
        flink="numberOfFailedCheckpoints",
    ),
    _gauge(
        "checkpoints_in_progress",
        "Checkpoints under way: 0 or 1",
        flink="numberOfInProgressCheckpoints",
    ),
    _gauge(
        "last_checkpoint_id", "Number of the newest checkpoint", flink="lastCompletedCheckpointId"
    ),
    _gauge("last_checkpoint_epoch", "Epoch of the newest checkpoint"),
    _gauge(
        "last_checkpoint_timestamp",
        "When the newest checkpoint was complete, as seconds since 1970",
        unit=Unit.SECONDS,
    ),
    _gauge(
        "last_checkpoint_duration",
        "Duration of the newest checkpoint",
        unit=Unit.SECONDS,
        flink="lastCheckpointDuration",
    ),
    _gauge(
        "last_checkpoint_new",
        "Bytes of the newest checkpoint that are not in the one before; absent for the first",
        unit=Unit.BYTES,
        flink="lastCheckpointSize",
    ),
    _gauge(
        "last_checkpoint_size",
        "Bytes of all files that the newest checkpoint refers to",
        unit=Unit.BYTES,
        flink="lastCheckpointFullSize",
    ),
    _gauge("last_checkpoint_files", "Files that the newest checkpoint refers to"),
    _gauge(
        "last_checkpoint_info",
        "1, with the path of the newest checkpoint",
        ("path",),
        flink="lastCheckpointExternalPath",
    ),
    _gauge(
        "last_checkpoint_phase_duration",
        "Duration of a phase of the newest checkpoint: handles, sources, verification",
        ("phase",),
        Unit.SECONDS,
    ),
    _counter(
        "checkpoint_requests",
        "Requests of the driver to the storage for checkpoints, by kind; none on a disk",
        ("kind",),
    ),
)

_OPERATORS = (
    *(
        _gauge(each.metric, each.help, _OPERATOR, each.unit, each.flink)
        for each in COUNTERS.values()
        if each.metric
    ),
    _gauge("operator_stored", "Stored state: base snapshot and changelog", _OPERATOR, Unit.BYTES),
    _gauge("operator_changelog", "Stored changelog", _OPERATOR, Unit.BYTES),
    _gauge("operator_changelog_segments", "Segments of the changelog", _OPERATOR),
    _gauge("operator_timers", "Timers that wait; absent until they are counted", _OPERATOR),
    _gauge(
        "operator_timer_overdue",
        "How long the earliest timer or expiry has been due at the end of the epoch, or 0",
        _OPERATOR,
        Unit.SECONDS,
    ),
    _gauge("state_keys", "Keys of a state; absent until they are counted", _STATE),
    _gauge("state_entries", "Entries of a state; a list or map has several per key", _STATE),
    _gauge("state_size", "Keys and values of a state, before compression", _STATE, Unit.BYTES),
)

ROCKSDB_PROPERTIES: Mapping[str, tuple[str, Unit]] = {
    "block-cache-capacity": ("Capacity of the block cache", Unit.BYTES),
    "block-cache-usage": ("Blocks in the block cache", Unit.BYTES),
    "block-cache-pinned-usage": ("Pinned blocks in the block cache", Unit.BYTES),
    "cur-size-all-mem-tables": ("Active and unflushed memtables", Unit.BYTES),
    "size-all-mem-tables": ("Active, unflushed and pinned memtables", Unit.BYTES),
    "num-immutable-mem-table": ("Memtables that are not flushed yet", Unit.NONE),
    "num-entries-active-mem-table": ("Entries in the active memtable", Unit.NONE),
    "mem-table-flush-pending": ("Databases with a flush that waits", Unit.NONE),
    "num-running-flushes": ("Flushes that run", Unit.NONE),
    "compaction-pending": ("Databases with a compaction that waits", Unit.NONE),
    "num-running-compactions": ("Compactions that run", Unit.NONE),
    "estimate-pending-compaction-bytes": ("Bytes that compactions have yet to rewrite", Unit.BYTES),
    "total-sst-files-size": ("SST files of all versions", Unit.BYTES),
    "live-sst-files-size": ("SST files of the newest version", Unit.BYTES),
    "estimate-live-data-size": ("Live data, estimated", Unit.BYTES),
    "estimate-num-keys": ("Keys, estimated", Unit.NONE),
    "estimate-table-readers-mem": ("Memory of indexes and filters outside the cache", Unit.BYTES),
    "num-snapshots": ("Snapshots that are not released", Unit.NONE),
    "num-live-versions": ("Versions that are live", Unit.NONE),
    "background-errors": ("Errors of background work", Unit.NONE),
    "actual-delayed-write-rate": (
        "Bytes a second to which writes are slowed down; 0 if not",
        Unit.NONE,
    ),
    "is-write-stopped": ("Databases that accept no writes", Unit.NONE),
}
"""RocksDB's properties that are reported, with the names that Flink reports them by."""


def rocksdb_metric(name: str) -> Metric:
    """Return the metric of one of RocksDB's properties."""
    meaning, unit = ROCKSDB_PROPERTIES[name]
    metric_name = "rocksdb_" + name.replace("-", "_")
    return Metric(
        metric_name.removesuffix(f"_{unit.value}") if unit.value else metric_name,
        Kind.GAUGE,
        unit,
        meaning,
        _OPERATOR,
        f"rocksdb.{name}",
    )


GROUPS: Mapping[str, tuple[Metric, ...]] = {
    "Query": _QUERY,
    "Checkpoints": _CHECKPOINTS,
    "Operators and states": _OPERATORS,
    "RocksDB": tuple(map(rocksdb_metric, ROCKSDB_PROPERTIES)),
}
"""The metrics in the order of the documentation."""

METRICS: Mapping[str, Metric] = {
    metric.name: metric for metrics in GROUPS.values() for metric in metrics
}
"""The metrics by their names."""
