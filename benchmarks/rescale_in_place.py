"""``python -m benchmarks.rescale_in_place``: how long a running query pauses to be rescaled.

Queries with 100,000 and with 10,000,000 keys run one after the other. Each is rescaled from 2 to 4
subtasks and back, while input arrives. The pause is the one that `rescale` returns. All keys are
summed up at the end. A wrong sum ends the benchmark with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_machine
from benchmarks.reports.markdown_table import table
from benchmarks.restarts import (
    _CHECKED_IN,
    _ROWS,
    _SCRATCH,
    _SUBTASKS,
    WrongStateError,
    _plan,
    _sizes,
    _some,
    _stored,
)
from benchmarks.runs.session import Sessions, use_this_python

_MOST_S, _MOST_RATIO = 5.0, 1.5
_MOST_FILES_AHEAD = 10
_EPOCHS_BETWEEN = 5
"""So many epochs are committed before the next rescale."""

_HOW = (
    "A text key and two numbers per key. A checkpoint is taken every 10 s, and base snapshots are "
    "made as by default. A file with 1,000 rows arrives twice a second, while the query has "
    "processed all but ten. The pause is from the end of the last epoch before the rescale "
    "to the commit of the first epoch after it, as `rescale` returns it. The sum over all keys "
    "was compared at the end."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory))
        try:
            spark = sessions.new()
            machine = describe_machine(spark)
            figures = {
                backend: {
                    f"{keys:,} keys": _measure(spark, Path(directory), backend, keys, options)
                    for keys in _sizes(options)
                }
                for backend in options.backends
            }
        except WrongStateError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    text = _report(figures, machine, options.repetitions)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "rescale_in_place.md").write_text(text, encoding="utf-8")
    content = json.dumps({"machine": machine, "pause_ms": figures}, indent=2)
    (options.results / "rescale_in_place.json").write_text(f"{content}\n")
    return 0


def _measure(
    spark: SparkSession, base: Path, backend: str, keys: int, options: argparse.Namespace
) -> dict[str, list[int]]:
    """Return the pauses of the rescales up and down of one query, in milliseconds."""
    spark.conf.set("spark.ckpt.state.backend.type", backend)
    spark.conf.set("spark.sql.shuffle.partitions", _SUBTASKS)
    stored = _stored(spark, base / backend / str(keys), keys)

    def build() -> DataFrame:
        return _plan(spark, stored.source)

    location = base / backend / str(keys) / "rescaled"
    writer = ckpt.write_stream(build).format("noop").option("checkpointLocation", str(location))
    writer = writer.option("spark.ckpt.execution.checkpointing.interval", "10s")
    query = writer.restoreFrom(stored.checkpoint).start()
    ended, written = threading.Event(), [0]
    first = _epochs(location)

    def feed() -> None:
        while not ended.wait(0.5):
            if written[0] < (_epochs(location) - first + _MOST_FILES_AHEAD) * _ROWS:
                _some(spark).write.mode("append").parquet(str(stored.source))
                written[0] += _ROWS

    feeder = threading.Thread(target=feed)
    feeder.start()
    pauses: dict[str, list[int]] = {}
    try:
        while query.lastProgress is None:
            query.awaitTermination(1)
        for _ in range(options.repetitions):
            for subtasks in (2 * _SUBTASKS, _SUBTASKS):
                done = query.rescale(subtasks)
                name = f"{done.parallelism_before} to {done.parallelism}"
                print(f"{backend}, {keys:,} keys, {name}: {done.pause_ms} ms", flush=True)
                pauses.setdefault(name, []).append(done.pause_ms)
                epochs = _epochs(location)
                while _epochs(location) < epochs + _EPOCHS_BETWEEN:
                    query.awaitTermination(0.5)
    finally:
        ended.set()
        feeder.join()
    query.processAllAvailable()
    query.stop()
    with ckpt.location(str(location)).state() as snapshot:
        batches = [
            (batch.num_rows, pc.sum(batch["n"]).as_py())
            for batch in snapshot.state("op", "totals").to_arrow()
        ]
    found = sum(rows for rows, _ in batches), sum(n for _, n in batches)
    wanted = keys, stored.rows + written[0]
    if found != wanted:
        raise WrongStateError(f"{found}, expected {wanted}")
    return pauses


def _epochs(location: Path) -> int:
    """Return how many epochs have been committed."""
    commits = (location / "commits").glob("[0-9]*")
    return max((int(path.name) + 1 for path in commits), default=0)


def _report(
    figures: dict[str, dict[str, dict[str, list[int]]]], machine: dict[str, object], times: int
) -> str:
    lines = [
        "# The pause of a rescale in place",
        "",
        f"`python -m benchmarks.rescale_in_place`, {times} repetitions. {_HOW}",
        "",
    ]
    for backend, by_size in figures.items():
        small, large = by_size.values()
        rows = [["", *by_size, "ratio"]]
        for name in large:
            medians = [statistics.median(each[name]) / 1000 for each in (small, large)]
            seconds = [_spread(each[name]) for each in (small, large)]
            rows.append([name, *seconds, f"{medians[1] / medians[0]:.2f}"])
        lines += [
            f"## {backend}",
            "",
            f"Seconds, median (lowest to highest). Goal: {_MOST_S:.0f} s, ratio {_MOST_RATIO}.",
            "",
            *table(rows),
            "",
        ]
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join([*lines, f"Machine: {facts}.", ""])


def _spread(pauses_ms: Sequence[int]) -> str:
    seconds = [each / 1000 for each in pauses_ms]
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rescale_in_place",
        description="Measure the pause of a rescale in place, by the size of the state.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--scale", type=float, default=0.1, help="part of the sizes")
    parser.add_argument("--repetitions", type=int, default=3, help="of each")
    parser.add_argument("--backends", nargs="+", default=["rocksdb", "heap"])
    parser.add_argument("--results", type=Path, help="where figures go (default: by the scale)")
    options = parser.parse_args(arguments)
    options.results = options.results or (_CHECKED_IN if options.scale == 1 else _SCRATCH)
    return options


if __name__ == "__main__":
    sys.exit(main())
