"""The one list of keys: what each sets, how its value is read, and what its documentation says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.settings import values
from pyspark_ckpt.settings.modes import (
    ClaimMode,
    HandOver,
    HighAvailability,
    MetricsReporter,
    Retention,
)
from state_backends import BACKEND_TYPES

PARALLELISM = "spark.ckpt.parallelism.default"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's own setting, which says the parallelism where the library's does not."""

WATERMARK_PER_OPERATOR = "spark.sql.streaming.statefulOperator.allowMultiple"
"""Spark's own setting; where it is false, all stateful operators of a query have one watermark."""

INTERNAL = "spark.ckpt.internal."
HAND_OVER = f"{INTERNAL}execution.hand-over"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: what it sets, how its value is read, and what its documentation says.

    `field` is the field of ``Settings``. `default` is the value as a user would write it. It is
    ``None`` if no value can be written for the default; then `without` describes the default.
    """

    key: str
    field: str
    read: Callable[[str], Any]
    allowed: str
    default: str | None
    meaning: str
    without: str = "none"


_CHECKPOINTING = "spark.ckpt.execution.checkpointing."
_RECOVERY = "spark.ckpt.execution.state-recovery."
_HIGH_AVAILABILITY = "spark.ckpt.high-availability."
_METRICS = "spark.ckpt.metrics."
_QUARANTINE = "spark.ckpt.quarantine."
_CAPTURE = "spark.ckpt.capture."
_RESCALE = "spark.ckpt.rescale."

SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="spark.ckpt.state.backend.type",
        field="backend_type",
        read=values.one_of(*BACKEND_TYPES),
        allowed=f"one of {', '.join(BACKEND_TYPES)}",
        default="rocksdb",
        meaning="`rocksdb`: state on local disk; `heap`: state in memory",
    ),
    Setting(
        key=PARALLELISM,
        field="parallelism",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default=None,
        meaning=(
            "number of subtasks of each operator; overrides "
            "`spark.sql.shuffle.partitions`; set it in the session before you build "
            "the query"
        ),
        without="the cores",
    ),
    Setting(
        key="spark.ckpt.execution.memory-limit",
        field="memory_limit_bytes",
        read=values.memory_bytes,
        allowed="a size of at least 1mb, such as 512mb",
        default="512mb",
        meaning=(
            "memory for the rows and writes of an epoch, per subtask; more than that is spilled"
        ),
    ),
    Setting(
        key=f"{_CHECKPOINTING}interval",
        field="interval_ms",
        read=values.duration_ms,
        allowed="a duration above zero with its unit, such as 500ms, 30s, 5min",
        default="30s",
        meaning="time between checkpoints",
    ),
    Setting(
        key=f"{_CHECKPOINTING}min-pause",
        field="min_pause_ms",
        read=values.pause_ms,
        allowed="a duration with its unit, such as 5s, or 0",
        default="0",
        meaning="least time between the end of a checkpoint and the next periodic one",
    ),
    Setting(
        key=f"{_CHECKPOINTING}timeout",
        field="timeout_ms",
        read=values.duration_ms,
        allowed="a duration above zero with its unit, such as 10min",
        default="10min",
        meaning=(
            "a checkpoint or savepoint that takes longer is aborted, and its Spark "
            "jobs are cancelled"
        ),
    ),
    Setting(
        key=f"{_CHECKPOINTING}tolerable-failed-checkpoints",
        field="tolerable_failed_checkpoints",
        read=values.not_negative,
        allowed="a number of at least 0",
        default="3",
        meaning=("number of failures in a row that the query survives; one more failure stops it"),
    ),
    Setting(
        key=f"{_CHECKPOINTING}externalized-checkpoint-retention",
        field="retention",
        read=values.member_in_capitals(Retention),
        allowed=f"one of {', '.join(Retention)}",
        default="RETAIN_ON_CANCELLATION",
        meaning=(
            "`DELETE_ON_CANCELLATION` deletes checkpoints when the query stops or "
            "ends, but not when it fails; `NO_EXTERNALIZED_CHECKPOINTS` deletes them "
            "in all three cases"
        ),
    ),
    Setting(
        key=f"{_CHECKPOINTING}dir",
        field="checkpoints_directory",
        read=values.directory,
        allowed="a directory",
        default=None,
        meaning=(
            "directory of checkpoints, a path or `s3://bucket/prefix`; each query "
            "gets a directory in it. The location records it, and a start with another one is "
            "refused"
        ),
        without="inside the `checkpointLocation`",
    ),
    Setting(
        key=f"{_CHECKPOINTING}savepoint-dir",
        field="savepoints_directory",
        read=values.directory,
        allowed="a directory",
        default=None,
        meaning=(
            "default directory of `triggerSavepoint`; the command line can take "
            "savepoints only in it"
        ),
    ),
    Setting(
        key=f"{_CHECKPOINTING}num-retained",
        field="num_retained",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default="3",
        meaning="number of checkpoints kept",
    ),
    Setting(
        key=f"{_RECOVERY}path",
        field="restore_path",
        read=values.directory,
        allowed="a savepoint-... or chk-... directory",
        default=None,
        meaning="savepoint or checkpoint to restore from, as `restoreFrom(path)`",
    ),
    Setting(
        key=f"{_RECOVERY}claim-mode",
        field="claim_mode",
        read=values.member_in_capitals(ClaimMode),
        allowed=f"one of {', '.join(ClaimMode)}",
        default="NO_CLAIM",
        meaning=("`CLAIM`: the query deletes the original after its own first checkpoint"),
    ),
    Setting(
        key=f"{_RECOVERY}ignore-unclaimed-state",
        field="allow_non_restored_state",
        read=values.truth,
        allowed="true or false",
        default="false",
        meaning=("`true`: leave behind the state of operators that the query no longer has"),
    ),
    Setting(
        key=f"{_RECOVERY}allow-missing-input",
        field="allow_missing_input",
        read=values.truth,
        allowed="true or false",
        default="false",
        meaning=(
            "`true`: leave out the rows of input that later epochs have read and that is gone"
        ),
    ),
    Setting(
        key=f"{_RECOVERY}fallback",
        field="restore_fallback",
        read=values.truth,
        allowed="true or false",
        default="false",
        meaning=("`true`: if a `chk-N` is corrupt, restore the newest whole checkpoint before it"),
    ),
    Setting(
        key=f"{_HIGH_AVAILABILITY}type",
        field="high_availability_type",
        read=values.member(HighAvailability),
        allowed=f"one of {', '.join(HighAvailability)}",
        default="none",
        meaning="what stores which checkpoints are complete; `none`: the directory of checkpoints",
    ),
    Setting(
        key=f"{_HIGH_AVAILABILITY}zookeeper.quorum",
        field="zookeeper_quorum",
        read=values.quorum,
        allowed="host:port, several with commas between",
        default=None,
        meaning="addresses of the ZooKeeper servers: `host:port`, separated by commas",
    ),
    Setting(
        key=f"{_HIGH_AVAILABILITY}kubernetes.namespace",
        field="kubernetes_namespace",
        read=values.namespace,
        allowed="the name of a namespace",
        default=None,
        meaning="namespace in which each query has a ConfigMap",
        without="that of the driver",
    ),
    Setting(
        key=f"{_QUARANTINE}max-keys",
        field="quarantine_keys",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default="1000",
        meaning="quarantined keys of a subtask; one more fails it ([quarantine](quarantine.md))",
    ),
    Setting(
        key=f"{_QUARANTINE}release-on-start",
        field="releases_at_start",
        read=values.truth,
        allowed="true or false",
        default="false",
        meaning="`true`: each start releases all quarantined keys, as `query.release` per operator",
    ),
    Setting(
        key=f"{_CAPTURE}on-failure",
        field="captures_failures",
        read=values.truth,
        allowed="true or false",
        default="false",
        meaning=(
            "`true`: a task whose processor raises, or that quarantines a key, writes what it saw "
            "of the key into a file, which runs again without Spark ([replay](replay.md))"
        ),
    ),
    Setting(
        key=f"{_RESCALE}enabled",
        field="rescales_by_rule",
        read=values.truth,
        allowed="true or false",
        default="false",
        meaning="give the running query other subtasks by rule ([restore](restore.md#by-rule))",
    ),
    Setting(
        key=f"{_RESCALE}max-parallelism",
        field="rescale_max_parallelism",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default=None,
        meaning="most subtasks that a rule gives; needed with `spark.ckpt.rescale.enabled`",
    ),
    Setting(
        key=f"{_RESCALE}scale-up.epoch-duration",
        field="rescale_up_ms",
        read=values.duration_ms,
        allowed="a duration above zero with its unit, such as 500ms, 30s, 5min",
        default="30s",
        meaning="epochs that take longer double the subtasks",
    ),
    Setting(
        key=f"{_RESCALE}scale-up.backlog",
        field="rescale_up_backlog",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default=None,
        meaning="rows behind a source's newest that double the subtasks, if it reports them",
    ),
    Setting(
        key=f"{_METRICS}reporters",
        field="metrics_reporters",
        read=values.several(MetricsReporter),
        allowed=f"none, or one or more of {', '.join(MetricsReporter)} with commas between",
        default="none",
        meaning="what the [metrics](metrics.md) are reported to; each needs the extra of its name",
    ),
    Setting(
        key=f"{_METRICS}reporter.prometheus.host",
        field="prometheus_host",
        read=values.host,
        allowed="a name or address of this machine, such as 0.0.0.0",
        default="127.0.0.1",
        meaning="where the driver listens for Prometheus; everybody who reaches it can read",
    ),
    Setting(
        key=f"{_METRICS}reporter.prometheus.port",
        field="prometheus_port",
        read=values.port,
        allowed="a port, or 0 for any free port",
        default="9249",
        meaning="port for Prometheus, which all queries of the driver share; 0: any free port",
    ),
)
"""What users set, in the order of the documentation."""

INTERNAL_SETTINGS: tuple[Setting, ...] = (
    Setting(
        key=HAND_OVER,
        field="hand_over",
        read=values.member(HandOver),
        allowed=f"one of {', '.join(HandOver)}",
        default="auto",
        meaning=(
            "how workers hand rows over: `arrow` by a hook in PySpark's worker, `packed` as bytes "
            "in PySpark's own frames. `auto` takes the first where the worker lets it, and the "
            "second costs more, so there is nothing to choose"
        ),
    ),
    Setting(
        key=f"{INTERNAL}state.changelog.periodic-materialize.interval",
        field="materialize_interval_ms",
        read=values.duration_ms,
        allowed="a duration above zero with its unit, such as 10min",
        default="10min",
        meaning=(
            "age at which a changelog of any size becomes a base snapshot, in the background: a "
            "restore after it reads ten minutes of changes at most, in a second or two"
        ),
    ),
    Setting(
        key=f"{INTERNAL}state.changelog.materialize.min-size",
        field="materialize_min_bytes",
        read=values.size_bytes,
        allowed="a size, such as 1mb",
        default="1mb",
        meaning=(
            "a changelog larger than this and than the last base snapshot becomes one too (on "
            "rocksdb than this and 16 MB): a smaller one is read faster than a snapshot is "
            "written"
        ),
    ),
    Setting(
        key=f"{INTERNAL}state.changelog.materialize.max-segments",
        field="materialize_max_segments",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default="100",
        meaning=(
            "a changelog of this many epochs becomes a base snapshot too, because a restore opens "
            "a file for each; at three times as many, the epoch waits for it"
        ),
    ),
    Setting(
        key=f"{INTERNAL}execution.checkpointing.data-inline-threshold",
        field="inline_threshold_bytes",
        read=values.inline_bytes,
        allowed="a size from 0 to 1mb, such as 20kb",
        default="20kb",
        meaning=(
            "changes up to this size are stored in the handle, because a file of its own costs "
            "more; Spark's state store keeps the handle in memory, so it is small"
        ),
    ),
    Setting(
        key=f"{INTERNAL}high-availability.zookeeper.path.root",
        field="zookeeper_root",
        read=values.node,
        allowed="a path of a node, such as /pyspark_ckpt",
        default="/pyspark_ckpt",
        meaning=(
            "ZooKeeper node below which each query has one, by its id: two applications cannot meet"
        ),
    ),
    Setting(
        key=f"{INTERNAL}quarantine.max-rows-per-key",
        field="quarantine_rows_per_key",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default="10000",
        meaning=(
            "rows that are kept of a quarantined key; one more fails the query, because a key "
            "with so many needs its program mended, not more room"
        ),
    ),
    Setting(
        key=f"{INTERNAL}quarantine.max-bytes-per-key",
        field="quarantine_bytes_per_key",
        read=values.size_bytes,
        allowed="a size with its unit, such as 512kb, 16mb",
        default="16mb",
        meaning=("bytes of rows that are kept of a quarantined key, for the same reason"),
    ),
    Setting(
        key=f"{INTERNAL}capture.max-size",
        field="capture_limit_bytes",
        read=values.memory_bytes,
        allowed="a size of at least 1mb, such as 512mb",
        default="64mb",
        meaning=(
            "a subtask's epoch with more rows and state than this is not captured, because a "
            "worker keeps them in memory and a test should not read more"
        ),
    ),
    Setting(
        key=f"{INTERNAL}rescale.min-parallelism",
        field="rescale_min_parallelism",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default="1",
        meaning=("fewest subtasks that a rule gives; an idle query needs no more"),
    ),
    Setting(
        key=f"{INTERNAL}rescale.scale-down.epoch-duration",
        field="rescale_down_ms",
        read=values.duration_ms,
        allowed="a duration above zero with its unit, such as 500ms, 30s, 5min",
        default=None,
        meaning=(
            "epochs that take less halve the subtasks. It has to be at most half of "
            "scale-up.epoch-duration, or a query would go to and fro; a sixth leaves room for "
            "epochs that vary"
        ),
        without="a sixth of scale-up.epoch-duration",
    ),
    Setting(
        key=f"{INTERNAL}rescale.window",
        field="rescale_window",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default="5",
        meaning=(
            "epochs with rows that a rule looks at, since the last restart: fewer follow noise, "
            "more come late"
        ),
    ),
    Setting(
        key=f"{INTERNAL}rescale.min-interval",
        field="rescale_interval_ms",
        read=values.duration_ms,
        allowed="a duration above zero with its unit, such as 500ms, 30s, 5min",
        default="10min",
        meaning=(
            "time between two restarts by rule, so that a restart costs less than a hundredth of "
            "the time"
        ),
    ),
)
"""What nobody should need to set: `meaning` says why the default holds. Tests set them."""

KEYS: Mapping[str, Setting] = {each.key: each for each in (*SETTINGS, *INTERNAL_SETTINGS)}
"""The settings by their keys."""
