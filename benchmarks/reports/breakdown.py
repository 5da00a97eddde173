"""How an epoch of this library spends its time: Spark's part, and the phases of the operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks.reports.markdown_table import table
from benchmarks.reports.phases import MeasuredSubtask
from benchmarks.runs.alternation import run_turn
from benchmarks.runs.case import Case, Contender
from benchmarks.runs.run import Run

SPARK = "Spark: plan, read, shuffle, sort, Arrow out of Python, sink, logs"
WHOLE = "whole epoch"

_HOW = (
    "With a stopwatch around the calls of each phase, which makes the phases with a call per key "
    "look slower than they are. Medians, of the slower of the subtasks that run side by side; "
    "Spark's part is what they leave of the epoch."
)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Milliseconds of the median epoch by phase, for one contender."""

    contender: str
    epoch_ms: float
    phases_ms: dict[str, float]


def break_down(spark: SparkSession, case: Case, contender: Contender, directory: Path) -> Breakdown:
    """Run one of this library's contenders with a stopwatch in it.

    The output is checked as always. An epoch's subtasks run side by side, so the slower one counts.
    Spark's part is the rest of the epoch.
    """
    profiles = directory / "profiles"
    profiles.mkdir(parents=True)
    measured = replace(contender, subtask=partial(MeasuredSubtask, profiles))
    run = run_turn(spark, case, measured, directory)
    return Breakdown(contender.name, *_phases(profiles, run))


def _phases(profiles: Path, run: Run) -> tuple[float, dict[str, float]]:
    calls = [json.loads(path.read_text(encoding="utf-8")) for path in _slowest(profiles, run)]
    phases = sorted({phase for call in calls for phase in call})
    medians = {phase: 1000 * median(call.get(phase, 0.0) for call in calls) for phase in phases}
    epoch_ms = run.median_epoch_ms or 0.0
    return epoch_ms, {SPARK: max(0.0, epoch_ms - sum(medians.values())), **medians}


def _slowest(profiles: Path, run: Run) -> list[Path]:
    """Return the slower subtask of each of the counted epochs."""
    by_epoch = [list(profiles.glob(f"{epoch.number}-*.json")) for epoch in run.epochs]
    return [max(paths, key=_seconds) for paths in by_epoch if paths]


def _seconds(path: Path) -> float:
    seconds: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return sum(seconds.values())


def breakdown_lines(breakdowns: Sequence[Breakdown]) -> list[str]:
    """Return a table of several contenders, for the report."""
    phases = list(dict.fromkeys(phase for one in breakdowns for phase in one.phases_ms))
    phases.sort(key=lambda phase: -max(one.phases_ms.get(phase, 0) for one in breakdowns))
    rows = [["part of an epoch, ms", *(one.contender for one in breakdowns)]]
    rows += [
        [phase, *(f"{one.phases_ms.get(phase, 0):,.1f}" for one in breakdowns)] for phase in phases
    ]
    rows.append([WHOLE, *(f"{one.epoch_ms:,.1f}" for one in breakdowns)])
    return ["## Where an epoch goes", "", _HOW, "", *table(rows)]
