"""A driver: a query with many types, a broadcast side and timers, once for each conf.

Writes what came out, and how its workers handed the rows over; Spark may print more than that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

RESULTS = "results.json"
EPOCHS, KEYS, ROWS = 4, 5, 40
INPUT = "k string, n long, price decimal(9,2), tags array<string>, at timestamp_ntz, flag boolean"
OUTPUT = (
    "k string, seen long, total decimal(20,2), tags array<string>, at timestamp_ntz, flag boolean,"
    " v variant, offers long"
)


class Seen(StatefulProcessor):
    """Count and sum the rows of a key; the last row's other values come back as they came."""

    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "seen long, total decimal(20,2)")
        self.offers = handle.getBroadcastState("offers", "o long", "o long")

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> None:
        for row in rows:
            self.offers.updateValue((row.o,), (row.o,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        seen, total = self.sums.get() or (0, Decimal(0))
        for row in rows:
            seen, total = seen + 1, total + (row.price or 0)
        self.sums.update((seen, total))
        offers = sum(1 for _ in self.offers.iterator())
        yield Row(key[0], seen, total, row.tags, row.at, row.flag, row.v, offers)

    def close(self) -> None:
        pass


def input_rows(epoch: int) -> list[tuple[Any, ...]]:
    """Return an epoch's rows; nulls of every type among them."""
    rows = []
    for n in range(ROWS):
        number = epoch * ROWS + n
        empty = number % 7 == 0
        rows.append((
            None if number % KEYS == 0 else f"k{number % KEYS}",
            None if empty else 2**53 + number,
            None if empty else Decimal(number).scaleb(-2),
            None if empty else [str(number), None],
            None if empty else f"2024-02-29T01:02:03.{number:06}",
            None if empty else number % 2 == 0,
        ))  # fmt: skip
    return rows


def expected() -> list[Any]:
    """Return the rows that come out, computed row by row."""
    sums: dict[Any, tuple[int, Decimal]] = {}
    out = []
    for epoch in range(EPOCHS):
        last: dict[Any, Any] = {}
        for row in input_rows(epoch):
            seen, total = sums.get(row[0], (0, Decimal(0)))
            sums[row[0]] = (seen + 1, total + (row[2] or 0))
            last[row[0]] = row
        for key, (_, number, _, tags, at, flag) in last.items():
            seen, total = sums[key]
            shown = None if at is None else at.replace("T", " ").rstrip("0")
            variant = None if number is None else f'{{"n":{number}}}'
            out.append([key, seen, f"{total:.2f}", tags, shown, flag, variant, epoch + 1])
    return sorted(out, key=str)


def main(base: Path, context: Mapping[str, str], cases: list[dict[str, str]]) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in {**context, "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        results = [run(spark, base / str(number), conf) for number, conf in enumerate(cases)]
    finally:
        spark.stop()
    (base / RESULTS).write_text(json.dumps(results))


def run(spark: SparkSession, base: Path, conf: Mapping[str, str]) -> dict[str, Any]:
    for key, value in conf.items():
        spark.conf.set(key, value)
    stream = source(spark, base / "in", INPUT.replace("at timestamp_ntz", "at string"), input_rows)
    stream = stream.withColumn("at", F.col("at").cast("timestamp_ntz")).withColumn(
        "v", F.when(F.col("n").isNotNull(), F.parse_json(F.to_json(F.struct("n"))))
    )
    offers = source(spark, base / "offers", "o long", lambda epoch: [(epoch,)])
    keyed = ckpt.key_by(stream, "k").connectBroadcast(offers)
    output = keyed.transformWithState(Seen(), OUTPUT, "Update", "None", uid="seen")
    found: list[Any] = []

    def collect(frame: Any, _: int) -> None:
        texts = frame.select(
            "k", "seen", F.col("total").cast("string"), "tags", F.col("at").cast("string"), "flag",
            F.to_json("v"), "offers",
        )  # fmt: skip
        found.extend(list(row) for row in texts.collect())

    writer = ckpt.write_stream(output).outputMode("update").foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(base / "location"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [each["numPackedHandOvers"] for each in query.lastOperatorProgress]
    subtasks = [each["numSubtasks"] for each in query.lastOperatorProgress]
    for key in conf:
        spark.conf.unset(key)
    return {
        "rows": sorted(found, key=str),
        "epochs": len(query.recentProgress),
        "handOvers": [
            "arrow" if not packed else "packed" if packed == of else f"{packed} of {of}"
            for packed, of in zip(progress, subtasks, strict=True)
        ],
    }


def source(spark: SparkSession, directory: Path, ddl: str, rows_of: Any) -> Any:
    directory.mkdir(parents=True)
    fields = spark.createDataFrame([], ddl).schema
    schema = pa.schema([(field.name, TYPES[field.dataType.simpleString()]) for field in fields])
    for epoch in range(EPOCHS):
        columns = zip(schema.types, zip(*rows_of(epoch), strict=True), strict=True)
        arrays = [pa.array(values, kind) for kind, values in columns]
        path = directory / f"{epoch}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        os.utime(path, (1_700_000_000 + epoch, 1_700_000_000 + epoch))
    return spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(directory))


TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "decimal(9,2)": pa.decimal128(9, 2),
    "array<string>": pa.list_(pa.string()),
    "boolean": pa.bool_(),
}


if __name__ == "__main__":
    context, cases = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), context, cases)
