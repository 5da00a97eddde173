"""All workloads by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.case import Workload
from benchmarks.workloads import growth, running_count, sessions, small_epochs, wide_state

MakeWorkloads = Callable[..., Sequence[Workload]]
"""From the scale, and whether programs that are no Spark query take part."""

WORKLOADS: dict[str, Callable[..., Workload]] = {
    "W0": running_count.small,
    "W1": running_count.large,
    "W2": sessions.sessions,
    "W3": wide_state.wide_state,
    "W4": small_epochs.small_epochs,
    "W5": growth.growth,
}


def with_contenders(workload: Workload, wanted: Sequence[str]) -> Workload:
    """Return a workload with those contenders whose name has one of some words in it.

    Raises
    ------
    ValueError
        If none is left; names those that there are.
    """
    if not wanted:
        return workload
    cases = [
        replace(
            case,
            contenders=[
                contender
                for contender in case.contenders
                if any(word.lower() in contender.name.lower() for word in wanted)
            ],
        )
        for case in workload.cases
    ]
    left = [case for case in cases if case.contenders]
    if not left:
        names = sorted({one.name for case in workload.cases for one in case.contenders})
        raise ValueError(f"{workload.name} has no contender {wanted}; it has {names}")
    return replace(workload, cases=left)
