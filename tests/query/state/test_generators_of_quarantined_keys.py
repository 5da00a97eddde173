"""Generators of keys that are quarantined write nothing after that."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

import pyspark_ckpt as ckpt

BAD_TOTAL = 1_000


class WritesAtLast(StatefulProcessor):
    """Yields a frame that does not fit for a bad key, and writes when its generator ends."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the state."""
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add up the rows; what an earlier key left unfinished ends now, if anything is left."""
        gc.collect()
        (total,) = self.total.get() or (0,)
        try:
            for frame in rows:
                total += int(frame["v"].sum())
                yield pd.DataFrame({"k": [key[0]], "n" if total < BAD_TOTAL else "m": [total]})
        finally:
            self.total.update((total,))


def test_what_a_generator_does_after_a_yield_that_does_not_fit_is_undone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In a query: the harness takes all that a processor yields before it looks at it."""
    rows = [(f"k{number}", BAD_TOTAL if number % 3 == 0 else 1) for number in range(12)]
    spark.createDataFrame(rows, "k string, v long").coalesce(1).write.parquet(str(tmp_path / "in"))
    keyed = ckpt.key_by(spark.readStream.schema("k string, v long").parquet(f"{tmp_path}/in"), "k")
    summed = keyed.transformWithStateInPandas(
        WritesAtLast(), "k string, n long", "Append", "None", uid="op", onError="quarantine"
    )
    writer = ckpt.write_stream(summed).option("checkpointLocation", str(tmp_path / "loc"))
    query = writer.start(str(tmp_path / "out"))
    try:
        query.processAllAvailable()
        saved = query.triggerSavepoint(str(tmp_path / "saved")).path
    finally:
        query.stop()
    with ckpt.location(saved).state() as snapshot:
        stored = snapshot.state("op", "total").to_pandas()
    assert dict(zip(stored["k"], stored["total"], strict=True)) == {k: v for k, v in rows if v == 1}
