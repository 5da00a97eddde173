"""The Kafka source of the examples, against a broker in another process.

Oracle: each user's events are numbered 1, 2, 3, ... in the order of the topic, and the offsets that
were read have no gap and no repeat.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path

import confluent_kafka
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import LocalStorage

pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark before 4.2")

from examples.kafka import job, source
from examples.kafka.broker import broker
from tests.query.session_conf import session_conf

PROGRAM = Path(__file__).with_name("kafka_program.py")
DEADLINE_SECONDS = 240
USERS = ("ada", "bob", "cy", "dan")
ROWS_PER_EPOCH = 400
SMALL_EPOCH = 40
"""Rows per epoch where the kills come, so that each comes between many epochs."""


@pytest.fixture(autouse=True, scope="module")
def pickled_by_value() -> Iterator[None]:
    """Python workers of the shared session cannot import the examples."""
    for module in (job, source):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (job, source):
        cloudpickle.unregister_pickle_by_value(module)


@dataclass
class Topic:
    """A topic with four partitions; a user's events are all in one."""

    address: str
    sent: dict[str, list[str]] = field(default_factory=lambda: {user: [] for user in USERS})

    def produce(self, events: int) -> None:
        """Send so many events, about as many of each user."""
        first = sum(map(len, self.sent.values()))
        producer = self.producer()
        for number in range(first, first + events):
            partition = (number + number // 7) % len(USERS)
            user, event = USERS[partition], f"event {number}"
            self.sent[user].append(event)
            producer.produce(job.TOPIC, key=user, value=event, partition=partition)
        producer.flush()

    def send(self, partition: int) -> None:
        producer = self.producer()
        producer.produce(job.TOPIC, value="event", partition=partition)
        producer.flush()

    def producer(self) -> confluent_kafka.Producer:
        return confluent_kafka.Producer({"bootstrap.servers": self.address, "log_level": 0})

    def sizes(self) -> dict[str, int]:
        return {user: len(events) for user, events in self.sent.items()}


@pytest.fixture
def topic(spark: SparkSession) -> Iterator[Topic]:
    with broker() as address:
        yield Topic(address)
        for query in spark.streams.active:  # a failed test left it
            query.stop()


def writer(spark: SparkSession, topic: Topic, run: Path) -> ckpt.CheckpointedStreamWriter:
    return job.writer(job.numbered(spark, topic.address, ROWS_PER_EPOCH), run)


def run_to_the_end(writer: ckpt.CheckpointedStreamWriter) -> None:
    writer.trigger(availableNow=True).start().awaitTermination()


def check_output(
    spark: SparkSession, run: Path, topic: Topic, after: dict[str, int] | None = None
) -> None:
    """Check that a run's output is exactly the events that follow so many of each user."""
    rows = spark.read.parquet(str(run / "out")).collect()
    found = sorted((row.user, row.n, row.event, row.offset) for row in rows)
    expected = sorted(
        (user, number, event, number - 1)
        for user, events in topic.sent.items()
        for number, event in enumerate(events, 1)
        if number > (after or {}).get(user, 0)
    )
    assert expected
    assert found == expected


def kill_after_a_checkpoint(run: Path, topic: Topic, chance: random.Random) -> None:
    """Run the program in a separate process, and kill it and its workers within a second."""
    known = checkpoints(run)
    command = [sys.executable, str(PROGRAM), str(run), topic.address, str(SMALL_EPOCH)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not checkpoints(run) - known:
            assert process.poll() is None, "the program ended by itself"
            assert time.monotonic() < deadline, "no checkpoint completed in time"
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 1.0))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def checkpoints(run: Path) -> set[Path]:
    return set(run.glob("location/pyspark_ckpt/chk-*/_metadata"))


def newest_checkpoint(run: Path) -> Path:
    return max((path.parent for path in checkpoints(run)), key=lambda path: int(path.name[4:]))


def offsets_of(checkpoint: Path) -> dict[str, int]:
    """Return how many events of each user a checkpoint or a savepoint has read."""
    entry = read_metadata(LocalStorage(checkpoint)).offsets_entry
    offsets = json.loads(entry.split("\n")[-1])[job.TOPIC]
    return {user: offsets[str(partition)] for partition, user in enumerate(USERS)}


@pytest.mark.soak
@pytest.mark.own_jvm
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.external)])
def test_kill_restart_savepoint_fork_and_restore(
    spark: SparkSession, tmp_path: Path, topic: Topic, kills: int
) -> None:
    """The fork continues at the savepoint's offsets; a restore at a checkpoint's, rescaled."""
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    original = tmp_path / "original"
    for _ in range(kills):
        topic.produce(12 * SMALL_EPOCH)
        kill_after_a_checkpoint(original, topic, chance)
    checkpoint = newest_checkpoint(original)
    at_checkpoint = offsets_of(checkpoint)
    query = writer(spark, topic, original).start()
    query.processAllAvailable()
    savepoint = Path(query.triggerSavepoint(str(tmp_path / "savepoints")).path)
    assert offsets_of(savepoint) == topic.sizes()
    at_savepoint = topic.sizes()
    topic.produce(50)
    query.processAllAvailable()
    query.stop()
    check_output(spark, original, topic)

    fork = tmp_path / "fork"
    run_to_the_end(writer(spark, topic, fork).restoreFrom(str(savepoint)))
    check_output(spark, fork, topic, at_savepoint)
    rescaled = tmp_path / "rescaled"
    with session_conf(spark, {"spark.sql.shuffle.partitions": "3"}):
        run_to_the_end(writer(spark, topic, rescaled).restoreFrom(str(checkpoint)))
    check_output(spark, rescaled, topic, at_checkpoint)


