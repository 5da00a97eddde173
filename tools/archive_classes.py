"""Archives the classes that Spark loads: a JVM that shares them starts in about half the time.

``python tools/archive_classes.py ARCHIVE JAR`` runs a small query with ``JAR`` first on the class
path, as every user of the archive must. The JVM writes the archive when it ends. `make test` does
so once. A JVM or Spark of another version ignores the archive.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

QUIET = "-Xlog:cds=off,cds+dynamic=off"


class Count(StatefulProcessor):
    """Counts rows."""

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Yield the new count."""
        (n,) = self._count.get() or (0,)
        self._count.update((n + sum(1 for _ in rows),))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        """Nothing to close."""


def main(archive: Path, first: Path) -> None:
    """Let a JVM write the archive, which appears when it is complete."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # as tests do
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {first} pyspark-shell"
    with tempfile.TemporaryDirectory() as directory:
        spark = _session(Path(directory), unfinished)
        _run_query(spark, Path(directory))
        spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # that ends the JVM
    gateway.proc.wait()
    unfinished.replace(archive)


def _session(directory: Path, archive: Path) -> SparkSession:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={archive} {QUIET}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _run_query(spark: SparkSession, directory: Path) -> None:
    (directory / "in").mkdir()
    pd.DataFrame({"k": ["a", "b", "a"]}).to_parquet(directory / "in" / "rows.parquet")
    rows = spark.readStream.schema("k string").parquet(str(directory / "in"))
    counts = ckpt.key_by(rows, "k").transformWithState(
        Count(), "k string, n long", "Append", "None", uid="count"
    )
    writer = ckpt.write_stream(counts).option("checkpointLocation", str(directory / "location"))
    query = writer.option("path", str(directory / "out")).format("parquet").start()
    query.processAllAvailable()
    query.triggerSavepoint(str(directory / "savepoints"))
    query.stop()
    assert spark.read.parquet(str(directory / "out")).count() == 2


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
