"""The settings of a query, and how they are read from Spark's conf or from a properties file.

A key is ``spark.ckpt.`` and Flink's current name for the same setting. Values come from the Spark
conf (``--conf``, a properties file, the session) or from writer options. An option overrides the
conf. A query reads its settings once, when it starts.

To add a setting, add a field to :class:`Settings` and an entry to ``SETTINGS`` in ``keys.py``. What
nobody should need to set is one of ``INTERNAL_SETTINGS``, with the reason; tests set it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from enum import Enum
from pathlib import Path
from typing import Any

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.settings.keys import INTERNAL, KEYS, SETTINGS
from pyspark_ckpt.settings.modes import (
    ClaimMode,
    HandOver,
    HighAvailability,
    MetricsReporter,
    Retention,
)

PREFIX = "spark.ckpt."

RUNTIME_KEY = f"{INTERNAL}runtime"
"""Carries the settings of a started query to its tasks; not for users."""

EPOCH_KEY = f"{INTERNAL}epoch"
"""Carries the epoch from ``foreachBatch`` to the tasks of all its actions; not for users."""


@dataclass(frozen=True, slots=True)
class Materialization:
    """When a subtask's changelog becomes a new base snapshot: at the first limit it reaches."""

    interval_ms: int = 600_000
    min_changelog_bytes: int = 1024**2
    max_segments: int = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one query, parsed and checked.

    `given` has the text of each key that was given, and where: ``option``, ``conf``,
    ``restoreFrom``, or ``location`` for what the query's location has.
    """

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
    hand_over: HandOver = HandOver.AUTO
    high_availability_type: HighAvailability = HighAvailability.NONE
    zookeeper_quorum: str | None = None
    zookeeper_root: str = "/pyspark_ckpt"
    kubernetes_namespace: str | None = None
    materialize_interval_ms: int = 600_000
    materialize_min_bytes: int = 1024**2
    materialize_max_segments: int = 100
    restore_path: str | None = None
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False
    allow_missing_input: bool = False
    restore_fallback: bool = False
    quarantine_keys: int = 1_000
    quarantine_rows_per_key: int = 10_000
    quarantine_bytes_per_key: int = 16 * 1024**2
    releases_at_start: bool = False
    captures_failures: bool = False
    capture_limit_bytes: int = 64 * 1024**2
    rescales_by_rule: bool = False
    rescale_min_parallelism: int = 1
    rescale_max_parallelism: int | None = None
    rescale_up_ms: int = 30_000
    rescale_up_backlog: int | None = None
    rescale_down_ms: int | None = None
    rescale_window: int = 5
    rescale_interval_ms: int = 600_000
    metrics_reporters: tuple[MetricsReporter, ...] = ()
    prometheus_host: str = "127.0.0.1"
    prometheus_port: int = 9249
    given: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False)

    def with_values(self, source: str, **values: Any) -> Settings:
        """Return the settings with other values of some fields, which `source` has given."""
        given = {
            setting.key: (_text(values[setting.field]), source)
            for setting in KEYS.values()
            if setting.field in values
        }
        return replace(self, **values, given={**self.given, **given})

    @property
    def materialization(self) -> Materialization:
        """When a changelog becomes a new base snapshot."""
        return Materialization(
            self.materialize_interval_ms, self.materialize_min_bytes, self.materialize_max_segments
        )


def read_settings(conf: Mapping[str, str], options: Mapping[str, str]) -> Settings:
    """Parse and check all ``spark.ckpt.`` keys of the conf and of the writer's options."""
    given = {key: value for key, value in conf.items() if _is_ours(key)}
    given.update({key: value for key, value in options.items() if _is_ours(key)})
    parsed = [_parse(name, value) for name, value in given.items()]
    sources = {
        key: (str(value), "option" if key in options else "conf") for key, value in given.items()
    }
    return Settings(**dict(parsed), given=sources)


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


_SHORT, _ALIKE = 4, 0.85
"""Of the last part of a name: letters, and the ratio from which two are taken for one."""


def is_ckpt_option(key: str) -> bool:
    """Return whether a writer option is a setting of this library."""
    return key.startswith(PREFIX)


def _is_ours(key: str) -> bool:
    return key.startswith(PREFIX) and key not in (RUNTIME_KEY, EPOCH_KEY)


def _may_mean(name: str, key: str) -> bool:
    """Return whether a key may be what an unknown name means: a part of it, or nearly all."""
    parent, _, last = name.lower().rpartition(".")
    own_parent, _, own_last = key.rpartition(".")
    if parent == own_parent:
        is_part = last in own_last.split("-") or (len(last) > _SHORT and last in own_last)
        return is_part or SequenceMatcher(None, last, own_last).ratio() > _ALIKE
    return own_parent == name.lower()


def _parse(name: str, value: str) -> tuple[str, Any]:
    """Return the field of Settings that a key sets, and the key's value."""
    setting = KEYS.get(name)
    if setting is None:
        keys = sorted(each.key for each in SETTINGS)
        meant = [key for key in keys if _may_mean(name, key)]
        perhaps = f"perhaps {' or '.join(meant)} is meant; " if meant else ""
        raise ConfigurationError(
            f"unknown setting {name!r} (value {value!r}): {perhaps}use one of {', '.join(keys)}"
        )
    try:
        return setting.field, setting.read(str(value).strip())
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigurationError(
            f"setting {name!r} cannot be {value!r}: use {setting.allowed}"
        ) from exc


def read_conf_file(path: str | Path) -> dict[str, str]:
    """Read a properties file such as ``conf/rocksdb.conf`` for a session builder.

    ``SparkSession.builder.config(map=read_conf_file("conf/rocksdb.conf"))`` does for a notebook
    what ``spark-submit --properties-file`` does for a job.

    Parameters
    ----------
    path : str or pathlib.Path
        The file, on the driver.

    Returns
    -------
    dict of str to str
        Key and value of each line; comments and empty lines are left out.

    Raises
    ------
    ConfigurationError
        If a line is not a pair, or has an unknown ``spark.ckpt.`` key or a value that is not
        allowed.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> conf = Path(directory, "heap.conf")
    >>> _ = conf.write_text("spark.ckpt.state.backend.type  heap")
    >>> ckpt.read_conf_file(conf)
    {'spark.ckpt.state.backend.type': 'heap'}
    """
    values: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        match = re.fullmatch(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)", stripped)
        if match is None:
            raise ConfigurationError(
                f"{path}, line {number}: {stripped!r} has no value: write a key and a value"
            )
        values[match[1]] = match[2]
    read_settings(values, {})
    return values
