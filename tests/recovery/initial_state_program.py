"""A driver program with an initial state that may be killed before epoch 0 is committed.

``python initial_state_program.py WORK_DIRECTORY WHERE`` reads ``WORK_DIRECTORY/input`` to its end
and writes each epoch's rows to ``WORK_DIRECTORY/epoch-<number>-<WHERE>``. It stops for ever, once
it has written ``WORK_DIRECTORY/<WHERE>``, while the initial state is made (`initial`) or after the
actions of epoch 0 (`epoch`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

KEYS = 6
OUTPUT_SCHEMA = "key string, n long, begun_ms long"


def stop_for_ever(work: Path, where: str) -> None:
    (work / where).touch()
    while True:
        signal.pause()


class Begun(StatefulProcessor):
    """Counts on from the initial state, and keeps the time when it was made."""

    def __init__(self, work: Path, where: str) -> None:
        self._work = work
        self._where = where

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long, begun_ms long")
        self._handle = handle

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        if self._where == "initial":
            stop_for_ever(self._work, self._where)
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        self._count.update((initialState.n, now_ms))
        self._handle.registerTimer(now_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, begun_ms = self._count.get() or (0, 0)
        n += sum(1 for _ in rows)
        self._count.update((n, begun_ms))
        yield Row(key=key[0], n=n, begun_ms=begun_ms)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(key=f"timer of {key[0]}", n=self._count.get()[0], begun_ms=None)

    def close(self) -> None:
        pass


def main(work: Path, where: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 3)
        .config("spark.local.dir", str(work / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    initial = spark.createDataFrame([(f"k{i}", 100 * i) for i in range(KEYS)], "key string, n long")
    rows = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1)
    counted = ckpt.key_by(rows.parquet(str(work / "input")), "key").transformWithState(
        Begun(work, where),
        OUTPUT_SCHEMA,
        "Append",
        "ProcessingTime",
        initialState=initial.groupBy("key"),
        uid="count",
    )

    def sink(batch: DataFrame, epoch: int) -> None:
        found = sorted(json.dumps(row.asDict()) for row in batch.collect())
        assert batch.count() == len(found)  # a second action
        (work / f"epoch-{epoch}-{where}").write_text("\n".join(found))
        if where == "epoch":
            stop_for_ever(work, where)

    writer = ckpt.write_stream(counted).foreachBatch(sink).trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / "location")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
