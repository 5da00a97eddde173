"""The job from start to end; see the package. ``--weeks 4`` is a short run."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from examples.flights import report
from examples.flights.data import ALL_WEEKS, deliver, load_flights
from examples.flights.expected import differences, expected_turnarounds, in_order
from examples.flights.job import (
    epochs_of,
    follow,
    read_result,
    spark_session,
    turnarounds,
    turnarounds_of_pyspark,
)
from examples.flights.report import Run, console

OUTPUT = Path("demo-output")
THRESHOLD_MIN = 15
FORK_THRESHOLD_MIN = 30
WEEKS_OF_LARGE_EPOCHS = 9
OPENING = """\
[bold]A year of flights out of New York, as a stream.[/]
For each aircraft, a processor keeps its last arrival, totals, and a map of airports.
It finds delays that an aircraft carries from one leg to the next.

1. [bold]original[/], on RocksDB, reads half a year in epochs of one week.
   Checkpoints are taken every 3 seconds.
2. A [bold]savepoint[/] is taken while it runs. Then it reads the rest in epochs of nine weeks.
3. A [bold]fork[/] starts from the savepoint, in memory, with another threshold for delays.
4. Each row of both results is compared with plain pandas.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return 0 if all results equal plain pandas, else 1."""
    asked = _asked(arguments)
    output = OUTPUT.absolute()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    console.print(OPENING)
    flights = load_flights(asked.weeks)
    in_first_half = flights["week"] < asked.weeks // 2
    console.print(
        f"{len(flights):,} flights of {flights['tailnum'].nunique():,} aircraft, "
        f"{asked.weeks} weeks, output in {OUTPUT}/"
    )
    with spark_session(output) as spark:
        original, savepoint = run_original(spark, output, flights, in_first_half)
        runs = [original, run_fork(spark, output, savepoint, rows=int((~in_first_half).sum()))]
        if asked.compare:
            runs.append(run_pyspark(spark, output, flights))
    report.show_results(*runs[:2])
    report.show_speed(runs)
    exit_code = verify(runs, flights, in_first_half)
    show_console(output, serve=asked.console)
    return exit_code


def run_original(
    spark: SparkSession, output: Path, flights: pd.DataFrame, in_first_half: pd.Series
) -> tuple[Run, str]:
    """Run over the whole year, with a savepoint in the middle; return its path too."""
    source, run = output / "flights", output / "original"
    deliver(flights[in_first_half], source)
    query_writer = turnarounds(spark, source, run, THRESHOLD_MIN, "rocksdb")
    with report.progress_bar("original, rocksdb", len(flights)) as show:
        query = query_writer.start()
        follow(query, int(in_first_half.sum()), show)
        savepoint = query.triggerSavepoint(str(output / "savepoints"))
        console.print(f"savepoint of epoch {savepoint.epoch} taken, the query continues")
        deliver(flights[~in_first_half], source, WEEKS_OF_LARGE_EPOCHS)
        follow(query, len(flights), show)
        query.stop()
    report.show_checkpoints("Checkpoints of the original, and the savepoint", query.checkpoints())
    result = read_result(spark, run)
    done = Run("original", "rocksdb", THRESHOLD_MIN, len(flights), epochs_of(query), result)
    return done, savepoint.path


def run_fork(spark: SparkSession, output: Path, savepoint: str, rows: int) -> Run:
    """Start a fork from the savepoint, with another threshold and backend."""
    source, run = output / "flights", output / "fork"
    query_writer = turnarounds(spark, source, run, FORK_THRESHOLD_MIN, "heap")
    with report.progress_bar("fork from the savepoint, heap", rows) as show:
        query = query_writer.restoreFrom(savepoint).trigger(availableNow=True).start()
        follow(query, rows, show)
        query.awaitTermination()
    report.show_checkpoints("Checkpoints of the fork", query.checkpoints())
    result = read_result(spark, run)
    return Run("fork", "heap", FORK_THRESHOLD_MIN, rows, epochs_of(query), result)


def run_pyspark(spark: SparkSession, output: Path, flights: pd.DataFrame) -> Run:
    """Run the original's job over the same files with PySpark's own operator."""
    source, run = output / "flights", output / "pyspark"
    query_writer = turnarounds_of_pyspark(spark, source, run, THRESHOLD_MIN)
    with report.progress_bar(report.PYSPARK, len(flights)) as show:
        query = query_writer.trigger(availableNow=True).start()
        follow(query, len(flights), show)
        query.awaitTermination()
    result = read_result(spark, run)
    epochs = epochs_of(query)
    return Run(report.PYSPARK, "rocksdb", THRESHOLD_MIN, len(flights), epochs, result)


def show_console(output: Path, *, serve: bool) -> None:
    """Say how to see the queries in a browser, or show them until Ctrl+C."""
    if not serve:
        program = Path(sys.executable).with_name("pyspark-ckpt")
        with suppress(ValueError):  # it is elsewhere
            program = program.relative_to(Path.cwd())
        console.print(f"See the queries in a browser:  {program} ui {OUTPUT}", soft_wrap=True)
        return
    command = [sys.executable, "-m", "pyspark_ckpt", "ui", str(output), "--port", "0"]
    with suppress(KeyboardInterrupt):
        subprocess.run(command, check=False)


def verify(runs: Sequence[Run], flights: pd.DataFrame, in_first_half: pd.Series) -> int:
    """Compare each row of all results with plain pandas; return the exit code."""
    thresholds = pd.Series(THRESHOLD_MIN, index=flights.index)
    expected = in_order(expected_turnarounds(flights, thresholds))
    changed = thresholds.where(in_first_half, FORK_THRESHOLD_MIN)
    expected_of_fork = in_order(expected_turnarounds(flights, changed)[~in_first_half])
    exit_code = 0
    for run in runs:
        rows = expected if run.threshold_min == THRESHOLD_MIN else expected_of_fork
        if not run.result.equals(rows):
            report.show_differences(run.name, differences(run.result, rows))
            exit_code = 1
    if exit_code == 0:
        number = "both" if len(runs) == 2 else "all"
        console.print(f"[bold green]OK: {number} results equal plain pandas[/]")
    return exit_code


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="Replay the New York flights of 2013 through keyed state, with a savepoint.",
    )
    parser.add_argument(
        "--weeks",
        type=int,
        default=ALL_WEEKS,
        metavar="N",
        help=f"replay the first N weeks only, 2 to {ALL_WEEKS}; the savepoint comes after half",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run PySpark's own transformWithState on the same job too, which takes longer",
    )
    parser.add_argument(
        "--console",
        action=argparse.BooleanOptionalAction,
        default=sys.stdout.isatty(),
        help="at the end, show the queries in a browser until Ctrl+C (default: in a terminal)",
    )
    asked = parser.parse_args(arguments)
    if not 2 <= asked.weeks <= ALL_WEEKS:
        parser.error(f"--weeks is {asked.weeks}, allowed is 2 to {ALL_WEEKS}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
