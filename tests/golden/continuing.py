"""Gives a query that began as golden data the next input."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.golden import program
from tests.golden.program import Sink


def expected_of(golden: Path) -> dict[str, Any]:
    return json.loads((golden.parent / "expected.json").read_text())


def write_input(base: Path, number: int, rows: Any, rules: Any) -> None:
    """Add an epoch's files."""

    def stamp(ms: int) -> str:
        return dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    lines = {
        "rows": [{"k": k, "v": v, "ts": stamp(ts)} for k, v, ts in rows],
        "rules": [{"name": name, "factor": factor} for name, factor in rules],
    }
    for name, content in lines.items():
        (base / name).mkdir(parents=True, exist_ok=True)
        path = base / name / f"f{number:05}.json"
        path.write_text("".join(json.dumps(line) + "\n" for line in content))
        os.utime(path, (1_700_000_000 + number,) * 2)


def run(
    spark: SparkSession,
    base: Path,
    location: Path,
    expected: Any,
    options: Any,
    restore: Any = None,
) -> Sink:
    """Give the query the next input, until it has emitted everything."""
    for number, files in expected["later"].items():
        write_input(base, int(number), files["rows"], files["rules"])
    sink = Sink()
    writer = program.writer(spark, base, location, sink, options)
    query = (writer if restore is None else writer.restoreFrom(str(restore))).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return sink
