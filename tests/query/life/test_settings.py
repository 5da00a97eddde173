"""Settings: their sources and effects; writers and queries have all that Spark's have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import pyspark_ckpt as ckpt
from tests.query.harness import (
    BACKEND,
    CHECKPOINT_DIR,
    INLINE,
    INTERVAL,
    OFTEN,
    RETAINED,
    SAVEPOINT_DIR,
    Job,
    await_checkpoint,
    completed,
    drop_local_copies,
    files_below,
    refused,
)
from tests.query.model import Count, counted, events_of, expected, sequences

CONF = Path(__file__).parents[3] / "conf"


@contextmanager
def spark_conf(spark: SparkSession, settings: dict[str, Any]) -> Iterator[None]:
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


def backend_used(job: Job) -> str:
    """Return the backend that a query really uses, by the local copy that it leaves."""
    drop_local_copies(job.spark)
    job.feed.add(events_of(job.feed.files))
    job.run()
    local = Path(job.spark.conf.get("spark.local.dir"))
    kinds = {p.name for p in local.rglob("*") if p.name in ("heap", "rocksdb") and p.is_dir()}
    assert len(kinds) == 1, kinds
    return kinds.pop()


@pytest.mark.slow
def test_backend(job: Job) -> None:
    """RocksDB by default; Spark conf chooses another; an option wins over conf, also late."""
    assert backend_used(job) == "rocksdb"
    with spark_conf(job.spark, {BACKEND: "heap"}):
        assert backend_used(job) == "heap"
        assert backend_used(job.using({BACKEND: "rocksdb"})) == "rocksdb"
    with spark_conf(job.spark, ckpt.read_conf_file(CONF / "heap.conf")):
        assert backend_used(job) == "heap"
    assert job.result() == expected(job.feed.rows)


BAD = [
    (BACKEND, "lmdb", ["rocksdb", "heap"]),
    (BACKEND, "", ["rocksdb", "heap"]),
    (INTERVAL, "soon", ["30s"]),
    (INTERVAL, "-1s", []),
    (RETAINED, "0", []),
    (RETAINED, "three", []),
    (INLINE, "20 bananas", ["20kb"]),
    (INLINE, "-1b", []),
    ("spark.ckpt.state.backend.typo", "heap", [BACKEND]),
    ("spark.ckpt.execution.checkpointing.intervall", "1s", [INTERVAL]),
]


@pytest.mark.parametrize(("key", "value", "allowed"), BAD)
def test_bad_settings(job: Job, key: str, value: str, allowed: list[str]) -> None:
    """An unknown key or a value that is not allowed is refused wherever it is set."""
    file = job.base / "bad.conf"
    file.write_text(f"# a comment\n\nspark.sql.shuffle.partitions 2\n{key}  {value}\n")
    mentions = [key, value, *allowed]
    with refused(ckpt.errors.ConfigurationError, *mentions, unchanged=job.base):
        job.using({key: value}).start()
    with spark_conf(job.spark, {key: value}):
        with refused(ckpt.errors.ConfigurationError, *mentions, unchanged=job.base):
            job.start()
    if not value:
        mentions = [key]  # the line has a key and no value at all
    with refused(ckpt.errors.ConfigurationError, *mentions, unchanged=job.base):
        ckpt.read_conf_file(file)


def test_conf_files(tmp_path: Path) -> None:
    """The conf files of the project can be read; one that is not a properties file cannot."""
    assert ckpt.read_conf_file(CONF / "heap.conf")[BACKEND] == "heap"
    assert ckpt.read_conf_file(str(CONF / "rocksdb.conf"))[BACKEND] == "rocksdb"
    file = tmp_path / "some.conf"
    file.write_text("spark.app.name   My job = yours\n  # indented comment\nspark.x.y=z\n")
    read = ckpt.read_conf_file(file)
    assert read == {"spark.app.name": "My job = yours", "spark.x.y": "z"}
    file.write_text("spark.app.name\n")
    with refused(ckpt.errors.ConfigurationError, file, "spark.app.name", unchanged=tmp_path):
        ckpt.read_conf_file(file)


@pytest.mark.soak
def test_directories(job: Job) -> None:
    """With .dir set the files go to <dir>/<query id>, and the query restarts from there."""
    elsewhere, savepoints = job.base / "checkpoints", job.base / "savepoints"
    job = job.using({CHECKPOINT_DIR: elsewhere, SAVEPOINT_DIR: savepoints, **OFTEN})
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        row = await_checkpoint(query)
        savepoint = query.triggerSavepoint()
        root = elsewhere / query.id
    assert Path(row.path).parent == root
    assert {p.name for p in root.iterdir()} >= {Path(row.path).name, "shared", "taskowned"}
    assert files_below(root / "taskowned")
    assert not job.checkpoint_path.exists()
    drop_local_copies(job.spark)
    job.feed.add(events_of(1))
    again = job.run()
    assert again.id == query.id
    assert job.result() == expected(job.feed.rows)
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=savepoint.path)
    assert {p.name for p in elsewhere.iterdir()} == {query.id, savepoint_query(fork)}
    moved = job.using({CHECKPOINT_DIR: job.base / "other"})
    job.feed.add(events_of(2))
    drop_local_copies(job.spark)
    try:  # the state is not in the configured directory: an error, or it is found anyway
        moved.run()
    except Exception as error:
        assert str(elsewhere) in str(error) or str(job.base / "other") in str(error)  # noqa: PT017
        job.run()
    assert job.result() == expected(job.feed.rows)


def savepoint_query(job: Job) -> str:
    """Return the id of the query at a job's location."""
    return (job.location_path / "metadata").read_text().split('"')[3]


