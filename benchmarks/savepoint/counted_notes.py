"""The query of the savepoints: a count per key, and the last note of each key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt

INPUT = "key long, note binary"
OUTPUT = "key long, n long"
NOTE_BYTES = 100
_FIRST_MTIME = 1_700_000_000
_SEED = 606


class CountedNotes(ckpt.BatchProcessor):
    """Count rows and keep the last note; a note is random bytes, which no codec makes smaller."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("notes", "n long, note binary")

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        old = self._state.getMany(keys)
        places = rows.index.to_numpy()
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        n = old["n"].to_numpy(np.int64, na_value=0) + np.diff(starts, append=len(places))
        last = np.append(starts[1:], len(places)) - 1
        note = rows["note"].to_numpy()[last]
        self._state.updateMany(keys, pd.DataFrame({"n": n, "note": note}))
        yield keys.assign(n=n)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Program:
    """The query over a directory of files, one per epoch, with a backend."""

    spark: SparkSession
    source: Path
    backend: str
    savepoints: Path

    def frame(self) -> DataFrame:
        """Return the query."""
        stream = self.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
        keyed = ckpt.key_by(stream.parquet(str(self.source)), "key")
        return keyed.transformWithStateInBatches(
            CountedNotes(), OUTPUT, "Append", "None", uid="notes"
        )

    def start(self, directory: Path, restore: str | None = None) -> ckpt.CheckpointedQuery:
        """Start it at a location below a directory."""
        writer = ckpt.write_stream(self.frame()).format("parquet")
        options = {
            "path": directory / "output",
            "checkpointLocation": directory / "location",
            "spark.ckpt.state.backend.type": self.backend,
            "spark.ckpt.execution.checkpointing.savepoint-dir": self.savepoints,
        }
        for name, value in options.items():
            writer = writer.option(name, str(value))
        return (writer if restore is None else writer.restoreFrom(restore)).start()

    def output(self, directory: Path) -> pd.DataFrame:
        """Return all rows that a query has committed."""
        written: pd.DataFrame = (
            self.spark.read.schema(OUTPUT).parquet(str(directory / "output")).toPandas()
        )
        return written


def write_file(source: Path, number: int, keys: Any) -> None:
    """Add a file with one row for each of `keys`, at once; the source reads it last."""
    random = np.random.default_rng((_SEED, number))
    notes = random.bytes(NOTE_BYTES * len(keys))
    offsets = np.arange(0, len(notes) + 1, NOTE_BYTES, dtype=np.int32)
    note = pa.Array.from_buffers(
        pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(notes)]
    )
    source.mkdir(parents=True, exist_ok=True)
    hidden = source / f".{number:05d}.tmp"
    pq.write_table(pa.table({"key": pa.array(keys, pa.int64()), "note": note}), hidden)
    # Spark's file source reads the oldest file first, to the second.
    os.utime(hidden, (_FIRST_MTIME + 10 * number,) * 2)
    hidden.rename(source / f"{number:05d}.parquet")


def some_keys(number: int, keys: int, touched: int) -> Any:
    """Return the keys that an epoch touches, the same ones on every machine."""
    return np.random.default_rng((_SEED, number, keys)).choice(keys, touched, replace=False)


def expected_counts(touched: list[Any]) -> pd.DataFrame:
    """Compute with pandas the output of epochs that touch each of these keys once."""
    rows = pd.DataFrame({"key": np.concatenate(touched)})
    return rows.assign(n=rows.groupby("key").cumcount() + 1)
