"""Decides whether a running query should have other subtasks: after the time of its epochs, or its
backlog.

A rule looks at the last epochs with rows, and only at those since the last restart. Between the
time that doubles the subtasks and the time that halves them is a factor of two at least. So a query
that was given fewer subtasks does not need more at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.settings import Settings

_ROWS_BEHIND = "maxOffsetsBehindLatest"
"""What a source of Spark, such as Kafka's, calls its backlog."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one epoch took.

    `rows_behind` is the backlog of the source that is furthest behind, ``None`` if none reports it.
    """

    epoch: int
    duration_ms: int
    rows_behind: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A number of subtasks, and why."""

    parallelism: int
    reason: str


@dataclass(frozen=True, slots=True)
class RescaleRules:
    """When a query gets other subtasks, as its settings say."""

    fewest: int
    most: int
    up_ms: int
    up_rows_behind: int | None
    down_ms: int
    window: int
    interval_ms: int

    @classmethod
    def of(cls, settings: Settings, *, can_be_built: bool) -> RescaleRules | None:
        """Return the rules of a query, ``None`` if it has none."""
        if not settings.rescales_by_rule:
            return None
        up_ms = settings.rescale_up_ms
        down_ms = up_ms // 6 if settings.rescale_down_ms is None else settings.rescale_down_ms
        most, fewest = settings.rescale_max_parallelism, settings.rescale_min_parallelism
        if not can_be_built:
            raise ConfigurationError(
                "spark.ckpt.rescale.enabled is true, and the query was given as a DataFrame, which "
                "has one number of subtasks: give write_stream a function that builds it"
            )
        if most is None or most < fewest:
            raise ConfigurationError(
                f"spark.ckpt.rescale.max-parallelism is {most}, with spark.ckpt.rescale.enabled: "
                f"set it to the most subtasks that the cluster has cores for, at least {fewest}"
            )
        if 2 * down_ms > up_ms:
            raise ConfigurationError(
                f"scale-down.epoch-duration is {down_ms} ms: set it to at most half of "
                f"spark.ckpt.rescale.scale-up.epoch-duration, which is {up_ms} ms, or the query "
                "would be restarted to and fro"
            )
        return cls(
            fewest,
            most,
            up_ms,
            settings.rescale_up_backlog,
            down_ms,
            settings.rescale_window,
            settings.rescale_interval_ms,
        )

    def proposal(self, parallelism: int, loads: Sequence[Load]) -> Proposal | None:
        """Return what a query should have, ``None`` if that is what it has.

        `loads` has the epochs with rows since the last restart, oldest first.
        """
        last = loads[-self.window :]
        if len(last) < self.window:
            return None
        ms = int(median(load.duration_ms for load in last))
        behind = min(load.rows_behind or 0 for load in last)
        epochs = f"epochs {last[0].epoch} to {last[-1].epoch}"
        more, fewer = min(2 * parallelism, self.most), max(parallelism // 2, self.fewest)
        if self.up_rows_behind is not None and behind >= self.up_rows_behind:
            reason = f"{epochs} were {behind} rows behind, from {self.up_rows_behind} on"
        elif ms > self.up_ms:
            reason = f"{epochs} took {ms} ms, above {self.up_ms} ms"
        elif ms < self.down_ms and fewer < parallelism:
            reason = f"{epochs} took {ms} ms, below {self.down_ms} ms"
            return Proposal(fewer, f"rule: {reason} it gets fewer subtasks")
        else:
            return None
        # A query beyond the bounds was given its subtasks by hand, and is left alone.
        if more <= parallelism:
            return None
        return Proposal(more, f"rule: {reason} it gets more subtasks")


def load_of(progress: Mapping[str, Any]) -> Load | None:
    """Return what an epoch took, by Spark's report of it; ``None`` if it had no rows."""
    took_ms = progress["durationMs"].get("triggerExecution")
    if took_ms is None or not any(source["numInputRows"] for source in progress["sources"]):
        return None
    found = [_rows_behind(source) for source in progress["sources"]]
    known = [rows for rows in found if rows is not None]
    return Load(progress["batchId"], int(took_ms), max(known, default=None))


def _rows_behind(source: Mapping[str, Any]) -> int | None:
    """Return a source's backlog: what it reports, else what its offsets per partition say."""
    value: Any = (source.get("metrics") or {}).get(_ROWS_BEHIND)
    try:
        return int(float(value))
    except (TypeError, ValueError):
        read, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if read is None or newest is None:
        return None
    return sum(max(0, end - read.get(part, 0)) for part, end in newest.items())


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    """Return the offset of each topic and partition, ``None`` if they have another form."""
    if not isinstance(value, Mapping) or not value:
        return None
    found: dict[tuple[str, str], int] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, Mapping):
            return None
        for partition, offset in partitions.items():
            if not isinstance(offset, int) or not str(partition).isdecimal():
                return None
            found[topic, str(partition)] = offset
    return found
