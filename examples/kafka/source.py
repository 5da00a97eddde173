"""A Kafka source for Structured Streaming in Python, on the package ``confluent-kafka``.

It needs PySpark 4.2 or later. Its columns, its options and its offsets are those of Spark's own
Kafka source, so a savepoint of a query over one of them restores over the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import confluent_kafka as kafka  # its classes cannot be pickled, which a notebook would do
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

Offsets = dict[str, dict[str, int]]
"""The next offset to read of each topic and partition."""

_TIMEOUT_S = 60.0
_ROWS_PER_BATCH = 10_000
_ROWS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


class KafkaSource(DataSource):
    """Reads topics: ``spark.readStream.format("confluent-kafka")``.

    Options: ``subscribe`` (topics, with commas between them), ``kafka.bootstrap.servers`` and other
    ``kafka.`` keys of librdkafka, ``maxOffsetsPerTrigger``, and ``startingOffsets``: ``earliest``
    or the first offset of each partition as JSON. There is no ``latest``: Spark asks for the first
    offset again if the first epoch is repeated, and later there would be another answer.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return "confluent-kafka"

    def schema(self) -> str:
        """Return the columns of Spark's own Kafka source."""
        return (
            "key binary, value binary, topic string, partition int, offset bigint, "
            "timestamp timestamp"
        )

    def streamReader(self, schema: StructType) -> KafkaReader:
        """Return the reader of one query."""
        return KafkaReader(dict(self.options))


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The rows of a partition that one task reads, without the one at `end`."""

    topic: str
    partition: int
    start: int
    end: int


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs on the driver and reads ranges of offsets on the executors.

    The checkpoint has the offsets. Nothing is committed to the broker.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        prefix = "kafka."
        self._consumer_conf = {
            **{
                name.removeprefix(prefix): value
                for name, value in options.items()
                if name.startswith(prefix)
            },
            "group.id": "pyspark",  # the package demands one; it is not used
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # rows that are gone must not be passed over
        }
        self._topics = [topic.strip() for topic in options["subscribe"].split(",")]
        self._starting = options.get("startingOffsets".lower(), "earliest")
        self._limit = options.get("maxOffsetsPerTrigger".lower())
        self._driver_consumer: kafka.Consumer | None = None
        self._final: Offsets | None = None

    def initialOffset(self) -> Offsets:
        """Return where a new query starts."""
        if self._starting != "earliest":
            return json.loads(self._starting)
        return {
            topic: {str(number): low for number, (low, _) in partitions.items()}
            for topic, partitions in self._watermarks().items()
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxOffsetsPerTrigger``."""
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(int(self._limit))

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where a query that ends by itself ends."""
        self._final = self._ends()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return where the next epoch ends; refuse offsets that the topics do not have."""
        ends = self._final or self._ends()
        ranges = _ranges(start, ends)
        if not isinstance(limit, ReadMaxRows):
            return ends
        left = limit.max_rows
        limited = {topic: dict(partitions) for topic, partitions in ends.items()}
        ranges.sort(key=lambda each: each.end - each.start)
        for place, each in enumerate(ranges):
            rows = min(each.end - each.start, left // (len(ranges) - place))
            limited[each.topic][str(each.partition)] = each.start + rows
            left -= rows
        return limited

    def reportLatestOffset(self) -> Offsets:
        """Return the ends of the topics, for the query's progress."""
        return self._ends()

    def partitions(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Return a range for each partition that has rows in an epoch."""
        return _ranges(start, end)

    def read(self, partition: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Read the rows of a range, on an executor."""
        where = kafka.TopicPartition(partition.topic, partition.partition, partition.start)
        consumer = kafka.Consumer(self._consumer_conf)
        try:
            consumer.assign([where])
            rows: list[kafka.Message] = []
            for message in _messages(consumer, partition):
                rows.append(message)
                if len(rows) == _ROWS_PER_BATCH:
                    yield _record_batch(rows)
                    rows = []
            if rows:
                yield _record_batch(rows)
        finally:
            consumer.close()

    def stop(self) -> None:
        """Close the connection of the driver."""
        if self._driver_consumer is not None:
            self._driver_consumer.close()

    def _ends(self) -> Offsets:
        return {
            topic: {str(number): high for number, (_, high) in partitions.items()}
            for topic, partitions in self._watermarks().items()
        }

    def _watermarks(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Return the first offset of each partition, and the one after its last."""
        if self._driver_consumer is None:
            self._driver_consumer = kafka.Consumer(self._consumer_conf)
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in self._topics:
            metadata = self._driver_consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            if metadata.error is not None:
                raise kafka.KafkaException(metadata.error)
            found[topic] = {
                number: self._driver_consumer.get_watermark_offsets(
                    kafka.TopicPartition(topic, number), timeout=_TIMEOUT_S
                )
                for number in sorted(metadata.partitions)
            }
        return found


def _ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the ranges between two offsets; a partition that is new begins at 0."""
    for topic, partitions in start.items():
        for number, first in partitions.items():
            last = end.get(topic, {}).get(number)
            if last is None or last < first:
                raise RuntimeError(
                    f"the query continues at offset {first} of topic {topic!r}, partition {number},"
                    f" which now ends at {last}: the topic is another one, or rows are lost"
                )
    ranges = (
        OffsetRange(topic, int(number), start.get(topic, {}).get(number, 0), last)
        for topic, partitions in end.items()
        for number, last in partitions.items()
    )
    return [each for each in ranges if each.start < each.end]


def _messages(consumer: kafka.Consumer, wanted: OffsetRange) -> Iterator[kafka.Message]:
    """Yield the messages of a range.

    Offsets may be missing in it, also the last ones: marks of transactions and compacted messages.
    """
    position = wanted.start
    while position < wanted.end:
        message = consumer.poll(_TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"the broker sent nothing of {wanted} for {_TIMEOUT_S} s")
        error = message.error()
        if error is None and message.offset() < wanted.end:
            yield message
        elif error is not None and error.name() != "_PARTITION_EOF":
            raise kafka.KafkaException(error)
        position = message.offset() + (error is None)


def _record_batch(messages: list[kafka.Message]) -> pa.RecordBatch:
    columns = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [message.timestamp()[1] * 1000 for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROWS)
