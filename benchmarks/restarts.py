"""``python -m benchmarks.restarts``: how long a query with much state stands still.

Queries with 100,000 and with 10,000,000 keys are forked from a checkpoint, and forked with twice
the number of subtasks. They take turns in one session. The time is from the call of `start()` to
the commit of the first epoch, in which some keys get one row each. All keys are summed up at the
end of each fork. A wrong sum ends the benchmark with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_machine
from benchmarks.reports.markdown_table import table
from benchmarks.runs.session import Sessions, use_this_python
from benchmarks.runs.spark_run import report_epochs
from pyspark_ckpt.formats.metadata_file import decode_metadata

_CHECKED_IN = Path(__file__).parent / "results"
_SCRATCH = Path("bench-output")
_SIZES = (100_000, 10_000_000)
_SUBTASKS = 2
_ROWS = 1_000
_MOST_RESTART, _MOST_RESCALE = 1.5, 2.0
_HOW = (
    "A text key and two numbers per key. The checkpoint has base snapshots and a few segments. "
    "A fork lasts from `start()` to the commit of its first epoch, in which 1,000 keys get a row. "
    "No local copy is left from before. The contenders take turns in one session. The sum over all "
    "keys was compared after each fork."
)


class Totals(StatefulProcessor):
    """Adds one to the first number of each key that has a row."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.totals.get()
        self.totals.update((n + sum(1 for _ in rows), total))
        return iter(())

    def close(self) -> None:
        """Close nothing."""


_BASES_SOON = {
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "1",
    "spark.ckpt.internal.state.changelog.materialize.min-size": "1b",
}


class WrongStateError(Exception):
    """A fork does not have the state that it should have."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A query that has stopped: its input, its newest checkpoint, and the rows it has counted."""

    keys: int
    source: Path
    checkpoint: str
    rows: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory))
        try:
            spark = sessions.new()
            figures = {
                backend: _measure(spark, Path(directory) / backend, backend, options)
                for backend in options.backends
            }
            results = {"machine": describe_machine(spark), "seconds": figures}
        except WrongStateError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    results = {"keys": _sizes(options), "repetitions": options.repetitions, **results}
    text = _report(results)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "restarts.md").write_text(text, encoding="utf-8")
    (options.results / "restarts.json").write_text(json.dumps(results, indent=2) + "\n")
    return 0


def _sizes(options: argparse.Namespace) -> list[int]:
    return [max(1_000, int(keys * options.scale)) for keys in _SIZES]


def _measure(
    spark: SparkSession, base: Path, backend: str, options: argparse.Namespace
) -> dict[str, list[float]]:
    spark.conf.set("spark.ckpt.state.backend.type", backend)
    spark.conf.set("spark.sql.shuffle.partitions", _SUBTASKS)
    stored = [_stored(spark, base / str(keys), keys) for keys in _sizes(options)]
    _forked(spark, stored[0], base / "warm-up", _SUBTASKS)  # starts workers
    seconds: dict[str, list[float]] = {}
    for number in range(options.repetitions):
        turns = [(query, subtasks) for query in stored for subtasks in (_SUBTASKS, 2 * _SUBTASKS)]
        for query, subtasks in turns if number % 2 == 0 else reversed(turns):
            took = _forked(spark, query, base / "fork", subtasks)
            seconds.setdefault(_name(query.keys, subtasks), []).append(took)
    return seconds


def _name(keys: int, subtasks: int) -> str:
    return f"{keys:,} keys, {subtasks} subtasks"


def _plan(spark: SparkSession, source: Path) -> DataFrame:
    stream = spark.readStream.schema("user string").parquet(str(source))
    keyed = ckpt.key_by(stream, "user")
    return keyed.transformWithState(Totals(), "user string", "Append", "None", uid="op")


def _writer(counts: Any, location: Path) -> ckpt.CheckpointedStreamWriter:
    return (
        ckpt.write_stream(counts)
        .format("noop")
        .option("checkpointLocation", str(location))
        .option("spark.ckpt.execution.checkpointing.interval", "1h")
    )


