"""A driver program whose processor gets late rows, which is killed at any time.

``python late_rows_program.py WORK_DIRECTORY WHERE [MASTER]`` reads ``WORK_DIRECTORY/input`` to its
end and writes each epoch's rows to ``WORK_DIRECTORY/epoch-<number>``. If `WHERE` is a number, the
program stops for ever in that epoch, after its actions and before Spark commits it, once it has
written ``WORK_DIRECTORY/stopped``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.recovery.stopping_epoch import epochs_written

DELAY_S = 5


class Audit(StatefulProcessor):
    """Number the rows of each key, and the late rows of each key apart from them."""

    def init(self, handle: Any) -> None:
        self._in_time = handle.getValueState("in_time", "n long")
        self._late = handle.getValueState("late", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return self._numbered(key, rows, self._in_time, is_late=False)

    def handleLateRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return self._numbered(key, rows, self._late, is_late=True)

    def _numbered(
        self, key: Any, rows: Iterator[Row], count: Any, *, is_late: bool
    ) -> Iterator[Row]:
        (n,) = count.get() or (0,)
        for row in rows:
            n += 1
            yield Row(key=key[0], v=row.v, is_late=is_late, n=n)
        count.update((n,))

    def close(self) -> None:
        pass


def main(work: Path, where: str, master: str = "local[2]") -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 3)
        .config("spark.local.dir", str(work / "local"))
        .config("spark.executor.memory", "1g")
        .config("spark.task.maxFailures", 8)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema("key string, v long, at timestamp")
    rows = rows.option("maxFilesPerTrigger", 1).parquet(str(work / "input"))
    keyed = ckpt.key_by(rows.withWatermark("at", f"{DELAY_S} seconds"), "key")
    audited = keyed.transformWithState(
        Audit(), "key string, v long, is_late boolean, n long", "Append", "EventTime", uid="audit"
    )
    writer = ckpt.write_stream(audited).foreachBatch(epochs_written(work, where))
    writer = writer.option("spark.ckpt.execution.checkpointing.interval", "100ms")
    writer = writer.trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / "location")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
