"""All workloads by name."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.runs.case import Workload
from benchmarks.workloads import (
    growth,
    nexmark,
    rolling,
    running_count,
    sessions,
    small_epochs,
    wide_rows,
    wide_state,
)

MakeWorkload = Callable[..., Workload]
"""From the scale, and whether programs that are not Spark queries take part."""

WORKLOADS: dict[str, MakeWorkload] = {
    "W0": running_count.small,
    "W1": running_count.large,
    "W1F": running_count.few_rows,
    "W1R": running_count.each_row,
    "W2": sessions.sessions,
    "W3": wide_state.wide_state,
    "W4": small_epochs.small_epochs,
    "W5": growth.growth,
    "W6": nexmark.nexmark,
    "W7": running_count.skew,
    "W9": wide_rows.wide_rows,
    "W10": rolling.rolling,
}
DEFAULT = ("W1", "W1F", "W1R", "W2", "W3", "W4", "W5", "W6", "W7", "W9", "W10")
WITH_PROGRAMS = ("W1", "W2")
"""Those that are also written for peers that are not Spark queries."""