def _stored(spark: SparkSession, directory: Path, keys: int) -> _Stored:
    """Let a query write all its state to base snapshots, and stop it."""
    rows = spark.range(keys).selectExpr(
        "concat('user-', id) user", "0L n", "cast(id as double) / 3 total"
    )
    edit = ckpt.edit_state(spark=spark).add_operator("op", Totals(), "user string")
    first = edit.put("op", "totals", rows).save(str(directory / "savepoints")).path
    source = directory / "in"
    some = _some(spark)
    some.limit(0).write.parquet(str(source))
    writer = _writer(_plan(spark, source), directory / "location").restoreFrom(first)
    for key, value in _BASES_SOON.items():  # a fork has the defaults, as users have them
        writer = writer.option(key, value)
    query = writer.start()
    try:
        written = 0
        while True:
            some.write.mode("append").parquet(str(source))
            written += _ROWS
            query.processAllAvailable()
            checkpoint = query.triggerCheckpoint()
            if _has_bases(checkpoint.path, since=2):
                return _Stored(keys, source, checkpoint.path, written)
    finally:
        query.stop()


def _some(spark: SparkSession) -> DataFrame:
    return spark.range(_ROWS).selectExpr("concat('user-', id) user").coalesce(1)


def _has_bases(path: str, since: int) -> bool:
    """Return whether all subtasks have a base snapshot that the query itself has taken."""
    metadata = decode_metadata((Path(path) / "_metadata").read_bytes(), path)
    bases = [handle.base for operator in metadata.operators for handle in operator.handles]
    return all(base is not None and base.epoch >= since for base in bases)


def _forked(spark: SparkSession, query: _Stored, directory: Path, subtasks: int) -> float:
    """Fork a query over one more file of input, and return the seconds it took."""
    before = {*query.source.iterdir()}
    _some(spark).write.mode("append").parquet(str(query.source))
    added = {*query.source.iterdir()} - before
    spark.conf.set("spark.sql.shuffle.partitions", subtasks)
    try:
        writer = _writer(_plan(spark, query.source), directory / "location")
        writer = writer.restoreFrom(query.checkpoint).trigger(availableNow=True)
        _delete_local_copies(spark)
        began_at = time.time()
        fork = writer.start()
        fork.awaitTermination()
        (epoch,) = report_epochs(fork)
        seconds = epoch.started_at + epoch.ms / 1000 - began_at
        with ckpt.location(str(directory / "location")).state() as snapshot:
            numbers = [
                (batch.num_rows, pc.sum(batch["n"]).as_py())
                for batch in snapshot.state("op", "totals").to_arrow()
            ]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", _SUBTASKS)
        for path in added:
            path.unlink()
        shutil.rmtree(directory, ignore_errors=True)
    found = sum(rows for rows, _ in numbers), sum(n for _, n in numbers)
    if found != (query.keys, query.rows + _ROWS):
        raise WrongStateError(f"{found}, expected {(query.keys, query.rows + _ROWS)}")
    return seconds


def _delete_local_copies(spark: SparkSession) -> None:
    """Delete the local copies of all queries, as if the machine were another one."""
    for copies in Path(spark.conf.get("spark.local.dir") or "").rglob("pyspark_ckpt"):
        shutil.rmtree(copies)


def _report(results: dict[str, Any]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    small, large = results["keys"]
    lines = [
        "# Forks and rescales by size of state",
        "",
        f"`python -m benchmarks.restarts`, {results['repetitions']} repetitions. {_HOW}",
        "",
    ]
    for backend, seconds in results["seconds"].items():
        restart = _ratio(seconds, _name(large, _SUBTASKS), _name(small, _SUBTASKS))
        rescale = _ratio(seconds, _name(large, 2 * _SUBTASKS), _name(large, _SUBTASKS))
        rows = [["", "seconds, median (lowest to highest)"]]
        rows += [[name, _spread(each)] for name, each in seconds.items()]
        lines += [
            f"## {backend}",
            "",
            f"- fork, {large:,} keys / {small:,} keys: {_judged(restart, _MOST_RESTART)}",
            f"- {large:,} keys, {2 * _SUBTASKS} / {_SUBTASKS}: {_judged(rescale, _MOST_RESCALE)}",
            "",
            *table(rows),
            "",
        ]
    return "\n".join([*lines, f"Machine: {machine}.", ""])


def _ratio(seconds: dict[str, list[float]], one: str, other: str) -> list[float]:
    return [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]


def _judged(ratios: list[float], most: float) -> str:
    reached = "reached" if statistics.median(ratios) <= most else "missed"
    return f"{_spread(ratios)}, target at most {most}: {reached}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restarts",
        description="Measure how long a fork and a rescale take, by the size of the state.",
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
