"""A driver whose processor comes from a notebook's cell and fails; it prints the query's error."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt

FILE = "/tmp/ipykernel_1/2.py"  # as ipykernel names a cell; never made
CELL = """from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

class Failing(StatefulProcessor):
    def init(self, handle):
        self.state = handle.getValueState("n", "n long")
    def handleInputRows(self, key, rows, timerValues):
        yield Row(n=1 // 0)
    def close(self):
        pass
"""


def main(base: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, FILE, "exec"), names)
    linecache.cache[FILE] = (len(CELL), None, CELL.splitlines(keepends=True), FILE)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
    rows = spark.readStream.format("rate").load().selectExpr("value % 3 AS k")
    failing = ckpt.key_by(rows, "k").transformWithState(
        names["Failing"](), "n long", "Append", "None", uid="op"
    )
    writer = ckpt.write_stream(failing).format("noop")
    query = writer.option("checkpointLocation", str(base / "loc")).start()
    try:
        query.awaitTermination()
    except StreamingQueryException:
        print(query.exception())
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
