"""The query: events of a topic, numbered per user, into Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from examples.kafka.source import KafkaSource

TOPIC = "events"
OUTPUT_SCHEMA = "user string, n long, event string, partition int, offset long"


class Numbering(StatefulProcessor):
    """Number the events of each user: 1, 2, 3, ..."""

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Emit each event with its number."""
        (n,) = self._count.get() or (0,)
        for row in rows:
            n += 1
            yield Row(user=key[0], n=n, event=row.event, partition=row.partition, offset=row.offset)
        self._count.update((n,))

    def close(self) -> None:
        """Nothing is open."""


def numbered(spark: SparkSession, address: str, rows_per_epoch: int) -> DataFrame:
    """Return the numbered events of the topic; the broker is at `address`."""
    spark.dataSource.register(KafkaSource)
    messages = (
        spark.readStream.format("confluent-kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", TOPIC)
        .option("maxOffsetsPerTrigger", rows_per_epoch)
        .load()
    )
    events = messages.selectExpr(
        "string(key) AS user", "string(value) AS event", "partition", "offset"
    )
    return ckpt.key_by(events, "user").transformWithState(
        Numbering(), OUTPUT_SCHEMA, "Append", "None", uid="numbering"
    )


def writer(events: DataFrame, run: Path) -> ckpt.CheckpointedStreamWriter:
    """Return the query with its files below `run`, ready to be started."""
    return (
        ckpt.write_stream(events)
        .format("parquet")
        .option("path", str(run / "out"))
        .option("checkpointLocation", str(run / "location"))
    )
