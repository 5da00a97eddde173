"""A query under ``spark.executor.pyspark.memory``: ``memory_program.py WORK BACKEND LIMIT``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

KEYS = 2_000


class Note(StatefulProcessor):
    """Keeps a kilobyte for each key."""

    def init(self, handle: Any) -> None:
        self.note = handle.getValueState("note", "text string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.note.update(("x" * 1000,))
        yield (key[0],)

    def close(self) -> None: ...


def main(work: Path, backend: str, limit: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.executor.pyspark.memory", limit)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.range(KEYS).write.parquet(str(work / "in"))
    stream = spark.readStream.schema("id long").parquet(str(work / "in"))
    notes = ckpt.key_by(stream, "id").transformWithState(
        Note(), "id long", "Append", "None", uid="note"
    )
    query = (
        ckpt.write_stream(notes)
        .option("checkpointLocation", str(work / "location"))
        .option("spark.ckpt.state.backend.type", backend)
        .start(str(work / "out"), format="parquet")
    )
    query.processAllAvailable()
    query.stopWithSavepoint(str(work / "savepoints"))
    assert spark.read.parquet(str(work / "out")).distinct().count() == KEYS


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
