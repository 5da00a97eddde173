"""The tortured query: two operators, with timers and with state that ages in event time.

All rows of a file have the number of the file as their value, and its time. So what is emitted does
not depend on the order of the rows of a file, which Spark may change when a task runs again. With
two files in an epoch, which a kill in Spark's planning can bring, the sums depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.torture import slowness  # noqa: F401  it watches the files of workers too
from tests.torture.oracle import AHEAD_MS, TTL_MS, time_ms

INPUT = "key string, file long, ts timestamp"
NUMBERED = "key string, kind string, n long, total long, live long, at long"
OUTPUT = f"{NUMBERED}, m long"


class Numbering(StatefulProcessor):
    """Number and add up the rows of each key, count young ones, and set a timer for each file."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long, total long")
        self.fired = handle.getValueState("fired", "n long")
        self.young = handle.getListState(
            "young", "file long", ckpt.StateTtlConfig(TTL_MS, time="event")
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.count.get() or (0, 0)
        live = sum(1 for _ in self.young.get())
        for row in rows:
            n, total = n + 1, total + row.file
            self.young.appendValue((row.file,))
            self.handle.registerTimer(time_ms(row.file) + AHEAD_MS)
            yield Row(key=key[0], kind="row", n=n, total=total, live=live, at=0)
        self.count.update((n, total))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        n = (self.fired.get() or (0,))[0] + 1
        self.fired.update((n,))
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(key=key[0], kind="timer", n=n, total=0, live=0, at=at_ms)

    def close(self) -> None:
        pass


class Counting(StatefulProcessor):
    """Number what comes of each key once more, by its kind."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "kind string", "m long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seen: dict[str, int] = {}
        for row in sorted(rows, key=lambda row: (row.kind, row.n)):
            if row.kind not in seen:
                seen[row.kind] = (self.seen.getValue((row.kind,)) or (0,))[0]
            seen[row.kind] += 1
            yield Row(**row.asDict(), m=seen[row.kind])
        for kind, m in seen.items():
            self.seen.updateValue((kind,), (m,))

    def close(self) -> None:
        pass


def tortured(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the query over the files of a directory, one for each epoch."""
    rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    timed = rows.parquet(str(directory)).withWatermark("ts", "0 seconds")
    numbered = ckpt.key_by(timed, "key").transformWithState(
        Numbering(), NUMBERED, "Append", "EventTime", uid="numbering"
    )
    return ckpt.key_by(numbered, "key").transformWithState(
        Counting(), OUTPUT, "Append", "None", uid="counting"
    )
