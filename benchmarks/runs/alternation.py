"""The contenders of a workload take turns: all of them once per repetition."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from benchmarks.machine.cpu import wait_for_quiet
from benchmarks.runs.case import Case, Contender, InputFiles, Program, Workload
from benchmarks.runs.program_run import run_program
from benchmarks.runs.run import Run
from benchmarks.runs.session import Sessions
from benchmarks.runs.spark_run import run_query

Repetition = Mapping[tuple[str, str], Run]
"""One run of each contender, by case and name."""


def run_repetitions(
    sessions: Sessions,
    workload: Workload,
    directory: Path,
    repetitions: int,
    patience_seconds: float = 0,
) -> list[Repetition]:
    """Run every contender over the same files, in turn, and check every output.

    Parameters
    ----------
    sessions
        Where each run gets its session from.
    workload
        What to run.
    directory
        For all output; empty before and after the call.
    repetitions
        How often; each begins with another contender.
    patience_seconds
        The longest time that each run waits until other programs leave the machine idle.

    Raises
    ------
    WrongResultError
        If an output of a run is wrong.
    """
    inputs = {case.name: _Input(case, directory / "data" / case.name) for case in workload.cases}
    turns = [(case, contender) for case in workload.cases for contender in case.contenders]
    # The first query of a workload finds a JVM that has not compiled its code yet.
    for case, contender in [turn for turn in turns if not turn[1].slow][:1]:
        _run(sessions, case, contender, inputs[case.name], directory / "rehearsal")
    done: list[Repetition] = []
    for number in range(repetitions):
        runs: dict[tuple[str, str], Run] = {}
        for case, contender in in_turn(turns, number):
            wait_for_quiet(patience_seconds)
            # Spark keeps a stopped query's state: no two runs share a path.
            place = directory / f"run-{number}-{len(runs)}"
            run = _run(sessions, case, contender, inputs[case.name], place)
            runs[case.name, contender.name] = run
            # No figure is shown before every result was found right.
            text = f"{workload.name}, repetition {number + 1}: {case.name}, {contender.name}"
            print(f"{text}: result is right", flush=True)
        done.append(runs)
    shutil.rmtree(directory / "data", ignore_errors=True)
    return done


def in_turn(
    turns: Sequence[tuple[Case, Contender | Program]], repetition: int
) -> list[tuple[Case, Contender | Program]]:
    """Return all turns of a repetition, each beginning with another one."""
    first = repetition % len(turns)
    return [*turns[first:], *turns[:first]]


class _Input:
    """The files of a case, and the expected output."""

    def __init__(self, case: Case, directory: Path) -> None:
        most = max(case.epochs_of(contender).all for contender in case.contenders)
        self.files: InputFiles = case.write(directory, most)
        self._case = case
        self._computed = cache(self._compute)

    def expected(self, contender: Contender | Program) -> pd.DataFrame:
        """Return all rows that a contender must emit."""
        own = contender.expected if isinstance(contender, Contender) else None
        return self._computed(own or self._case.expected, self._case.epochs_of(contender).all)

    def _compute(
        self, expected: Callable[[Sequence[Path]], pd.DataFrame], epochs: int
    ) -> pd.DataFrame:
        return expected(self.files.of(epochs))


def _run(
    sessions: Sessions, case: Case, contender: Contender | Program, data: _Input, place: Path
) -> Run:
    expected = data.expected(contender)
    if isinstance(contender, Program):
        sessions.stop()
        return run_program(case, contender, data.files, expected, place)
    return run_query(sessions.new(), case, contender, data.files, expected, place)


def run_turn(spark: SparkSession, case: Case, contender: Contender, directory: Path) -> Run:
    """Run one contender once, over separate files below a directory."""
    data = _Input(replace(case, contenders=[contender]), directory / "data")
    return run_query(
        spark, case, contender, data.files, data.expected(contender), directory / "run"
    )
