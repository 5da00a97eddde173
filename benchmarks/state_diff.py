"""``python -m benchmarks.state_diff``: what changed between two snapshots of many keys.

A query continues a savepoint of 10,000,000 keys and writes to 1 % of them. Its checkpoints before
and after have a version in common. Another such query takes base snapshots before each of them, so
they only have files of the database in common. The savepoint and an edited one, in which the same
keys were changed, have nothing in common, so all their entries are read. Each comparison runs in a
new process without Spark, and is timed after the imports. A wrong result ends it with status 1 and
without figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_host
from benchmarks.reports.markdown_table import table
from benchmarks.runs.session import use_this_python
from pyspark_ckpt.formats.metadata_file import decode_metadata

_CHECKED_IN = Path(__file__).parent / "results"
_KEYS = 10_000_000
_ONE_IN = 100
_LONGEST_S = 10.0
_FEW = 100
"""Keys that are written until base snapshots are complete; both subtasks have some of them."""
_DIFF = """
import json, sys, time
import pyarrow.compute as pc
import pyspark_ckpt as ckpt
old, new = sys.argv[1:]
began = time.perf_counter()
difference = ckpt.location(old).diff(new)
seconds = time.perf_counter() - began
(counts,) = difference.counts[["added", "removed", "changed"]].values.tolist()
rows = difference.to_arrow("op", "totals")
more = pc.sum(pc.subtract(rows["new_n"], rows["old_n"])).as_py()
print(json.dumps({"seconds": seconds, "found": [*counts, more]}))
"""


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


class WrongDifferenceError(Exception):
    """The difference is not what was changed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the results, and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        pairs = _pairs(Path(directory), options.keys)
        changed = -(-options.keys // _ONE_IN)
        try:
            seconds = {
                name: [_diff(old, new, [0, 0, changed, added]) for _ in range(options.times)]
                for name, (old, new, added) in pairs.items()
            }
        except WrongDifferenceError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
    text = _report(options.keys, seconds)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "state_diff.md").write_text(text, encoding="utf-8")
    figures = {"machine": describe_host(), "keys": options.keys, "diff_s": seconds}
    (options.results / "state_diff.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _pairs(directory: Path, keys: int) -> dict[str, tuple[str, str, int]]:
    """Make the snapshots, and end the session so that it takes no CPU from the comparisons."""
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
        first = edit.save(str(directory / "savepoints")).path
        edit = ckpt.edit_state(first, spark=spark)
        edited = edit.change("op", "totals", _add_one).save(str(directory / "edited")).path
        return {
            "two checkpoints": _checkpoints(spark, directory, first, keys, with_bases=False),
            "two checkpoints with base snapshots of their own": _checkpoints(
                spark, directory, first, keys, with_bases=True
            ),
            "a savepoint and an edited one": (first, edited, -(-keys // _ONE_IN)),
        }
    finally:
        spark.stop()


def _add_one(rows: pa.Table) -> pa.Table:
    """Add one to the first number of each key that the query writes to."""
    import pyarrow.compute as pc

    numbers = pc.cast(pc.utf8_slice_codeunits(rows["user"], len("user-")), "int64")
    is_some = pc.equal(pc.subtract(numbers, pc.multiply(pc.divide(numbers, _ONE_IN), _ONE_IN)), 0)
    n = pc.add(rows["n"], pc.cast(is_some, "int64"))
    return rows.set_column(rows.schema.get_field_index("n"), "n", n)


def _checkpoints(
    spark: SparkSession, directory: Path, first: str, keys: int, *, with_bases: bool
) -> tuple[str, str, int]:
    """Return a checkpoint before the writes to some keys, one after them, and the added numbers.

    With `with_bases`, both have a base snapshot that is younger than what was written before.
    """
    place = directory / f"bases-{with_bases}"
    source = str(place / "in")
    some = spark.range(0, keys, _ONE_IN).selectExpr("concat('user-', id) user")
    few = some.limit(_FEW).cache()
    some.limit(0).write.parquet(source)
    stream = spark.readStream.schema("user string").parquet(source)
    seen = ckpt.key_by(stream, "user").transformWithState(
        Totals(), "user string", "Append", "None", uid="op"
    )
    writer = (
        ckpt.write_stream(seen)
        .format("noop")
        .option("checkpointLocation", str(place / "location"))
        .option("spark.ckpt.execution.checkpointing.interval", "1h")
        .option("spark.ckpt.execution.checkpointing.num-retained", "100")
    )
    if with_bases:
        materialize = "spark.ckpt.internal.state.changelog.materialize"
        writer = writer.option(f"{materialize}.max-segments", "1")
        writer = writer.option(f"{materialize}.min-size", "1b")
    query = writer.restoreFrom(first).start()
    try:
        paths, added = [], 0
        for rows in (few, some):
            added = rows.count()
            rows.write.mode("append").parquet(source)
            query.processAllAvailable()
            checkpoint = query.triggerCheckpoint()
            written = checkpoint.epoch
            while with_bases and not _is_based_on(checkpoint.path, written):
                few.write.mode("append").parquet(source)  # an upload ends in an epoch with rows
                added += few.count()
                query.processAllAvailable()
                checkpoint = query.triggerCheckpoint()
            paths.append(checkpoint.path)
        return paths[0], paths[1], added
    finally:
        query.stop()


def _is_based_on(path: str, epoch: int) -> bool:
    """Return whether all base snapshots of a checkpoint have the state of an epoch."""
    metadata = decode_metadata((Path(path) / "_metadata").read_bytes(), path)
    bases = [handle.base for operator in metadata.operators for handle in operator.handles]
    return all(base is not None and base.epoch >= epoch for base in bases)


def _diff(old: str, new: str, expected: list[int]) -> float:
    command = [sys.executable, "-c", _DIFF, old, new]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    if answer["found"] != expected:
        raise WrongDifferenceError(f"{answer['found']}, expected {expected}")
    return float(answer["seconds"])


def _report(keys: int, seconds: dict[str, list[float]]) -> str:
    rows = [["snapshots", "seconds, median", "range", "target"]]
    for name, of_pair in seconds.items():
        median = statistics.median(of_pair)
        rows.append(
            [
                name,
                f"{median:.1f}",
                f"{min(of_pair):.1f} to {max(of_pair):.1f}",
                "reached" if median < _LONGEST_S else "NOT reached",
            ]
        )
    host = ", ".join(f"{name} {value}" for name, value in describe_host().items())
    shown = "\n".join(table(rows))
    return (
        f"# Differences of snapshots of {keys:,} keys\n\n"
        f"`python -m benchmarks.state_diff`: one key of {_ONE_IN} changed. A text key and two "
        "numbers per key, RocksDB, 2 subtasks, the local disk. Each comparison ran in a new "
        "process without Spark, after the imports. The counts and the sum of the changes were "
        f"compared with what was written. The target is less than {_LONGEST_S:.0f} s.\n\n"
        f"{shown}\n\nMachine: {host}.\n"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_diff", description=__doc__)
    parser.add_argument("--keys", type=int, default=_KEYS)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--results", type=Path, default=_CHECKED_IN)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
