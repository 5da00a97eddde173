"""Gives a query that began as golden data the next input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.golden import program
from tests.golden.make import write_input
from tests.golden.program import Sink


def expected_of(golden: Path) -> dict[str, Any]:
    return json.loads((golden.parent / "expected.json").read_text())


def run(
    spark: SparkSession,
    base: Path,
    location: Path,
    expected: Any,
    options: Any,
    restore: Any = None,
    *,
    is_merged: bool = False,
) -> Sink:
    """Give the query the next input, until it has emitted everything."""
    for number, files in expected["later"].items():
        write_input(base, int(number), files["rows"], files["rules"])
    sink = Sink()
    writer = program.writer(spark, base, location, sink, options, is_merged=is_merged)
    query = (writer if restore is None else writer.restoreFrom(str(restore))).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return sink
