"""The job from start to end; see the package. ``--weeks 4`` is a short run."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pandas as pd
from pyspark.sql import SparkSession

from examples.flights import report
from examples.flights.data import ALL_WEEKS, deliver, load_flights
from examples.flights.expected import differences, expected_turnarounds, in_order
from examples.flights.job import follow, read_result, spark_session, turnarounds
from examples.flights.report import Run, console

OUTPUT = Path("demo-output")
THRESHOLD_MIN = 15
FORK_THRESHOLD_MIN = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return 0 if both results equal plain pandas, else 1."""
    weeks = _weeks(arguments)
    output = OUTPUT.absolute()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    flights = load_flights(weeks)
    in_first_half = flights["week"] < weeks // 2
    console.print(
        f"{len(flights):,} flights of {flights['tailnum'].nunique():,} aircraft, "
        f"{weeks} weeks, output in {OUTPUT}/"
    )
    with spark_session(output) as spark:
        original, savepoint = run_original(spark, output, flights, in_first_half)
        fork = run_fork(spark, output, savepoint, rows=int((~in_first_half).sum()))
    report.show_results(original, fork)
    return verify(original, fork, flights, in_first_half)


def run_original(
    spark: SparkSession, output: Path, flights: pd.DataFrame, in_first_half: pd.Series
) -> tuple[Run, str]:
    """Run over the whole year, with a savepoint in the middle; return its path too."""
    source, run = output / "flights", output / "original"
    deliver(flights[in_first_half], source)
    query_writer = turnarounds(spark, source, run, THRESHOLD_MIN, "rocksdb")
    started = monotonic()
    with report.progress_bar("original, rocksdb", len(flights)) as show:
        query = query_writer.start()
        follow(query, int(in_first_half.sum()), show)
        savepoint = query.triggerSavepoint(str(output / "savepoints"))
        console.print(f"savepoint of epoch {savepoint.epoch} taken, the query continues")
        deliver(flights[~in_first_half], source)
        follow(query, len(flights), show)
        seconds = monotonic() - started
        query.stop()
    report.show_checkpoints("Checkpoints of the original, and the savepoint", query.checkpoints())
    result = read_result(spark, run)
    return Run("original", "rocksdb", THRESHOLD_MIN, len(flights), seconds, result), savepoint.path


def run_fork(spark: SparkSession, output: Path, savepoint: str, rows: int) -> Run:
    """Start a fork from the savepoint, with another threshold and backend."""
    source, run = output / "flights", output / "fork"
    query_writer = turnarounds(spark, source, run, FORK_THRESHOLD_MIN, "heap")
    started = monotonic()
    with report.progress_bar("fork from the savepoint, heap", rows) as show:
        query = query_writer.restoreFrom(savepoint).trigger(availableNow=True).start()
        follow(query, rows, show)
        seconds = monotonic() - started
        query.awaitTermination()
    report.show_checkpoints("Checkpoints of the fork", query.checkpoints())
    return Run("fork", "heap", FORK_THRESHOLD_MIN, rows, seconds, read_result(spark, run))


def verify(original: Run, fork: Run, flights: pd.DataFrame, in_first_half: pd.Series) -> int:
    """Compare each row of both results with plain pandas; return the exit code."""
    thresholds = pd.Series(THRESHOLD_MIN, index=flights.index)
    expected = in_order(expected_turnarounds(flights, thresholds))
    changed = thresholds.where(in_first_half, FORK_THRESHOLD_MIN)
    expected_of_fork = in_order(expected_turnarounds(flights, changed)[~in_first_half])
    exit_code = 0
    for run, rows in ((original, expected), (fork, expected_of_fork)):
        if not run.result.equals(rows):
            report.show_differences(run.name, differences(run.result, rows))
            exit_code = 1
    if exit_code == 0:
        console.print("[bold green]OK: both results equal plain pandas[/]")
    return exit_code


def _weeks(arguments: Sequence[str] | None) -> int:
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
    weeks = int(parser.parse_args(arguments).weeks)
    if not 2 <= weeks <= ALL_WEEKS:
        parser.error(f"--weeks is {weeks}, allowed is 2 to {ALL_WEEKS}")
    return weeks


if __name__ == "__main__":
    sys.exit(main())
