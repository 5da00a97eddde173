"""A driver program that may be killed: numbers the rows of each key, exactly once.

``python program.py WORK_DIRECTORY BACKEND`` reads ``WORK_DIRECTORY/input`` to its end and writes
``WORK_DIRECTORY/output``; started again, it continues where it was. All the time it takes
savepoints into ``WORK_DIRECTORY/savepoints``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

INPUT_SCHEMA = "key string, value long"
OUTPUT_SCHEMA = "key string, n long, total long, listed long, of_kind long"


class Numbering(StatefulProcessor):
    """Numbers each key's rows, with a value, a list and a map state that must all agree."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long, total long")
        self._values = handle.getListState("values", "value long")
        self._kinds = handle.getMapState("kinds", "kind long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self._count.get() or (0, 0)
        listed = sum(1 for _ in self._values.get())
        for row in rows:
            n, total, listed = n + 1, total + row.value, listed + 1
            kind = (row.value % 3,)
            of_kind = (self._kinds.getValue(kind) or (0,))[0] + 1
            self._kinds.updateValue(kind, (of_kind,))
            self._values.appendValue((row.value,))
            yield Row(key=key[0], n=n, total=total, listed=listed, of_kind=of_kind)
        self._count.update((n, total))

    def close(self) -> None:
        pass


def main(work: Path, backend: str, *, with_jar: bool) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(work / "local"))
        .config(map=ckpt.local_files_conf() if with_jar else {})
        .config("spark.ckpt.state.backend.type", backend)
        .config("spark.ckpt.execution.checkpointing.interval", "300ms")
        .config("spark.ckpt.internal.execution.checkpointing.data-inline-threshold", "1kb")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema(INPUT_SCHEMA).option("maxFilesPerTrigger", 1)
    numbered = ckpt.key_by(rows.parquet(str(work / "input")), "key").transformWithState(
        Numbering(), OUTPUT_SCHEMA, "Append", "None", uid="numbering"
    )
    query = (
        ckpt.write_stream(numbered)
        .format("parquet")
        .option("path", str(work / "output"))
        .option("checkpointLocation", str(work / "location"))
        .trigger(availableNow=True)
        .start()
    )
    ended = threading.Event()
    taker = threading.Thread(target=_take_savepoints, args=(query, work / "savepoints", ended))
    taker.start()
    query.awaitTermination()
    ended.set()
    taker.join()
    spark.stop()


def _take_savepoints(
    query: ckpt.CheckpointedQuery, directory: Path, ended: threading.Event
) -> None:
    while not ended.wait(2.0):
        _take_savepoint(query, directory)


def _take_savepoint(query: ckpt.CheckpointedQuery, directory: Path) -> None:
    try:
        query.triggerSavepoint(str(directory))
    except ckpt.errors.CheckpointAbortedError as exc:
        if exc.reason != ckpt.results.AbortReason.NO_COMMITTED_EPOCH:
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], with_jar=sys.argv[3:] == ["jar"])
