"""All workloads by name."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.case import Workload
from benchmarks.workloads import growth, nexmark, running_count, sessions, small_epochs, wide_state

MakeWorkload = Callable[..., Workload]
"""From the scale, and whether programs that are no Spark query take part."""

WORKLOADS: dict[str, MakeWorkload] = {
    "W0": running_count.small,
    "W1": running_count.large,
    "W2": sessions.sessions,
    "W3": wide_state.wide_state,
    "W4": small_epochs.small_epochs,
    "W5": growth.growth,
    "W6": nexmark.nexmark,
}
DEFAULT = ("W1", "W2", "W3", "W4", "W5", "W6")
WITH_PROGRAMS = ("W1", "W2")
"""Those that are also written for peers that are no Spark query."""
