"""``python -m benchmarks.bootstrap``: the first savepoint of a query from a table of its history.

Compared with copies of the resulting savepoint: a canonical copy, which is what a savepoint of
that state takes, and a plain copy of its files. A wrong state ends it with status 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_machine
from benchmarks.reports.markdown_table import table
from benchmarks.runs.session import use_this_python

_CHECKED_IN = Path(__file__).parent / "results"
_KEYS = 10_000_000
_SAMPLE = 50
_MOST_TIMES_A_COPY = 2


class Totals(StatefulProcessor):
    """Declares one value state of two numbers."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(user=key[0])

    def close(self) -> None:
        """Close nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the results, and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.local.dir", f"{directory}/local")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        history = _history(spark, options.keys, Path(directory))
        times: dict[str, list[float]] = {}
        for repetition in range(options.repetitions):
            base = Path(directory) / str(repetition)
            wrong = _measure(spark, history, options.keys, base, times)
            if wrong:
                print(f"WRONG RESULT, no figures: {wrong}", file=sys.stderr)
                return 1
            shutil.rmtree(base)
        _write(options.results / "bootstrap", options.keys, times, describe_machine(spark))
        spark.stop()
    return 0


def _history(spark: SparkSession, keys: int, directory: Path) -> DataFrame:
    rows = spark.range(keys).selectExpr(*_COLUMNS)
    rows.write.parquet(str(directory / "history"))
    return spark.read.parquet(str(directory / "history"))


_COLUMNS = "concat('user-', id) user", "id % 1000 n", "cast(id as double) / 3 total"


def _measure(
    spark: SparkSession, history: DataFrame, keys: int, base: Path, times: dict[str, list[float]]
) -> str:
    """Measure one repetition; return what is wrong with the savepoint, or nothing."""
    edit = ckpt.edit_state(spark=spark).add_operator("op", Totals(), "user string")
    edit.put("op", "totals", history)
    first = _timed(times, "bootstrap", lambda: edit.save(str(base / "first")))
    copy = _timed(
        times,
        "canonical copy",
        lambda: ckpt.edit_state(first.path, spark=spark).save(str(base / "copy")),
    )
    _timed(times, "plain copy", lambda: shutil.copytree(first.path, base / "plain"))
    for path in (first.path, copy.path):
        with ckpt.location(path).state() as snapshot:
            view = snapshot.state("op", "totals")
            for number in range(0, keys, max(keys // _SAMPLE, 1)):
                found = view.get(f"user-{number}")
                if found != {"n": number % 1000, "total": number / 3}:
                    return f"user-{number} has {found} in {path}"
            rows = sum(batch.num_rows for batch in view.to_arrow())
            if rows != keys:
                return f"{rows} of {keys} keys in {path}"
    return ""


def _timed(times: dict[str, list[float]], name: str, work: Callable[[], Any]) -> Any:
    began = time.monotonic()
    made = work()
    times.setdefault(name, []).append(time.monotonic() - began)
    return made


def _write(path: Path, keys: int, times: dict[str, list[float]], machine: dict[str, Any]) -> None:
    ratios = {
        name: [b / c for b, c in zip(times["bootstrap"], found, strict=True)]
        for name, found in times.items()
    }
    as_json = {"machine": machine, "keys": keys, "seconds": times}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(as_json, indent=1) + "\n")
    rows = [
        [
            name,
            f"{statistics.median(found):.1f}",
            f"{min(found):.1f} to {max(found):.1f}",
            f"{statistics.median(ratios[name]):.1f}",
        ]
        for name, found in times.items()
    ]
    header = ["", "seconds", "range", "bootstrap takes times as long"]
    shown = "\n".join(table([header, *rows]))
    host = ", ".join(f"{name} {value}" for name, value in machine.items())
    slowness = statistics.median(ratios["canonical copy"])
    verdict = "reached" if slowness <= _MOST_TIMES_A_COPY else "NOT reached"
    text = (
        f"# The first savepoint of {keys:,} keys from a table\n\n"
        "`python -m benchmarks.bootstrap`: a text key and two numbers per key, 2 subtasks. The "
        "canonical copy\nreads and writes the same entries, as a savepoint does. The target is at "
        f"most {_MOST_TIMES_A_COPY} times a copy.\nEvery key was counted, and {_SAMPLE} were "
        f"compared.\n\nTarget: {slowness:.1f} times a canonical copy, {verdict}.\n\n"
        f"{shown}\n\nMachine: {host}.\n"
    )
    path.with_suffix(".md").write_text(text)
    print(text, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bootstrap", description=__doc__)
    parser.add_argument("--keys", type=int, default=_KEYS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--results", type=Path, default=_CHECKED_IN)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
