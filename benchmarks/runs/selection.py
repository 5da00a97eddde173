"""Parts of a workload, for a shorter run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.runs.case import Contender, Epochs, Program, Workload
from benchmarks.runs.program_run import is_installed


def with_most_epochs(workload: Workload, most: int | None) -> Workload:
    """Return a workload with a limit on counted epochs, and on epochs to warm up."""
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
    """Return a workload with the contenders whose name has one of some words.

    Raises
    ------
    ValueError
        If none is left; the message names the existing ones.
    """
    if not wanted:
        return workload
    left = _only(workload, lambda one: any(word.lower() in one.name.lower() for word in wanted))
    if not left.cases:
        names = sorted({one.name for case in workload.cases for one in case.contenders})
        raise ValueError(f"{workload.name} has no contender {wanted}; it has {names}")
    return left


def with_cases(workload: Workload, wanted: Sequence[str]) -> Workload:
    """Return a workload with the cases whose title has one of some words.

    Raises
    ------
    ValueError
        If none is left; the message names the existing ones.
    """
    if not wanted:
        return workload
    left = [
        case
        for case in workload.cases
        if any(word.lower() in case.title.lower() for word in wanted)
    ]
    if not left:
        titles = [case.title for case in workload.cases]
        raise ValueError(f"{workload.name} has no case {wanted}; it has {titles}")
    return replace(workload, cases=left)


def without_missing_programs(workload: Workload) -> Workload:
    """Return a workload without the programs that are not installed; its text then names them.

    Raises
    ------
    ValueError
        If none of its programs is.
    """
    programs = {
        contender.name: is_installed(contender)
        for case in workload.cases
        for contender in case.contenders
        if isinstance(contender, Program)
    }
    missing = [name for name, installed in programs.items() if not installed]
    if not missing:
        return workload
    if not any(programs.values()):
        raise ValueError(f"{', '.join(missing)}: not installed; make bench ARGS=--peers does that")
    left = _only(workload, lambda contender: contender.name not in missing)
    text = f"{workload.text} Not installed here, and so not measured: {', '.join(missing)}."
    return replace(left, text=text)


def _only(workload: Workload, wanted: Callable[[Contender | Program], bool]) -> Workload:
    cases = [
        replace(case, contenders=[one for one in case.contenders if wanted(one)])
        for case in workload.cases
    ]
    return replace(workload, cases=[case for case in cases if case.contenders])
