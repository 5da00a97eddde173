"""A restore passes offsets of other sources on; sinks see the epochs of the new location."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.layout import source_log_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, SourceLog
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.spark.sink import COMPACT_INTERVAL
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import Job, await_rows, newest_checkpoint, refused
from tests.query.model import Count, counted_after, events_of, sequences
from tests.query.session_conf import session_conf

pytestmark = pytest.mark.slow

PARTITIONS = ("0", "1")


class Topic(DataSource):
    """A topic of two partitions, with offsets as Kafka's source writes them."""

    @classmethod
    def name(cls) -> str:
        return "topic"

    def schema(self) -> str:
        return "k string, v long"

    def simpleStreamReader(self, schema: Any) -> TopicReader:
        return TopicReader(self.options)


class TopicReader(SimpleDataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.path = Path(options["path"])

    def initialOffset(self) -> dict[str, Any]:
        return {"events": dict.fromkeys(PARTITIONS, 0)}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """Return at most four rows of each partition."""
        rows: list[Any] = []
        end: dict[str, int] = {}
        for partition in PARTITIONS:
            first = start["events"][partition]
            found = json.loads((self.path / partition).read_text())[first : first + 4]
            rows += [tuple(row) for row in found]
            end[partition] = first + len(found)
        return iter(rows), {"events": end}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        for partition in PARTITIONS:
            first, last = start["events"][partition], end["events"][partition]
            found = json.loads((self.path / partition).read_text())[first:last]
            yield from (tuple(row) for row in found)


@pytest.mark.soak
def test_offsets_as_kafka_writes_them_and_ids_of_epochs(job: Job) -> None:
    """No row is read twice or left out; epochs continue in a fork, and in a fork of the fork."""
    job.spark.dataSource.register(Topic)
    topic = job.base / "topic"
    topic.mkdir()
    events = [(f"k{i % 5}", i) for i in range(24)]

    def produce(rows: int) -> None:
        for number, partition in enumerate(PARTITIONS):
            (topic / partition).write_text(json.dumps(events[:rows][number::2]))

    def plan(job: Job) -> DataFrame:
        stream = job.spark.readStream.format("topic").option("path", str(topic)).load()
        return job.process(ckpt.key_by(stream, "k"))

    job = job.but(plan=plan, processor=Count, output="k string, n long")
    emitted: dict[str, dict[int, list[Row]]] = defaultdict(dict)

    def run(job: Job, restore: str | None = None) -> str:
        def keep(df: DataFrame, epoch: int) -> None:
            emitted[job.location][epoch] = df.collect()

        writer = ckpt.write_stream(job.df()).foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(job.location_path))
        query = (writer if restore is None else writer.restoreFrom(restore)).start()
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
        query.stop()
        return savepoint

    produce(8)
    savepoint = run(job)
    produce(16)
    savepoint = run(job.but(location="loc2"), savepoint)
    produce(24)
    run(job.but(location="loc3"), savepoint)
    epochs = [list(emitted[location]) for location in ("loc", "loc2", "loc3")]
    assert all(epochs)
    assert list(chain(*epochs)) == list(range(sum(map(len, epochs))))
    for location, first, last in (("loc2", 8, 16), ("loc3", 16, 24)):
        rows = [row for rows in emitted[location].values() for row in rows]
        assert sequences(rows) == counted_after(events[:last], first)


