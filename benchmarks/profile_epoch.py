"""Where an epoch of this library goes: ``python -m benchmarks.profile_epoch --workload W1``.

Prints the phases of an epoch for one case of a workload, as the suite does at the end of it; with
``--functions``, cProfile's view of the operator's function as well. Small Python functions look
slower under either than they are: compare shares, and measure speed with ``make bench``.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from benchmarks.reports.breakdown import break_down, breakdown_lines
from benchmarks.runs.alternation import run_turn
from benchmarks.runs.case import Case, Contender, Kind
from benchmarks.runs.selection import with_cases, with_contenders
from benchmarks.runs.session import Sessions, use_this_python
from benchmarks.workloads.known import WORKLOADS
from pyspark_ckpt.operator.run.subtask import SubtaskFunction


class ProfiledSubtask(SubtaskFunction):
    """The operator's function, which leaves cProfile's statistics of every call.

    Parameters
    ----------
    directory
        Where they are written.
    arguments
        Those of the operator's function.
    """

    def __init__(self, directory: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._directory = directory

    def process(self, *arguments: Any) -> Iterator[Any]:
        """Process an epoch under cProfile."""
        profile = cProfile.Profile()
        frames = iter(SubtaskFunction.process(self, *arguments))
        end = object()
        # Only the function's own steps: between them Spark's code takes the frames.
        while (frame := profile.runcall(next, frames, end)) is not end:
            yield frame
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task only
        epoch = context.getLocalProperty("streaming.sql.batchId")
        name = f"{epoch}-{context.partitionId()}.pstats"
        profile.dump_stats(self._directory / name)


def main() -> None:
    """Run contenders of this library under a stopwatch and print what took their time."""
    options = _parse()
    use_this_python()
    workload = with_cases(WORKLOADS[options.workload](options.scale), options.cases)
    workload = with_contenders(workload, options.contenders)
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-profile-") as directory:
        sessions = Sessions(Path(directory))
        try:
            for number, case in enumerate(workload.cases):
                _profile(sessions, case, options, Path(directory) / str(number))
        finally:
            sessions.stop()


def _profile(sessions: Sessions, case: Case, options: argparse.Namespace, directory: Path) -> None:
    contenders = [
        contender
        for contender in case.contenders
        if isinstance(contender, Contender) and contender.kind is Kind.OURS
    ]
    breakdowns = [
        break_down(sessions.new(), case, contender, directory / f"phases-{number}")
        for number, contender in enumerate(contenders)
    ]
    print(f"{case.title}\n")
    print("\n".join(breakdown_lines(breakdowns)))
    for number, contender in enumerate(contenders) if options.functions else ():
        _print_functions(sessions, case, contender, directory / f"functions-{number}", options)


def _print_functions(
    sessions: Sessions,
    case: Case,
    contender: Contender,
    directory: Path,
    options: argparse.Namespace,
) -> None:
    profiles = directory / "profiles"
    profiles.mkdir(parents=True)
    profiled = replace(contender, subtask=partial(ProfiledSubtask, profiles))
    run = run_turn(sessions.new(), case, profiled, directory)
    paths = (profiles.glob(f"{epoch.number}-*.pstats") for epoch in run.epochs)
    files = list(map(str, chain.from_iterable(paths)))
    stats = pstats.Stats(files[0], stream=sys.stdout)
    stats.add(*files[1:])
    print(f"\n{contender.name}: all calls of {len(run.epochs)} epochs")
    for order in ("tottime", "cumulative"):
        stats.strip_dirs().sort_stats(order).print_stats(options.functions)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile_epoch",
        description="Show where an epoch of this library goes.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--workload", choices=list(WORKLOADS), default="W1")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--cases", nargs="+", default=[])
    parser.add_argument("--contenders", nargs="+", default=["pyspark_ckpt rows, rocksdb"])
    parser.add_argument(
        "--functions", type=int, default=0, help="functions that cProfile shows, by either order"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
