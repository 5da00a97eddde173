"""The conf keys of the library: names, defaults, allowed values.

A key is ``spark.ckpt.`` and Flink's current name for the same setting. Values come from the Spark
conf (``--conf``, a properties file, the session) or from writer options, the option winning. They
are bound when a query starts.

How the values of settings are written: words, numbers, durations, sizes.

Each function reads a text and raises ValueError, or KeyError for an unknown word, if that is not
allowed; :mod:`pyspark_ckpt.settings` says what is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_ckpt.errors import ConfigurationError
from state_backends import BACKEND_TYPES

_TIME_UNITS_MS = {
    "ms": 1, "s": 1000, "sec": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_SIZE_UNITS = {
    "": 1, "b": 1, "kb": 1024, "k": 1024, "mb": 1024**2, "m": 1024**2, "gb": 1024**3, "g": 1024**3,
}  # fmt: skip
MIN_MEMORY_BYTES = 1024**2
MAX_INLINE_BYTES = 1024**2


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return what reads one of some words, in small letters."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(text)
        return text.lower()

    return parse


def one_in_capitals(*allowed: str) -> Callable[[str], str]:
    """Return what reads one of some words, in capitals."""

    # Flink's documentation writes them in capitals, its programs take both.
    def parse(text: str) -> str:
        if text.upper() not in allowed:
            raise ValueError(text)
        return text.upper()

    return parse


def truth(text: str) -> bool:
    """Read ``true`` or ``false``."""
    return {"true": True, "false": False}[text.lower()]


def pause_ms(text: str) -> int:
    """Read a duration, or 0 without a unit; in milliseconds."""
    return 0 if text == "0" else _milliseconds(text)


def _milliseconds(text: str) -> int:
    number, unit = _number_and_unit(text)
    return number * _TIME_UNITS_MS[unit]


def duration_ms(text: str) -> int:
    """Read a duration above zero, in milliseconds."""
    milliseconds = _milliseconds(text)
    if milliseconds <= 0:
        raise ValueError(text)
    return milliseconds


def inline_bytes(text: str) -> int:
    """Read a size of at most :data:`MAX_INLINE_BYTES`."""
    size = size_bytes(text)
    if size > MAX_INLINE_BYTES:
        raise ValueError(text)
    return size


def memory_bytes(text: str) -> int:
    """Read a size of at least :data:`MIN_MEMORY_BYTES`."""
    size = size_bytes(text)
    if size < MIN_MEMORY_BYTES:
        raise ValueError(text)
    return size


def size_bytes(text: str) -> int:
    """Read a size."""
    number, unit = _number_and_unit(text)
    return number * _SIZE_UNITS[unit]


def _number_and_unit(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"(\d{1,12})\s*([a-zA-Z]*)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]), match[2].lower()


def at_least_one(text: str) -> int:
    """Read a whole number above zero."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def exactly_one(text: str) -> int:
    """Read the number 1, the only one allowed."""
    if int(text) != 1:
        raise ValueError(text)
    return 1


