"""All workloads by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.case import Epochs, Workload
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


def with_most_epochs(workload: Workload, most: int | None) -> Workload:
    """Return a workload with at most so many epochs counted, and as many to warm up."""
    if most is None:
        return workload
    cases = [
        replace(
            case,
            epochs=_at_most(case.epochs, most),
            slow_epochs=_at_most(case.slow_epochs, most),
        )
        for case in workload.cases
    ]
    return replace(workload, cases=cases)


def _at_most(epochs: Epochs, most: int) -> Epochs:
    return Epochs(min(epochs.counted, most), min(epochs.warm_up, most))


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
