"""A driver program that may be killed: makes savepoints from a table, one after the other.

``python edit_program.py WORK_DIRECTORY KIND`` makes ``WORK_DIRECTORY/source`` once, then edits
of it in ``WORK_DIRECTORY/edited`` until it is killed. The source is a ``canonical`` savepoint of
one operator from a table, or a ``native`` one of a query with two operators on RocksDB.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

KEYS = 20_000
NATIVE_KEYS = 4_000


class Count(StatefulProcessor):
    """Declares one value state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], n=0)

    def close(self) -> None:
        pass


class Timed(StatefulProcessor):
    """Passes rows on, and keeps a value, a list and a timer of each key."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "n long")
        self.all = handle.getListState("all", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.n,))
            self.all.appendList([(row.n,), (-row.n,)])
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 86_400_000)
            yield Row(k=key[0], n=row.n)

    def close(self) -> None:
        pass


class Kept(Count):
    """Keeps the last number; its operator is not changed by the edits."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.count.update((row.n,))
            yield Row(k=key[0], n=row.n)


def main(work: Path, kind: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.local.dir", str(work / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    if kind == "native":
        edit_two_operators(spark, work)
    else:
        edit_one_operator(spark, work)


def edit_one_operator(spark: SparkSession, work: Path) -> None:
    rows = spark.range(KEYS).selectExpr("id k", "id * 3 n")
    found = sorted((work / "source").glob("savepoint-*"))
    if not found:
        first = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k long")
        found = [Path(first.put("op", "count", rows).save(str(work / "source")).path)]
    while True:
        edit = ckpt.edit_state(str(found[0])).put("op", "count", rows.selectExpr("k", "n + 1 n"))
        edit.erase("op", spark.range(1).selectExpr("id k")).save(str(work / "edited"))


def edit_two_operators(spark: SparkSession, work: Path) -> None:
    """Change states and timers of one operator by a function; the other is copied."""
    found = sorted((work / "source").glob("savepoint-*"))
    if not found:
        found = [Path(native_savepoint(spark, work))]
    while True:
        edit = ckpt.edit_state(str(found[0]))
        edit.change("timed", "last", lambda rows: rows.assign(n=rows.n + 1), as_pandas=True)
        timers = edit.timers("timed")
        later = timers.fires_at + F.expr("interval 1 hour")
        edit.set_timers("timed", timers.withColumn("fires_at", later))
        edit.erase("timed", spark.range(1).selectExpr("id k")).save(str(work / "edited"))


def native_savepoint(spark: SparkSession, work: Path) -> str:
    spark.range(NATIVE_KEYS).selectExpr("id k", "id * 3 n").write.parquet(str(work / "input"))
    rows = spark.readStream.schema("k long, n long").parquet(str(work / "input"))
    timed = ckpt.key_by(rows, "k").transformWithState(
        Timed(), "k long, n long", "Append", "ProcessingTime", uid="timed"
    )
    kept = ckpt.key_by(timed, "k").transformWithState(
        Kept(), "k long, n long", "Append", "None", uid="kept"
    )
    writer = (
        ckpt.write_stream(kept).format("noop").option("spark.ckpt.state.backend.type", "rocksdb")
    )
    query = writer.option("checkpointLocation", str(work / "location")).start()
    try:
        query.processAllAvailable()
        return query.triggerSavepoint(str(work / "source"), format="NATIVE").path
    finally:
        query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
