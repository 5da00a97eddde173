"""The settings of a query: the one list of keys, and how they are read from Spark's conf.

A key is ``spark.ckpt.`` and Flink's current name for the same setting. Values come from the Spark
conf (``--conf``, a properties file, the session) or from writer options. An option overrides the
conf. A query reads its settings once, when it starts.

To add a setting, add a field to :class:`Settings` and an entry to :data:`SETTINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.settings import values
from pyspark_ckpt.settings.modes import ClaimMode, HighAvailability, Retention
from state_backends import BACKEND_TYPES

PREFIX = "spark.ckpt."
_INTERNAL = "spark.ckpt.internal."
RUNTIME_KEY = f"{_INTERNAL}runtime"
"""Carries the settings of a started query to its tasks; not for users."""

EPOCH_KEY = f"{_INTERNAL}epoch"
"""Carries the epoch from ``foreachBatch`` to the tasks of all its actions; not for users."""
PARALLELISM = "spark.ckpt.parallelism.default"


@dataclass(frozen=True, slots=True)
class Materialization:
    """When a subtask's changelog becomes a new base snapshot: at the first limit it reaches."""

    interval_ms: int = 600_000
    min_changelog_bytes: int = 1024**2
    max_segments: int = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one query, parsed and checked."""

    backend_type: str = "rocksdb"
    parallelism: int | None = None
    interval_ms: int = 30_000
    min_pause_ms: int = 0
    timeout_ms: int = 600_000
    tolerable_failed_checkpoints: int = 3
    retention: Retention = Retention.RETAIN_ON_CANCELLATION
    checkpoints_directory: str | None = None
    savepoints_directory: str | None = None
    num_retained: int = 3
    inline_threshold_bytes: int = 20 * 1024
    memory_limit_bytes: int = 512 * 1024**2
    high_availability_type: HighAvailability = HighAvailability.NONE
    zookeeper_quorum: str | None = None
    zookeeper_root: str = "/pyspark_ckpt"
    etcd_endpoints: str | None = None
    etcd_root: str = "/pyspark_ckpt"
    kubernetes_namespace: str | None = None
    materialize_interval_ms: int = 600_000
    materialize_min_bytes: int = 1024**2
    materialize_max_segments: int = 100
    restore_path: str | None = None
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False
    restore_fallback: bool = False

    @property
    def materialization(self) -> Materialization:
        """When a changelog becomes a new base snapshot."""
        return Materialization(
            self.materialize_interval_ms, self.materialize_min_bytes, self.materialize_max_segments
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: what it sets, how its value is read, and what its documentation says.

    `field` is the field of :class:`Settings`. It is ``None`` if only one value is allowed, so the
    key has no effect. `default` is the value as a user would write it. It is ``None`` if no value
    can be written for the default; then `without` describes the default.
    """

    key: str
    field: str | None
    read: Callable[[str], Any]
    allowed: str
    default: str | None
    meaning: str
    without: str = "none"


_CHECKPOINTING = "spark.ckpt.execution.checkpointing."
_CHANGELOG = "spark.ckpt.state.changelog."
_RECOVERY = "spark.ckpt.execution.state-recovery."
_HIGH_AVAILABILITY = "spark.ckpt.high-availability."

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
        key=f"{_CHANGELOG}periodic-materialize.interval",
        field="materialize_interval_ms",
        read=values.duration_ms,
        allowed="a duration above zero with its unit, such as 10min",
        default="10min",
        meaning=("age at which a changelog is materialised as a base snapshot, in the background"),
    ),
    Setting(
        key=f"{_CHANGELOG}materialize.min-size",
        field="materialize_min_bytes",
        read=values.size_bytes,
        allowed="a size, such as 1mb",
        default="1mb",
        meaning=(
            "a changelog larger than this and than the last base snapshot is materialised too"
        ),
    ),
    Setting(
        key=f"{_CHANGELOG}materialize.max-segments",
        field="materialize_max_segments",
        read=values.at_least_one,
        allowed="a number of at least 1",
        default="100",
        meaning=(
            "a changelog of this many epochs is materialised too; at three times as "
            "many, the epoch waits for it"
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
        key=f"{_CHECKPOINTING}max-concurrent-checkpoints",
        field=None,
        read=values.exactly_one,
        allowed="1: an epoch is over before its checkpoint begins, so a second one gains nothing",
        default="1",
        meaning=("only 1 is allowed, because an epoch is over before its checkpoint begins"),
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
            "gets a directory in it"
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
        key=f"{_CHECKPOINTING}data-inline-threshold",
        field="inline_threshold_bytes",
        read=values.inline_bytes,
        allowed="a size from 0 to 1mb, such as 20kb",
        default="20kb",
        meaning=("state changes up to this size are stored in the handle, without a file"),
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
        key=f"{_HIGH_AVAILABILITY}zookeeper.path.root",
        field="zookeeper_root",
        read=values.node,
        allowed="a path of a node, such as /pyspark_ckpt",
        default="/pyspark_ckpt",
        meaning="ZooKeeper node below which each query has one",
    ),
    Setting(
        key=f"{_HIGH_AVAILABILITY}etcd.endpoints",
        field="etcd_endpoints",
        read=values.endpoints,
        allowed="http://host:port or https://host:port, several with commas between",
        default=None,
        meaning="addresses of the etcd servers: `https://host:port`, separated by commas",
    ),
    Setting(
        key=f"{_HIGH_AVAILABILITY}etcd.path.root",
        field="etcd_root",
        read=values.node,
        allowed="a path, such as /pyspark_ckpt",
        default="/pyspark_ckpt",
        meaning="prefix below which the keys of each query are in etcd",
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
)
"""Every key that a user may set, in the order of the documentation."""

KEYS: Mapping[str, Setting] = {each.key: each for each in SETTINGS}
"""The settings by their keys."""


def read_settings(conf: Mapping[str, str], options: Mapping[str, str]) -> Settings:
    """Parse and check all ``spark.ckpt.`` keys of the conf and of the writer's options.

    Raises
    ------
    ConfigurationError
        If a key is unknown or a value is not allowed. The message names key, value and what is
        allowed.
    """
    given = {key: value for key, value in conf.items() if _is_ours(key)}
    given.update({key: value for key, value in options.items() if _is_ours(key)})
    parsed = [_parse(name, value) for name, value in given.items()]
    return Settings(**{field: value for field, value in parsed if field is not None})


def is_ckpt_option(key: str) -> bool:
    """Return whether a writer option is a setting of this library."""
    return key.startswith(PREFIX)


def _is_ours(key: str) -> bool:
    return key.startswith(PREFIX) and not key.startswith(_INTERNAL)


def _parse(name: str, value: str) -> tuple[str | None, Any]:
    """Return the field of Settings that a key sets, or ``None``, and the key's value."""
    setting = KEYS.get(name)
    if setting is None:
        raise ConfigurationError(
            f"unknown setting {name!r} (value {value!r}): use one of {', '.join(sorted(KEYS))}"
        )
    try:
        return setting.field, setting.read(str(value).strip())
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigurationError(
            f"setting {name!r} cannot be {value!r}: use {setting.allowed}"
        ) from exc
