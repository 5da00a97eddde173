"""``python -m benchmarks.cost_per_key``: whether a key costs the same in a small and a large state.

A query takes all keys in one epoch, so its state is mostly changes that no base snapshot has yet.
Then two savepoints are taken, one is forked, and one is read, for states of several sizes. The
number of keys and the sum of a column are compared each time. A wrong result ends the benchmark
with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_machine
from benchmarks.reports.markdown_table import table
from benchmarks.runs.session import Sessions, use_this_python

_CHECKED_IN = Path(__file__).parent / "results"
_MILLIONS = (1, 2, 4, 8, 16)
SUBTASKS = 2
_STEPS = ("first savepoint", "second savepoint", "fork", "scan")
_MOST_RATIO = 1.5
_HOW = (
    "A long and a text of 40 characters per key, 2 subtasks, canonical savepoints. All keys came "
    "in one epoch before the first savepoint. A fork lasts from `start()` to the commit of its "
    "first epoch, which has one row. After each step the keys and the sum of their numbers were "
    "compared."
)


class Newest(ckpt.ArrowProcessor):
    """Keeps the newest number and text of each key."""

    def init(self, handle: Any) -> None:
        self.newest = handle.getValueState("newest", "n long, s string")

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        self.newest.updateMany(keys, rows.select(["n", "s"]))
        return iter(())

    def close(self) -> None:
        """Close nothing."""


class WrongStateError(Exception):
    """A savepoint does not have what was put in."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory))
        try:
            spark = sessions.new()
            spark.conf.set("spark.sql.shuffle.partitions", SUBTASKS)
            _measure(spark, Path(directory) / "warm-up", "heap", 1_000)  # starts workers
            for backend in options.backends:
                figures[backend] = {}
                for millions in options.millions:
                    keys = int(millions * 1_000_000)
                    measured = _measure(spark, Path(directory) / "run", backend, keys)
                    figures[backend][f"{millions:g}"] = measured
                    shutil.rmtree(Path(directory) / "run")
                    print(backend, millions, measured, flush=True)
            machine = describe_machine(spark)
        except WrongStateError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    text = _report(figures, machine)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "cost_per_key.md").write_text(text, encoding="utf-8")
    results = {"machine": machine, "seconds_per_million_keys": figures}
    (options.results / "cost_per_key.json").write_text(json.dumps(results, indent=2) + "\n")
    return 0


def _measure(spark: SparkSession, base: Path, backend: str, keys: int) -> dict[str, float]:
    """Return the seconds of each step per million keys."""
    spark.conf.set("spark.ckpt.state.backend.type", backend)
    source = str(base / "in")
    rows_of(spark, keys).repartition(SUBTASKS).write.parquet(source)
    total = total_of(keys)
    seconds = {}
    query = started(spark, source, base / "location")
    try:
        query.processAllAvailable()
        for step in _STEPS[:2]:
            seconds[step], saved = _timed(lambda: query.triggerSavepoint(str(base / "saved")))
            check_savepoint(saved.path, keys, total, f"{backend}, {keys} keys, {step}")
    finally:
        query.stop()
    forked, path = base / "forked", saved.path
    spark.range(1).selectExpr("id k", "0L n", "'' s").write.mode("append").parquet(source)
    seconds["fork"], query = _timed(lambda: with_an_epoch(started(spark, source, forked, path)))
    try:
        of_fork = query.triggerSavepoint(str(base / "saved")).path
    finally:
        query.stop()
    check_savepoint(of_fork, keys, total, f"{backend}, {keys} keys, fork")
    seconds["scan"], _ = _timed(
        lambda: check_savepoint(path, keys, total, f"{backend}, {keys} keys, scan")
    )
    return {step: each / keys * 1_000_000 for step, each in seconds.items()}


def rows_of(spark: SparkSession, keys: int) -> DataFrame:
    """Return a row for each key: the key, a number below 1000, and a text."""
    return spark.range(keys).selectExpr(
        "id k", "id % 1000 n", "rpad(cast(id as string), 40, 'x') s"
    )


def total_of(keys: int) -> int:
    """Return the sum of the numbers of all keys."""
    return keys // 1000 * 499_500 + sum(range(keys % 1000))


def started(
    spark: SparkSession,
    source: str,
    location: Path,
    savepoint: str | None = None,
    key_groups: int | None = None,
) -> ckpt.CheckpointedQuery:
    """Return a query over the rows that are and come in a directory."""
    stream: DataFrame = spark.readStream.schema("k long, n long, s string").parquet(source)
    kept = ckpt.key_by(stream, "k", max_parallelism=key_groups).transformWithState(
        Newest(), "k long", "Append", "None", uid="op"
    )
    writer = ckpt.write_stream(kept).format("noop").option("checkpointLocation", str(location))
    return (writer if savepoint is None else writer.restoreFrom(savepoint)).start()


def with_an_epoch(query: ckpt.CheckpointedQuery) -> ckpt.CheckpointedQuery:
    """Return a query that has run over all its input."""
    query.processAllAvailable()
    return query


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def check_savepoint(path: str, keys: int, total: int, what: str) -> None:
    """Read all entries of a savepoint, and compare them with what was put in."""
    found = found_total = 0
    with ckpt.location(path).state() as snapshot:
        for batch in snapshot.state("op", "newest").to_arrow():
            found += batch.num_rows
            found_total += pc.sum(batch.column("n")).as_py() or 0
    if (found, found_total) != (keys, total):
        raise WrongStateError(f"{what}: {found} keys, sum {found_total}, expected {keys}, {total}")


def _report(figures: dict[str, dict[str, dict[str, float]]], machine: dict[str, Any]) -> str:
    rows = [["backend", "step", *(f"{each} M" for each in next(iter(figures.values()))), "rise"]]
    for backend, by_size in figures.items():
        for step in _STEPS:
            costs = [each[step] for each in by_size.values()]
            ratio = max(later / min(costs[: n + 1]) for n, later in enumerate(costs))
            reached = "" if ratio <= _MOST_RATIO else " NOT reached"
            rows.append(
                [backend, step, *(f"{cost:.2f}" for cost in costs), f"{ratio:.2f}{reached}"]
            )
    host = ", ".join(f"{name} {value}" for name, value in machine.items())
    shown = "\n".join(table(rows))
    return (
        "# Cost per key by the size of the state\n\n"
        f"`python -m benchmarks.cost_per_key`: seconds per million keys. {_HOW} The last column is "
        f"the most by which a key costs more than in a smaller state; the target is at most "
        f"{_MOST_RATIO}.\n\n"
        f"{shown}\n\nMachine: {host}.\n"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_per_key", description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=_MILLIONS)
    parser.add_argument("--backends", nargs="+", default=("heap", "rocksdb"))
    parser.add_argument("--results", type=Path, default=_CHECKED_IN)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
