"""A driver program with a quarantine that is killed at any time.

``python quarantine_program.py WORK_DIRECTORY PROGRAM WHERE [MASTER]`` reads
``WORK_DIRECTORY/input`` to its end and writes each epoch's rows to
``WORK_DIRECTORY/epoch-<number>``. `PROGRAM` is ``flaky`` or ``mended``. If `WHERE` is a number, the
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

BAD = -1


class Flaky(StatefulProcessor):
    """Count rows, and raise at a bad one."""

    def __init__(self, *, is_mended: bool) -> None:
        self._is_mended = is_mended

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = (self._count.get() or (0,))[0] + 1
            self._count.update((n,))
            yield Row(key=key[0], n=n)
            if row.v == BAD and not self._is_mended:
                msg = "a bad row"
                raise ValueError(msg)

    def close(self) -> None:
        pass


def main(work: Path, program: str, where: str, master: str = "local[2]") -> None:
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
    rows = spark.readStream.schema("key string, v long").option("maxFilesPerTrigger", 1)
    counted = ckpt.key_by(rows.parquet(str(work / "input")), "key").transformWithState(
        Flaky(is_mended=program == "mended"),
        "key string, n long",
        "Append",
        "None",
        uid="count",
        onError="quarantine",
    )

    writer = ckpt.write_stream(counted).foreachBatch(epochs_written(work, where))
    writer = writer.trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / "location")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