def not_negative(text: str) -> int:
    """Read a whole number."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def node(text: str) -> str:
    """Read the path of a ZooKeeper node; one with ``.`` or ``..`` in it is none."""
    if re.fullmatch(r"(/[A-Za-z0-9_.-]+)+", text) is None or {".", ".."} & set(text.split("/")):
        raise ValueError(text)
    return text


def quorum(text: str) -> str:
    """Read the addresses of ZooKeeper servers, ``host:port`` with commas between."""
    if re.fullmatch(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*", text) is None:
        raise ValueError(text)
    return text


def directory(text: str) -> str:
    """Read a path, which is not empty; the storage says whether it can be used."""
    if not text:
        raise ValueError(text)
    return text


PREFIX = "spark.ckpt."
_INTERNAL = "spark.ckpt.internal."
RUNTIME_KEY = f"{_INTERNAL}runtime"
"""Carries the bound settings from ``start()`` to the tasks; not for users."""

EPOCH_KEY = f"{_INTERNAL}epoch"
"""Carries the epoch from ``foreachBatch`` to the tasks of all its actions; not for users."""
PARALLELISM = "spark.ckpt.parallelism.default"

NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
ZOOKEEPER = "zookeeper"
_HIGH_AVAILABILITY = ("none", ZOOKEEPER)
_RETENTIONS = (NO_EXTERNALIZED_CHECKPOINTS, DELETE_ON_CANCELLATION, RETAIN_ON_CANCELLATION)
NO_CLAIM = "NO_CLAIM"
CLAIM = "CLAIM"
CLAIM_MODES = (NO_CLAIM, CLAIM)


@dataclass(frozen=True, slots=True)
class Materialization:
    """When a subtask's changelog becomes a new base snapshot: whichever comes first."""

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
    max_concurrent_checkpoints: int = 1
    tolerable_failed_checkpoints: int = 3
    retention: str = RETAIN_ON_CANCELLATION
    checkpoints_directory: str | None = None
    savepoints_directory: str | None = None
    num_retained: int = 3
    inline_threshold_bytes: int = 20 * 1024
    memory_limit_bytes: int = 512 * 1024**2
    high_availability_type: str = "none"
    zookeeper_quorum: str | None = None
    zookeeper_root: str = "/pyspark_ckpt"
    materialize_interval_ms: int = 600_000
    materialize_min_bytes: int = 1024**2
    materialize_max_segments: int = 100
    restore_path: str | None = None
    claim_mode: str = NO_CLAIM
    allow_non_restored_state: bool = False
    restore_fallback: bool = False

    @property
    def materialization(self) -> Materialization:
        """When a changelog becomes a new base snapshot."""
        return Materialization(
            self.materialize_interval_ms, self.materialize_min_bytes, self.materialize_max_segments
        )


@dataclass(frozen=True, slots=True)
class _Key:
    field: str
    parse: Callable[[str], Any]
    allowed: str


def read_settings(conf: Mapping[str, str], options: Mapping[str, str]) -> Settings:
    """Parse and check all ``spark.ckpt.`` keys of the conf and of the writer's options.

    Raises
    ------
    ConfigurationError
        If a key is unknown or a value is not allowed; names key, value and what is allowed.
    """
    given = {key: value for key, value in conf.items() if _is_ours(key)}
    given.update({key: value for key, value in options.items() if _is_ours(key)})
    return Settings(**dict(_parse(name, value) for name, value in given.items()))


