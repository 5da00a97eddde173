"""The report of one workload: Markdown, and the same and more as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.reports.markdown_table import table
from benchmarks.reports.ratios import Figures, Spread, Turn
from benchmarks.runs.alternation import Repetition
from benchmarks.runs.case import Case, Contender, Figure, Program, Workload
from benchmarks.runs.run import Run

_HOW = (
    "Contenders took turns over the same files, with the same sink, each run in its own session "
    "in one JVM. Every output row of every run was checked against pandas. Figures are the "
    "median of the repetitions (lowest to highest); a ratio is taken within a repetition. Time is "
    "from the trigger of the first counted epoch to the commit of the last, barrier and sink "
    "included; of a program that is not a Spark query, that of a job over all rows less that of "
    "the same job over one. CPU time is that of driver, JVM and workers in the same time, without "
    "the JVM's compilers, which are given next to it; what other programs took of the machine in "
    "the whole run is noise. Memory is the most that Python workers took together."
)


class Report:
    """The results of a workload's repetitions.

    Parameters
    ----------
    workload
        What was run.
    settings
        The command line's numbers.
    machine
        What figures depend on.
    repetitions
        The runs.
    breakdown
        Lines with the phases of an epoch, if they were measured.
    """

    def __init__(
        self,
        workload: Workload,
        settings: Mapping[str, Any],
        machine: Mapping[str, Any],
        repetitions: Sequence[Repetition],
        breakdown: Sequence[str] = (),
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._machine = machine
        self._repetitions = repetitions
        self._figures = Figures(repetitions)
        self._breakdown = breakdown

    def markdown(self) -> str:
        """Return the tables."""
        machine = ", ".join(f"{name} {value}" for name, value in self._machine.items())
        settings = ", ".join(f"{name} {value}" for name, value in self._settings.items())
        lines = [f"# {self._workload.title}", "", self._workload.text, "", _HOW, ""]
        lines += [f"Settings: {settings}.", "", f"Machine: {machine}.", ""]
        for verdict in self._figures.verdicts(self._workload.targets):
            lines.append(f"- {verdict.text()}")
        for case in self._workload.cases:
            lines += ["", f"## {case.title}", "", _epochs_text(case), ""]
            lines += table(self._rows(case))
            lines += ["", "Median milliseconds of an epoch's parts, as Spark reports them:", ""]
            lines += table(self._parts(case))
        if self._breakdown:
            lines += ["", *self._breakdown]
        return "\n".join([*lines, ""])

    def as_json(self) -> dict[str, Any]:
        """Return all figures, those of each repetition too."""
        return {
            "workload": self._workload.name,
            "title": self._workload.title,
            "settings": dict(self._settings),
            "machine": dict(self._machine),
            "targets": [
                {
                    "target": verdict.target.text,
                    "limit": verdict.target.limit,
                    "at_least": verdict.target.at_least,
                    "ratio": verdict.ratio.as_json(),
                    "reached": verdict.is_reached,
                }
                for verdict in self._figures.verdicts(self._workload.targets)
            ],
            "cases": {
                case.name: {
                    contender.name: self._contender((case.name, contender.name))
                    for contender in case.contenders
                }
                for case in self._workload.cases
            },
        }

    def _contender(self, turn: Turn) -> dict[str, Any]:
        figures = {
            "rows_per_second": self._spread(turn, lambda run: run.figure(Figure.ROWS_PER_SECOND)),
            "ms_per_epoch": self._spread(turn, lambda run: run.figure(Figure.MS_PER_EPOCH)),
            "median_epoch_ms": self._spread(turn, lambda run: run.median_epoch_ms),
            "cpu_seconds_per_million_rows": self._spread(
                turn, lambda run: run.cpu_seconds_per_million_rows
            ),
            "compiler_seconds_per_million_rows": self._spread(
                turn, lambda run: run.compiler_seconds_per_million_rows
            ),
            "workers_peak_bytes": self._spread(turn, lambda run: run.workers_peak_bytes),
        }
        for name in self._more_names(turn):
            figures[name] = self._spread(turn, _more(name))
        for reference in self._references(turn[0]):
            figures[f"times as fast as {reference}"] = self._times(turn, reference)
        return {
            **{name: spread and spread.as_json() for name, spread in figures.items()},
            "median_ms_of_parts": self._parts_of(turn),
            "repetitions": [_run_as_json(run) for run in self._figures.runs(turn)],
        }

    def _rows(self, case: Case) -> list[list[str]]:
        references = self._references(case.name)
        turns = [(case.name, contender.name) for contender in case.contenders]
        more = list(dict.fromkeys(name for turn in turns for name in self._more_names(turn)))
        header = ["contender", "rows/s", "ms per epoch"]
        header += [f"times as fast as {reference}" for reference in references]
        header += ["CPU s per million rows", "compilers' CPU s per million rows"]
        header += ["workers MiB", *more, "CPUs used by others, %"]
        return [header, *(self._row(turn, references, more) for turn in turns)]

    def _row(self, turn: Turn, references: Sequence[str], more: Sequence[str]) -> list[str]:
        return [
            turn[1],
            self._text(turn, lambda run: run.figure(Figure.ROWS_PER_SECOND), 0),
            self._text(turn, lambda run: run.figure(Figure.MS_PER_EPOCH), 0),
            *(_text(self._times(turn, reference), 2) for reference in references),
            self._text(turn, lambda run: run.cpu_seconds_per_million_rows, 1),
            self._text(turn, lambda run: run.compiler_seconds_per_million_rows, 1),
            self._text(turn, _workers_mebibytes, 0),
            *(self._text(turn, _more(name), 2) for name in more),
            self._text(turn, _others_percent, 0),
        ]

    def _parts(self, case: Case) -> list[list[str]]:
        by_name = {
            contender.name: self._parts_of((case.name, contender.name))
            for contender in case.contenders
        }
        by_name = {name: parts for name, parts in by_name.items() if parts}
        parts = sorted({part for durations in by_name.values() for part in durations})
        parts.sort(key=lambda part: -max(durations.get(part, 0) for durations in by_name.values()))
        return [["contender", *parts]] + [
            [name, *(f"{durations.get(part, 0):,.0f}" for part in parts)]
            for name, durations in by_name.items()
        ]

    def _parts_of(self, turn: Turn) -> dict[str, float]:
        of_runs = [run.median_durations_ms() for run in self._figures.runs(turn)]
        names = sorted({part for durations in of_runs for part in durations})
        return {part: median(durations.get(part, 0) for durations in of_runs) for part in names}

    def _references(self, case: str) -> list[str]:
        return [name for name in self._workload.references if self._figures.has((case, name))]

    def _times(self, turn: Turn, reference: str) -> Spread | None:
        figure = self._workload.figure
        if any(run.figure(figure) is None for run in self._figures.runs(turn)):
            figure = Figure.ROWS_PER_SECOND
        return self._figures.times_as_fast(turn, (turn[0], reference), figure)

    def _more_names(self, turn: Turn) -> list[str]:
        return list(self._figures.runs(turn)[0].more)

    def _spread(self, turn: Turn, figure: Callable[[Run], float | None]) -> Spread | None:
        return self._figures.spread(turn, figure)

    def _text(self, turn: Turn, figure: Callable[[Run], float | None], digits: int) -> str:
        return _text(self._spread(turn, figure), digits)


def _epochs_text(case: Case) -> str:
    fast, slow = case.epochs, case.slow_epochs
    text = f"{fast.counted} epochs counted after {fast.warm_up} of warm-up"
    slow_names = [_name(contender) for contender in case.contenders if contender.slow]
    if slow_names:
        text += f"; {slow.counted} after {slow.warm_up} for {', '.join(slow_names)}"
    return f"{text}. Sink: {case.sink.value}."


def _name(contender: Contender | Program) -> str:
    return contender.name


def _more(name: str) -> Callable[[Run], float | None]:
    return lambda run: run.more.get(name)


def _workers_mebibytes(run: Run) -> float | None:
    return None if run.workers_peak_bytes is None else run.workers_peak_bytes / 1024**2


def _others_percent(run: Run) -> float | None:
    return None if run.machine is None else 100 * run.machine.others_share


def _text(spread: Spread | None, digits: int) -> str:
    return "-" if spread is None else spread.text(digits)


def _run_as_json(run: Run) -> dict[str, Any]:
    return {
        "rows": run.rows,
        "seconds": round(run.seconds, 3),
        "epoch_ms": [epoch.ms for epoch in run.epochs],
        "share_of_time_in_triggers": run.share_in_triggers and round(run.share_in_triggers, 4),
        "cpu_seconds": run.cpu and round(run.cpu.work, 2),
        "compiler_seconds": run.cpu and round(run.cpu.compilers, 2),
        "share_of_cpus_used_by_others": run.machine and round(run.machine.others_share, 3),
        "checkpoints": run.checkpoints,
        **run.more,
    }
