"""A driver program with an operator after windows of Spark, which is killed in an epoch.

``python windows_program.py WORK_DIRECTORY WHERE`` reads ``WORK_DIRECTORY/input`` to its end and
writes each epoch's rows to ``WORK_DIRECTORY/epoch-<number>``. If `WHERE` is a number, the program
stops for ever in that epoch, after its actions and before Spark commits it, once it has written
``WORK_DIRECTORY/stopped``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.program_session import program_session
from tests.recovery.stopping_epoch import epochs_written

LENGTH_S = 4


class Summed(StatefulProcessor):
    """Number the windows of a key and sum their rows; a timer yields what was summed by then."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "windows long, rows long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.window["end"]):
            windows, summed = self._seen.get() or (0, 0)
            self._seen.update((windows + 1, summed + row["count"]))
            end_ms = round(row.window["end"].timestamp() * 1000)
            self._handle.registerTimer(end_ms + 1000 * LENGTH_S)
            yield Row(key=key[0], at=end_ms, n=windows + 1, rows=summed + row["count"])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        windows, summed = self._seen.get()
        yield Row(key=key[0], at=-expiredTimerInfo.getExpiryTimeInMs(), n=windows, rows=summed)

    def close(self) -> None:
        pass


def main(work: Path, where: str) -> None:
    spark = program_session(work)
    rows = spark.readStream.schema("key string, ts timestamp").option("maxFilesPerTrigger", 1)
    timed = rows.parquet(str(work / "input")).withWatermark("ts", "2 seconds")
    counts = timed.groupBy(F.window("ts", f"{LENGTH_S} seconds"), "key").count()
    summed = ckpt.key_by(counts, "key").transformWithState(
        Summed(), "key string, at long, n long, rows long", "Append", "EventTime", uid="summed"
    )

    writer = ckpt.write_stream(summed).foreachBatch(epochs_written(work, where))
    writer = writer.trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / "location")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