_STATE_STORE = "spark.sql.streaming.stateStore."
_ROCKSDB = {
    f"{_STATE_STORE}providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
_CHANGELOGS = {**_ROCKSDB, f"{_STATE_STORE}rocksdb.changelogCheckpointing.enabled": "true"}
STATE_STORES: list[dict[str, str]] = [
    {},
    _ROCKSDB,
    _CHANGELOGS,
    {**_CHANGELOGS, f"{_STATE_STORE}checkpointFormatVersion": "2"},
]


@pytest.mark.soak
def test_output_of_forks_around_compactions(job: Job) -> None:
    """A reader sees all rows before, at and after compactions, in any store."""
    job = job.but(processor=Count, output="k string, n long")
    savepoints = []
    with session_conf(job.spark, {COMPACT_INTERVAL: "3"}):
        with job.running() as query:
            for epoch in range(4):
                job.feed.add(events_of(epoch))
                query.processAllAvailable()
                savepoints.append(query.triggerSavepoint(str(job.base / "savepoints")).path)
        job.feed.add(events_of(4), events_of(5))
        forks = [job.but(location=f"loc{i}", out=f"out{i}") for i in range(4)]
        for epoch, (savepoint, conf) in enumerate(zip(savepoints, STATE_STORES, strict=True)):
            with session_conf(job.spark, conf):
                forks[epoch].run(savepoint)
    job.feed.add(events_of(6))
    for epoch, (fork, conf) in enumerate(zip(forks, STATE_STORES, strict=True)):
        with session_conf(job.spark, conf):
            fork.run()
        assert sequences(fork.result()) == counted_after(job.feed.rows, 20 * (epoch + 1))


SOURCE_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("interval", "epochs"),
    [(15, 13), pytest.param(20, 51, marks=pytest.mark.soak)],
    ids=["none", "one at 39"],
)
def test_compactions_of_a_source_that_spark_would_not_guess(
    job: Job, interval: int, epochs: int
) -> None:
    """The log was written with another interval, as that of a fork is; the fork's forks go on."""
    job = job.but(processor=Count, output="k string, n long")
    rows = len(events_of(0))
    with session_conf(job.spark, {SOURCE_INTERVAL: str(interval)}):
        job.feed.add(*(events_of(epoch) for epoch in range(epochs)))
        query = job.run()
    for number in range(2):
        epoch = epochs + number
        job.feed.add(events_of(epoch))
        job = job.but(location=f"fork{number}", out=f"out-fork{number}")
        query = job.run(newest_checkpoint(query))
        assert sequences(job.result()) == counted_after(job.feed.rows, rows * epoch)
    job.feed.add(events_of(epoch + 1))
    job.run()
    assert sequences(job.result()) == counted_after(job.feed.rows, rows * epoch)


RATES = ("rate", "rate-micro-batch")


@pytest.mark.soak
def test_rates_continue_where_they_were(job: Job) -> None:
    """With Spark's two rate sources in one query, a fork reads what the original has not."""

    def plan(job: Job) -> DataFrame:
        streams = [
            job.spark.readStream.format(name)
            .options(rowsPerSecond=20, rowsPerBatch=5)
            .load()
            .selectExpr(f"'{name}' AS k", "value AS v")
            for name in RATES
        ]
        return job.process(ckpt.key_by(streams[0].union(streams[1]), "k"))

    job = job.but(plan=plan, processor=Numbered, output="k string, v long, n long")
    fork = job.but(location="loc2", out="out2")
    savepoint: str | None = None
    found: list[Any] = []
    for each in (job, fork):
        with each.running(savepoint) as query:
            await_source(query, each, RATES[0])
            savepoint = query.stopWithSavepoint(str(job.base / "savepoints")).path
        assert {row[0] for row in each.result()} == {*RATES}
        found += each.result()
    for name in RATES:
        rows = [(v, n) for k, v, n in found if k == name]
        assert sorted(v for v, _ in rows) == list(range(len(rows)))
        assert sorted(n for _, n in rows) == list(range(1, len(rows) + 1))


