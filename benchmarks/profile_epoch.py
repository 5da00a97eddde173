"""Where an epoch of this library goes inside the Python worker: cProfile around the operator.

``python -m benchmarks.profile_epoch --backend heap`` prints the top functions of all steady epochs.

Seen is what runs in the function that Spark calls, with PySpark's reading of its input, which is
lazy. Not seen are the start of the worker, PySpark's conversion of the output, and the JVM. Small
Python functions look slower under cProfile than they are: compare shares, and measure speed with
``benchmarks.running_count``.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from pyspark import TaskContext

import pyspark_ckpt.stream
from benchmarks.contenders import HEAP, ROCKSDB, Contender
from benchmarks.data import Workload
from benchmarks.measure import Run, new_session, run_checked
from benchmarks.running_count import use_this_python
from pyspark_ckpt.operator.subtask import SubtaskFunction

_DIRECTORY = "PYSPARK_CKPT_PROFILE_DIRECTORY"
"""Environment variable that tells workers where profiles go."""


class ProfiledSubtask(SubtaskFunction):
    """The operator's function, which leaves a profile of every call."""

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        profile = cProfile.Profile()
        frames = iter(SubtaskFunction.__call__(self, *arguments))
        end = object()
        # Only the function's own steps: between them Spark's code takes the frames.
        while (frame := profile.runcall(next, frames, end)) is not end:
            yield frame
        context = TaskContext.get()
        assert context is not None
        epoch = context.getLocalProperty("streaming.sql.batchId")
        name = f"{epoch}-{context.partitionId()}.pstats"
        profile.dump_stats(Path(os.environ[_DIRECTORY]) / name)


def main() -> None:
    """Run one contender under the profiler and print what took its time."""
    options = _parse()
    use_this_python()
    contender = {"heap": HEAP, "rocksdb": ROCKSDB}[options.backend]
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-profile-") as directory:
        profiles = Path(directory) / "profiles"
        profiles.mkdir()
        os.environ[_DIRECTORY] = str(profiles)
        run = _run(contender, options, Path(directory))
        _print_profile(profiles, options, run)


def _run(contender: Contender, options: argparse.Namespace, directory: Path) -> Run:
    workload = Workload(options.keys, options.rows_per_epoch)
    files = workload.write_epochs(directory / "data", options.epochs)
    spark = new_session(directory)
    try:
        with mock.patch.object(pyspark_ckpt.stream, "SubtaskFunction", ProfiledSubtask):
            return run_checked(spark, contender, files, directory / "run", options.warm_up_epochs)
    finally:
        spark.stop()


def _print_profile(profiles: Path, options: argparse.Namespace, run: Run) -> None:
    files = [
        str(path)
        for path in sorted(profiles.iterdir())
        if int(path.name.partition("-")[0]) >= options.warm_up_epochs
    ]
    calls_ms = [1000 * pstats.Stats(file).total_tt for file in files]  # type: ignore[attr-defined]
    print(
        f"{run.contender.name}: {len(run.epochs)} steady epochs, median of an epoch "
        f"{run.median_durations_ms()['triggerExecution']:.0f} ms, of the operator's function in "
        f"one subtask {median(calls_ms):.0f} ms, both under the profiler"
    )
    stats = pstats.Stats(files[0], stream=sys.stdout)
    stats.add(*files[1:])
    for order in ("tottime", "cumulative"):
        stats.strip_dirs().sort_stats(order).print_stats(options.top)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile_epoch",
        description="Profile the operator's function in the Python worker.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows-per-epoch", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--warm-up-epochs", type=int, default=4)
    parser.add_argument("--top", type=int, default=25, help="functions to print")
    return parser.parse_args()


if __name__ == "__main__":
    main()