@pytest.mark.soak
def test_a_savepoint_over_another_topic_is_refused(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    """A broker that lost its topic has other offsets; the query reads nothing of it."""
    topic.produce(10)
    query = writer(spark, topic, tmp_path / "original").start()
    query.processAllAvailable()
    savepoint = query.stopWithSavepoint(str(tmp_path / "savepoints")).path
    with broker() as address:
        other = Topic(address)
        other.produce(2)
        fork = writer(spark, other, tmp_path / "fork").restoreFrom(savepoint)
        with pytest.raises(StreamingQueryException, match="rows are lost"):
            run_to_the_end(fork)


def test_an_epoch_takes_a_share_of_each_partition(topic: Topic) -> None:
    """What one partition leaves over goes to those with more; all rows come in the end."""
    for _, partition in zip(range(100), chain([0] * 10, [1] * 70, [2] * 20), strict=True):
        topic.send(partition)
    options = {"subscribe": job.TOPIC, "kafka.bootstrap.servers": topic.address}
    reader = source.KafkaReader({**options, "maxoffsetspertrigger": "48"})
    start = reader.initialOffset()
    assert start == {job.TOPIC: dict.fromkeys("0123", 0)}
    limit = reader.getDefaultReadLimit()
    ends = [start]
    while (end := reader.latestOffset(ends[-1], limit)) != ends[-1]:
        ends.append(end)
    assert ends[1:] == [
        {job.TOPIC: {"0": 10, "1": 19, "2": 19, "3": 0}},
        {job.TOPIC: {"0": 10, "1": 66, "2": 20, "3": 0}},
        {job.TOPIC: {"0": 10, "1": 70, "2": 20, "3": 0}},
    ]
    read = [
        (batch["partition"][row].as_py(), batch["offset"][row].as_py())
        for first, last in pairwise(ends)
        for each in reader.partitions(first, last)
        for batch in reader.read(each)
        for row in range(batch.num_rows)
    ]
    assert sorted(read) == [(p, n) for p, rows in enumerate((10, 70, 20)) for n in range(rows)]
    reader.stop()


def test_a_partition_that_is_new_is_read_from_its_start() -> None:
    assert source._ranges({"t": {"0": 5}}, {"t": {"0": 5, "1": 3}}) == [
        source.OffsetRange("t", 1, 0, 3)
    ]


def test_offsets_that_the_broker_does_not_have_are_an_error(topic: Topic) -> None:
    """They are not passed over, as ``auto.offset.reset`` would do."""
    topic.send(0)
    options = {"subscribe": job.TOPIC, "kafka.bootstrap.servers": topic.address}
    beyond = source.OffsetRange(job.TOPIC, 0, 50, 60)
    with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)out of range"):
        list(source.KafkaReader(options).read(beyond))


@pytest.mark.soak
def test_a_backlog_gets_more_subtasks(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """The rule sees by the offsets how far the query lags; the epochs are short enough."""
    topic.produce(400)
    rules = {
        "spark.ckpt.rescale.enabled": "true",
        "spark.ckpt.rescale.max-parallelism": "3",
        "spark.ckpt.rescale.scale-up.backlog": "100",
        "spark.ckpt.rescale.scale-up.epoch-duration": "1h",
        "spark.ckpt.internal.rescale.scale-down.epoch-duration": "1ms",
        "spark.ckpt.internal.rescale.window": "2",
        "spark.ckpt.internal.rescale.min-interval": "1ms",
    }
    with session_conf(spark, {"spark.sql.shuffle.partitions": "2"}):
        events = lambda: job.numbered(spark, topic.address, SMALL_EPOCH)  # noqa: E731
        writer = ckpt.write_stream(events).format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "location"))
        for key, value in rules.items():
            writer = writer.option(key, value)
        query = writer.start()
        restarts: list[Row] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not restarts:
            assert time.monotonic() < deadline, "no rule restarted the query"
            topic.produce(200)
            query.processAllAvailable()
            restarts = query.checkpoints().where("kind = 'restart'").collect()
        query.processAllAvailable()
        query.stop()
    assert (restarts[0].parallelism_before, restarts[0].parallelism) == (2, 3)
    assert re.search(r"were \d+ rows behind, from 100 on", restarts[0].reason)
    check_output(spark, tmp_path, topic)
