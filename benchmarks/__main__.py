"""``make bench``: this library against PySpark's own operators, on several workloads.

Prints figures and ratios, and writes them as Markdown, JSON and a plot. A run whose output differs
from what pandas computes ends the benchmark with status 1 and without that workload's figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine.properties import describe_machine
from benchmarks.reports.breakdown import break_down, breakdown_lines
from benchmarks.reports.plot import save_plot
from benchmarks.reports.ratios import Figures
from benchmarks.reports.report import Report
from benchmarks.runs.alternation import Repetition, run_repetitions
from benchmarks.runs.case import Contender, Kind, Workload
from benchmarks.runs.program_run import ProgramFailedError
from benchmarks.runs.run import WrongResultError
from benchmarks.runs.selection import (
    with_cases,
    with_contenders,
    with_most_epochs,
    without_missing_programs,
)
from benchmarks.runs.session import Sessions, use_this_python
from benchmarks.workloads.known import DEFAULT, WITH_PROGRAMS, WORKLOADS

_CHECKED_IN = Path(__file__).parent / "results"
_SCRATCH = Path("bench-output")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run workloads and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory), local_files_jar=options.local_files_jar)
        try:
            for workload in options.workloads:
                _run(sessions, workload, options, Path(directory) / workload.name)
        except (WrongResultError, ProgramFailedError) as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    return 0


def _run(
    sessions: Sessions, workload: Workload, options: argparse.Namespace, directory: Path
) -> None:
    repetitions = run_repetitions(
        sessions, workload, directory, options.repetitions, options.patience_seconds
    )
    settings = {"scale": options.scale, "repetitions": options.repetitions}
    if options.most_epochs is not None:
        settings["most epochs"] = options.most_epochs
    if options.local_files_jar:
        settings["Spark's small files"] = "by the jar of local_files_conf(), for all contenders"
    machine = describe_machine(sessions.last())
    _publish(workload, settings, machine, repetitions, options)
    breakdown = _break_down(sessions, workload, directory / "breakdown")
    print(_publish(workload, settings, machine, repetitions, options, breakdown), flush=True)
    shutil.rmtree(directory, ignore_errors=True)


def _publish(
    workload: Workload,
    settings: Mapping[str, Any],
    machine: Mapping[str, Any],
    repetitions: Sequence[Repetition],
    options: argparse.Namespace,
    breakdown: Sequence[str] = (),
) -> str:
    """Write the report's files and return its text."""
    report = Report(workload, settings, machine, repetitions, breakdown)
    path: Path = options.results / workload.file_name
    if options.peers:
        path = path.with_name(f"{path.name}_peers")
    if options.local_files_jar:
        path = path.with_name(f"{path.name}_with_jar")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = report.markdown()
    _write(path.with_suffix(".json"), json.dumps(report.as_json(), indent=1))
    _write(path.with_suffix(".md"), text)
    save_plot(workload, Figures(repetitions), path.with_suffix(".png"))
    return f"\n{text}"


def _break_down(sessions: Sessions, workload: Workload, directory: Path) -> list[str]:
    """Return how this library's contenders spend an epoch, in the last and largest case."""
    case = workload.cases[-1]
    breakdowns = [
        break_down(sessions.new(), case, contender, directory / str(number))
        for number, contender in enumerate(case.contenders)
        if isinstance(contender, Contender)
        and contender.kind is Kind.OURS
        and contender.subtask is None
    ]
    return breakdown_lines(breakdowns) if breakdowns else []


def _write(path: Path, text: str) -> None:
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure against PySpark's own stateful operators, and others.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=list(WORKLOADS),
        metavar="W",
        help=f"which of {', '.join(WORKLOADS)}; by default {', '.join(DEFAULT)}, with --peers "
        f"{', '.join(WITH_PROGRAMS)}",
    )
    parser.add_argument(
        "--scale", type=_fraction, default=0.1, help="part of the full size, keys and rows alike"
    )
    parser.add_argument("--repetitions", type=_positive, default=3, help="runs of each contender")
    parser.add_argument(
        "--results",
        type=Path,
        help=f"where figures go; by default {_CHECKED_IN.parent.name}/{_CHECKED_IN.name} at full "
        f"size, else {_SCRATCH}",
    )
    parser.add_argument(
        "--cases", nargs="+", default=[], help="only those with one of these words in the title"
    )
    parser.add_argument(
        "--contenders", nargs="+", default=[], help="only those with one of these words in the name"
    )
    parser.add_argument(
        "--most-epochs", type=_positive, help="the most epochs of each run that are counted"
    )
    parser.add_argument(
        "--local-files-jar",
        action="store_true",
        help="let Spark write its small files with local_files_conf(), for all contenders",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="against Flink and Bytewax, in separate environments, instead of PySpark",
    )
    parser.add_argument(
        "--patience-seconds",
        type=float,
        default=0,
        help="the longest wait of each run until other programs leave the machine idle",
    )
    options = parser.parse_args(arguments)
    options.results = options.results or (_CHECKED_IN if options.scale == 1 else _SCRATCH)
    try:
        options.workloads = _workloads(options)
    except ValueError as exc:
        parser.error(str(exc))
    return options


def _workloads(options: argparse.Namespace) -> list[Workload]:
    workloads = []
    for name in options.workload or (WITH_PROGRAMS if options.peers else DEFAULT):
        if options.peers and name not in WITH_PROGRAMS:
            raise ValueError(f"{name} is not written for Flink or Bytewax")
        workload = WORKLOADS[name](options.scale, with_programs=options.peers)
        workload = with_most_epochs(workload, options.most_epochs)
        workload = with_contenders(with_cases(workload, options.cases), options.contenders)
        workloads.append(without_missing_programs(workload))
    return workloads


def _positive(text: str) -> Any:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _fraction(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
