"""A driver program that may be killed: makes savepoints from a table, one after the other.

``python edit_program.py WORK_DIRECTORY`` makes ``WORK_DIRECTORY/source`` once, then edits of it in
``WORK_DIRECTORY/edited`` until it is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

KEYS = 20_000


class Count(StatefulProcessor):
    """Declares one value state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], n=0)

    def close(self) -> None:
        pass


def main(work: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(work / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(KEYS).selectExpr("id k", "id * 3 n")
    found = sorted((work / "source").glob("savepoint-*"))
    if not found:
        first = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k long")
        found = [Path(first.put("op", "count", rows).save(str(work / "source")).path)]
    while True:
        edit = ckpt.edit_state(str(found[0])).put("op", "count", rows.selectExpr("k", "n + 1 n"))
        edit.erase("op", spark.range(1).selectExpr("id k")).save(str(work / "edited"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