def test_no_savepoint_directory(job: Job) -> None:
    """A savepoint without a given or configured directory is refused."""
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        with refused(ckpt.errors.ConfigurationError, SAVEPOINT_DIR, unchanged=job.base / "in"):
            query.triggerSavepoint()


def test_inline_threshold_and_interval(job: Job) -> None:
    """Small state stays inside _metadata; no checkpoint comes before its interval but the last."""
    job = job.using({INTERVAL: "1h", INLINE: "1mb", RETAINED: 1})
    job.feed.add(*map(events_of, range(3)))
    with job.running() as query:
        query.processAllAvailable()
        assert len(completed(query)) <= 1
    (row,) = completed(query)
    assert row.epoch == 2
    drop_local_copies(job.spark)
    job.feed.add(events_of(3))
    job.run()
    assert job.result() == expected(job.feed.rows)


def test_checkpoints_table(job: Job) -> None:
    """checkpoints() is a DataFrame with the columns that the documentation names."""
    job.feed.add(events_of(0))
    with job.using(OFTEN).running() as query:
        query.processAllAvailable()
        row = await_checkpoint(query)
        table = query.checkpoints()
    assert [(f.name, f.dataType.simpleString()) for f in table.schema] == [
        ("kind", "string"),
        ("status", "string"),
        ("checkpoint_id", "bigint"),
        ("epoch", "bigint"),
        ("triggered_at", "timestamp"),
        ("duration_ms", "bigint"),
        ("size_bytes", "bigint"),
        ("new_bytes", "bigint"),
        ("files", "bigint"),
        ("phases_ms", "map<string,bigint>"),
        ("requests", "map<string,bigint>"),
        ("path", "string"),
        ("reason", "string"),
        ("parallelism_before", "bigint"),
        ("parallelism", "bigint"),
        ("pause_ms", "bigint"),
    ]
    assert (row.kind, row.status, row.epoch, row.reason) == ("checkpoint", "completed", 0, None)
    assert row.duration_ms >= 0
    assert row.files > 0
    assert row.size_bytes > 0
    assert row.new_bytes is None, "there is none before it"
    assert set(row.phases_ms) == {"handles", "sources", "verification"}
    assert row.requests == {}, "a disk gets none"
    assert Path(row.path) == job.checkpoint_path / f"chk-{row.checkpoint_id}"
    assert (Path(row.path) / "_metadata").is_file()


def test_writer_and_query_are_sparks(job: Job) -> None:
    """Writer and query have all that DataStreamWriter and StreamingQuery have."""
    job = job.but(processor=Count, output="k string, n long", location=f"file:{job.base}/loc")
    job.feed.add(events_of(0), events_of(1))
    writer = ckpt.write_stream(job.df()).queryName("counts").partitionBy("k")
    writer = writer.options(checkpointLocation=f"file:{job.base}/loc", compression="gzip")
    query = writer.trigger(processingTime="100 milliseconds").start(
        path=str(job.base / "out"), format="parquet", outputMode="append"
    )
    assert isinstance(query, StreamingQuery)
    assert job.spark.streams.get(query.id).name == query.name == "counts"
    query.processAllAvailable()
    assert query.isActive
    assert query.exception() is None
    assert query.lastProgress["batchId"] >= 1
    assert len(query.recentProgress) >= 2
    assert {"message", "isDataAvailable", "isTriggerActive"} <= set(query.status)
    assert query.awaitTermination(0.05) is False
    query.explain()
    run = query.runId
    query.stop()
    assert not query.isActive
    assert list((job.base / "out" / "k=k0").glob("*.gz.parquet"))
    job.feed.add(events_of(2))
    table = f"counts_{job.base.name[-8:].lower()}"
    second = writer.trigger(availableNow=True).start(str(job.base / "out"))
    second.awaitTermination()
    assert (second.id, second.runId != run) == (query.id, True)
    assert sequences(job.spark.read.parquet(str(job.base / "out")).select("k", "n").collect()) == (
        counted(job.feed.rows)
    )
    to_table = ckpt.write_stream(job.df()).trigger(availableNow=True)
    to_table = to_table.option("checkpointLocation", str(job.base / "loc2"))
    to_table.toTable(table, format="parquet").awaitTermination()
    assert sequences(job.spark.table(table).collect()) == counted(job.feed.rows)


def test_foreach(job: Job) -> None:
    """foreach sees each row, and its query is exact after a restart as well."""
    seen = job.base / "seen"
    seen.mkdir()

    def keep(row: Row) -> None:
        (seen / f"{row.k}-{row.n}").touch(exist_ok=False)

    job = job.but(processor=Count, output="k string, n long")
    for epoch in range(2):
        job.feed.add(events_of(epoch, 6))
        writer = ckpt.write_stream(job.df()).foreach(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(job.location_path)).start().awaitTermination()
    names = [p.name.split("-") for p in seen.iterdir()]
    assert sequences((k, int(n)) for k, n in names) == counted(job.feed.rows)