class Numbered(StatefulProcessor):
    """Number the rows of a key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0]
        for row in rows:
            n += 1
            yield Row(k=key[0], v=row.v, n=n)
        self.count.update((n,))

    def close(self) -> None:
        pass


def await_source(query: ckpt.CheckpointedQuery, job: Job, name: str) -> None:
    """Wait until the sink has rows of a source."""
    rows = 0
    while not any(row[0] == name for row in job.result()):
        rows = len(await_rows(query, job, rows + 1))


def test_a_hostile_source_log_reads_nothing_else(job: Job) -> None:
    """An entry beyond the offset is not taken; one whose content is beyond it is refused."""
    secret = job.base / "elsewhere"
    secret.mkdir()
    pq.write_table(pa.Table.from_pydict({"k": ["SECRET"], "v": [1]}), secret / "secret.parquet")
    job.feed.add(events_of(0), events_of(1))
    job = job.but(plan=globbed, processor=Count, output="k string, n long")
    with job.running() as query:
        query.processAllAvailable()
        savepoint = Path(query.triggerSavepoint(str(job.base / "savepoints")).path)
    metadata = read_metadata(LocalStorage(savepoint))
    assert [log.log_name for log in metadata.source_logs] == ["0", "1"]
    beyond = {"path": (secret / "secret.parquet").as_uri(), "timestamp": 1, "batchId": 2}
    content = f"v1\n{json.dumps(beyond)}".encode()

    with_log(savepoint, metadata, "2", content)
    fork = job.but(location="loc2", out="out2")
    fork.run(savepoint)
    assert fork.result() == []
    assert (fork.location_path / "sources/0/1").exists()
    assert not (fork.location_path / "sources/0/2").exists()
    job.feed.add(events_of(2))
    fork.run()
    assert sequences(fork.result()) == counted_after(job.feed.rows, 40)

    with_log(savepoint, metadata, "1", content)
    with pytest.raises(ckpt.errors.CorruptFileError, match="batch 2, beyond its own 1"):
        job.but(location="loc3", out="out3").start(savepoint)


def globbed(job: Job) -> DataFrame:
    """Return a path with a pattern: Spark does not check whether files lie below it."""
    rows = job.spark.readStream.schema(job.feed.ddl).option("maxFilesPerTrigger", 1)
    return job.process(ckpt.key_by(rows.parquet(f"{job.base}/i[n]"), "k"))


def with_log(savepoint: Path, metadata: CheckpointMetadata, name: str, content: bytes) -> None:
    """Add a source log to a savepoint, or replace the one of that name."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = source_log_path(0, name, sha256)
    (savepoint / path).write_bytes(content)
    logs = [log for log in metadata.source_logs if log.log_name != name]
    logs.append(SourceLog(0, name, FileReference(path, len(content), sha256)))
    changed = msgspec.structs.replace(metadata, source_logs=tuple(logs))
    (savepoint / "_metadata").write_bytes(encode_metadata(changed))


@pytest.mark.soak
def test_an_offset_of_another_kind_of_source(job: Job) -> None:
    """Both directions are refused by name, before anything is written."""

    def of(name: str) -> Callable[[Job], DataFrame]:
        def plan(job: Job) -> DataFrame:
            rows = (
                job.spark.readStream.format(name).options(rowsPerSecond=20, rowsPerBatch=5).load()
            )
            return job.process(ckpt.key_by(rows.selectExpr("'r' AS k", "value AS v"), "k"))

        return plan

    job = job.but(processor=Count, output="k string, n long")
    job.feed.add(events_of(0))
    of_files = newest_checkpoint(job.run())
    rate = job.but(plan=of("rate"), location="loc2", out="out2")
    with rate.running() as query:
        await_source(query, rate, "r")
        of_rate = query.stopWithSavepoint(str(job.base / "savepoints")).path
    fork = {"location": "loc3", "out": "out3"}
    micro = job.but(plan=of("rate-micro-batch"), **fork)
    with refused(ckpt.errors.RestoreError, "source 0", "rate", "a file source", unchanged=job.base):
        rate.but(**fork).start(of_files)
    with refused(ckpt.errors.RestoreError, "source 0", "FileSource", "rate", unchanged=job.base):
        job.but(**fork).start(of_rate)
    with refused(ckpt.errors.RestoreError, "rate-micro-batch", "of rate", unchanged=job.base):
        micro.start(of_rate)
