"""``python -m benchmarks.state_reads``: one key, and all entries, of savepoints.

The savepoints are canonical, and in the native formats of both backends. Each read runs in a new
process without Spark, and is timed from ``open_state`` to its result, after the imports.
A wrong result ends it with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from benchmarks.bootstrap import Totals
from benchmarks.machine.properties import describe_host
from benchmarks.reports.markdown_table import table
from benchmarks.runs.session import use_this_python

_CHECKED_IN = Path(__file__).parent / "results"
_KEYS = 10_000_000
_LONGEST_GET_S = 0.5
_LEAST_ENTRIES_PER_S = 1_000_000
_KINDS = ("canonical", "rocksdb", "heap")
_HOW = (
    "A text key and two numbers per key, in savepoints of 2 subtasks on the local disk: canonical, "
    "and native of a query with each backend. "
    "Each read ran in a new process without Spark. Its time is from `open_state` to the result, "
    "after the imports. The files had just been written, so they were in memory. "
    "The value of each key that was read, the number of all entries and the sum "
    "of a column were compared with what was put in."
)

_READ = """
import json, sys, time
import pyarrow.compute as pc
import pyspark_ckpt as ckpt
path, key = sys.argv[1], sys.argv[2]
began = time.perf_counter()
with ckpt.location(path).state() as snapshot:
    view = snapshot.state("op", "totals")
    if key:
        found = view.get(key)
        seconds = time.perf_counter() - began
    else:
        rows = total = 0
        for batch in view.to_arrow():
            rows += batch.num_rows
            total += pc.sum(batch.column("n")).as_py() or 0
        seconds = time.perf_counter() - began
        found = [rows, total]
print(json.dumps({"seconds": seconds, "found": found}))
"""


class WrongReadError(Exception):
    """What was read is not what was put in."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the results, and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    reads: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        paths = _savepoints(Path(directory), options.keys)
        try:
            for kind in _KINDS:
                gets, scans = _measure(paths[kind], options.keys, options.gets, options.scans)
                reads[kind] = {"get_s": gets, "scan_s": scans}
        except WrongReadError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
    text = _report(options.keys, reads)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "state_reads.md").write_text(text, encoding="utf-8")
    figures = {"machine": describe_host(), "keys": options.keys, "reads": reads}
    (options.results / "state_reads.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _savepoints(directory: Path, keys: int) -> dict[str, str]:
    """Make a savepoint of each kind, and end the session so that it takes no CPU from the reads."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", f"{directory}/local")
        .getOrCreate()
    )
    try:
        rows = spark.range(keys).selectExpr(
            "concat('user-', id) user", "id % 1000 n", "cast(id as double) / 3 total"
        )
        edit = ckpt.edit_state(spark=spark).add_operator("op", Totals(), "user string")
        edit.put("op", "totals", rows)
        canonical = edit.save(str(directory / "savepoints")).path
        native = {kind: _native(spark, directory, canonical, kind) for kind in _KINDS[1:]}
        return {_KINDS[0]: canonical, **native}
    finally:
        spark.stop()


def _native(spark: SparkSession, directory: Path, canonical: str, backend: str) -> str:
    """Continue the savepoint as a query for one epoch, which changes no state, and save it."""
    source = str(directory / "in")
    spark.createDataFrame([("user-0",)], "user string").write.mode("ignore").parquet(source)
    stream = spark.readStream.schema("user string").parquet(source)
    seen = ckpt.key_by(stream, "user").transformWithState(
        Totals(), "user string", "Append", "None", uid="op"
    )
    query = (
        ckpt.write_stream(seen)
        .format("noop")
        .option("checkpointLocation", f"{directory}/{backend}")
        .option("spark.ckpt.state.backend.type", backend)
        .restoreFrom(canonical)
        .start()
    )
    try:
        query.processAllAvailable()
        return query.triggerSavepoint(f"{directory}/{backend}-savepoints", format="NATIVE").path
    finally:
        query.stop()


def _measure(path: str, keys: int, gets: int, scans: int) -> tuple[list[float], list[float]]:
    get_s = []
    for place in range(gets):
        number = place * (keys - 1) // max(gets - 1, 1)
        expected = {"n": number % 1000, "total": number / 3}
        get_s.append(_read(path, f"user-{number}", expected))
    total = sum(number % 1000 for number in range(keys))
    return get_s, [_read(path, "", [keys, total]) for _ in range(scans)]


def _read(path: str, key: str, expected: object) -> float:
    command = [sys.executable, "-c", _READ, path, key]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    if answer["found"] != expected:
        raise WrongReadError(f"{key or 'all entries'}: {answer['found']}, expected {expected}")
    return float(answer["seconds"])


def _report(keys: int, reads: dict[str, dict[str, list[float]]]) -> str:
    rows = [["savepoint", "one key, s", "range", "all entries, s", "range", "entries/s", "targets"]]
    for kind, of_kind in reads.items():
        gets, scans = of_kind["get_s"], of_kind["scan_s"]
        get_s, rate = statistics.median(gets), keys / statistics.median(scans)
        is_reached = get_s < _LONGEST_GET_S and rate >= _LEAST_ENTRIES_PER_S
        rows.append(
            [
                kind,
                f"{get_s:.3f}",
                f"{min(gets):.3f} to {max(gets):.3f}",
                f"{statistics.median(scans):.1f}",
                f"{min(scans):.1f} to {max(scans):.1f}",
                f"{rate:,.0f}",
                "reached" if is_reached else "NOT reached",
            ]
        )
    gets, scans = next(iter(reads.values())).values()
    host = ", ".join(f"{name} {value}" for name, value in describe_host().items())
    shown = "\n".join(table(rows))
    return (
        f"# Reads of savepoints of {keys:,} keys\n\n"
        f"`python -m benchmarks.state_reads`: {len(gets)} keys, {len(scans)} scans; medians. "
        f"{_HOW} The targets are one key in less than {_LONGEST_GET_S} s, and "
        f"{_LEAST_ENTRIES_PER_S:,} entries/s.\n\n"
        f"{shown}\n\nMachine: {host}.\n"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_reads", description=__doc__)
    parser.add_argument("--keys", type=int, default=_KEYS)
    parser.add_argument("--gets", type=int, default=9)
    parser.add_argument("--scans", type=int, default=3)
    parser.add_argument("--results", type=Path, default=_CHECKED_IN)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