def read_conf_file(path: str | Path) -> dict[str, str]:
    """Read a properties file such as ``conf/rocksdb.conf`` for a session builder.

    ``SparkSession.builder.config(map=read_conf_file("conf/rocksdb.conf"))`` does for a notebook
    what ``spark-submit --properties-file`` does for a job.

    Returns
    -------
    dict
        Key and value of each line; comments and empty lines left out.

    Raises
    ------
    ConfigurationError
        If a line is no pair, or has an unknown ``spark.ckpt.`` key or a value not allowed.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        match = re.fullmatch(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)", stripped)
        if match is None:
            raise ConfigurationError(f"{path}, line {number}: {stripped!r} is no 'key value' pair")
        values[match[1]] = match[2]
    read_settings(values, {})
    return values


def is_ckpt_option(key: str) -> bool:
    """Tell whether a writer option is a setting of this library."""
    return key.startswith(PREFIX)


def _is_ours(key: str) -> bool:
    return key.startswith(PREFIX) and not key.startswith(_INTERNAL)


def _key(name: str, value: str) -> _Key:
    try:
        return KEYS[name]
    except KeyError:
        raise ConfigurationError(
            f"unknown setting {name!r} (value {value!r}): allowed are {', '.join(sorted(KEYS))}"
        ) from None


def _parse(name: str, value: str) -> tuple[str, Any]:
    """Return the field of Settings that a key sets, and its value."""
    key = _key(name, value)
    try:
        return key.field, key.parse(str(value).strip())
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigurationError(
            f"setting {name!r} has the value {value!r}: allowed is {key.allowed}"
        ) from exc


_CHECKPOINTING = "spark.ckpt.execution.checkpointing."
_CHANGELOG = "spark.ckpt.state.changelog."
_RECOVERY = "spark.ckpt.execution.state-recovery."

KEYS: Mapping[str, _Key] = {
    PARALLELISM: _Key("parallelism", at_least_one, "a number of at least 1"),
    "spark.ckpt.state.backend.type": _Key(
        "backend_type", one_of(*BACKEND_TYPES), f"one of {', '.join(BACKEND_TYPES)}"
    ),
    f"{_CHANGELOG}periodic-materialize.interval": _Key(
        "materialize_interval_ms",
        duration_ms,
        "a duration above zero with its unit, such as 10min",
    ),
    f"{_CHANGELOG}materialize.min-size": _Key(
        "materialize_min_bytes", size_bytes, "a size, such as 1mb"
    ),
    f"{_CHANGELOG}materialize.max-segments": _Key(
        "materialize_max_segments", at_least_one, "a number of at least 1"
    ),
    "spark.ckpt.execution.memory-limit": _Key(
        "memory_limit_bytes", memory_bytes, "a size of at least 1mb, such as 512mb"
    ),
    "spark.ckpt.high-availability.type": _Key(
        "high_availability_type",
        one_of(*_HIGH_AVAILABILITY),
        f"one of {', '.join(_HIGH_AVAILABILITY)}",
    ),
    "spark.ckpt.high-availability.zookeeper.quorum": _Key(
        "zookeeper_quorum", quorum, "host:port, several with commas between"
    ),
    "spark.ckpt.high-availability.zookeeper.path.root": _Key(
        "zookeeper_root", node, "a path of a node, such as /pyspark_ckpt"
    ),
    f"{_CHECKPOINTING}interval": _Key(
        "interval_ms", duration_ms, "a duration above zero with its unit, such as 500ms, 30s, 5min"
    ),
    f"{_CHECKPOINTING}min-pause": _Key(
        "min_pause_ms", pause_ms, "a duration with its unit, such as 5s, or 0"
    ),
    f"{_CHECKPOINTING}timeout": _Key(
        "timeout_ms", duration_ms, "a duration above zero with its unit, such as 10min"
    ),
    f"{_CHECKPOINTING}max-concurrent-checkpoints": _Key(
        "max_concurrent_checkpoints",
        exactly_one,
        "1: an epoch is over before its checkpoint begins, so a second one at a time gains nothing",
    ),
    f"{_CHECKPOINTING}tolerable-failed-checkpoints": _Key(
        "tolerable_failed_checkpoints", not_negative, "a number of at least 0"
    ),
    f"{_CHECKPOINTING}externalized-checkpoint-retention": _Key(
        "retention", one_in_capitals(*_RETENTIONS), f"one of {', '.join(_RETENTIONS)}"
    ),
    f"{_CHECKPOINTING}dir": _Key("checkpoints_directory", directory, "a directory"),
    f"{_CHECKPOINTING}savepoint-dir": _Key("savepoints_directory", directory, "a directory"),
    f"{_CHECKPOINTING}num-retained": _Key("num_retained", at_least_one, "a number of at least 1"),
    f"{_CHECKPOINTING}data-inline-threshold": _Key(
        "inline_threshold_bytes", inline_bytes, "a size from 0 to 1mb, such as 20kb"
    ),
    f"{_RECOVERY}path": _Key("restore_path", directory, "a savepoint-... or chk-... directory"),
    f"{_RECOVERY}claim-mode": _Key(
        "claim_mode", one_in_capitals(*CLAIM_MODES), f"one of {', '.join(CLAIM_MODES)}"
    ),
    f"{_RECOVERY}ignore-unclaimed-state": _Key("allow_non_restored_state", truth, "true or false"),
    f"{_RECOVERY}fallback": _Key("restore_fallback", truth, "true or false"),
}
