"""A driver that runs commands line by line: start a query, describe it, checkpoint it, stop it.

``python second_driver_program.py WORK_DIRECTORY NAME`` answers each line of its standard input with
a line of JSON that begins with ``>``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt


class Count(StatefulProcessor):
    """Numbers the rows of each key."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self._count.get() or (0,)
        for _ in rows:
            n += 1
            yield Row(k=key[0], n=n)
        self._count.update((n,))

    def close(self) -> None:
        pass


class Driver:
    """One driver and its query."""

    def __init__(self, work: Path, name: str) -> None:
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", 1)
            .config("spark.local.dir", str(work / f"local-{name}"))
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")
        self._query: ckpt.CheckpointedQuery | None = None

    def do(self, what: str, *arguments: str) -> dict[str, Any]:
        try:
            return getattr(self, f"_{what}")(*arguments)
        except Exception as exc:
            return {"error": type(exc).__name__, "message": str(exc)[:500]}

    def _start(self, location: str, interval: str) -> dict[str, Any]:
        rows = self._spark.readStream.format("rate").option("rowsPerSecond", 40).load()
        self._begin(rows.select((F.col("value") % 3).alias("k")), location, interval, "0 seconds")
        return {"started": True}

    def _follow(self, location: str, inputs: str, seconds: str) -> dict[str, Any]:
        """Start a query that looks for new files of text after so many seconds."""
        rows = self._spark.readStream.text(inputs)
        keys = rows.select(F.col("value").cast("long").alias("k"))
        self._begin(keys, location, "1h", f"{seconds} seconds")
        return {"started": True}

    def _begin(self, keys: DataFrame, location: str, interval: str, trigger: str) -> None:
        self._query = None

        def counted() -> DataFrame:
            keyed = ckpt.key_by(keys, "k")
            return keyed.transformWithState(Count(), "k long, n long", "Append", "None", uid="op")

        writer = ckpt.write_stream(counted).format("noop").outputMode("append")
        writer = writer.option("checkpointLocation", location).trigger(processingTime=trigger)
        self._query = writer.option("spark.ckpt.execution.checkpointing.interval", interval).start()

    def _tell(self) -> dict[str, Any]:
        if self._query is None:
            return {"active": False, "epoch": -1}
        is_active = self._query.isActive
        failure = None if is_active else self._query.exception()
        return {
            "active": is_active,
            "epoch": (self._query.lastProgress or {}).get("batchId", -1),
            "failure": failure and f"{type(failure).__name__}: {str(failure)[:500]}",
        }

    def _checkpoint(self) -> dict[str, Any]:
        assert self._query is not None
        return {"epoch": self._query.triggerCheckpoint().epoch}

    def _rescale(self, parallelism: str) -> dict[str, Any]:
        assert self._query is not None
        self._query.rescale(int(parallelism))
        return {"rescaled": True}

    def _drain(self, savepoints: str) -> dict[str, Any]:
        assert self._query is not None
        self._query.stopWithSavepoint(savepoints, drain=True)
        return {"drained": True}

    def _count(self, key: str) -> dict[str, Any]:
        assert self._query is not None
        value = self._query.state("op", "count").get(int(key))
        return {"n": value and value["n"]}

    def _stop(self) -> dict[str, Any]:
        if self._query is not None:
            self._query.stop()
        return {"stopped": True}


if __name__ == "__main__":
    driver = Driver(Path(sys.argv[1]), sys.argv[2])
    print(">", json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(">", json.dumps(driver.do(*line.split())), flush=True)
