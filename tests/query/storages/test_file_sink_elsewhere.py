"""A file sink on a file system that this library does not know, while the location is local.

Hadoop's ViewFileSystem maps ``viewfs://`` to a local directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from tests.query.harness import Job, newest_checkpoint, refused
from tests.query.model import events_of, expected, in_order

TABLE = "pyspark-ckpt-tests"
PATH = f"viewfs://{TABLE}/out"


@pytest.fixture
def job(job: Job) -> Iterator[Job]:
    conf = {
        "fs.viewfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystem",
        "fs.AbstractFileSystem.viewfs.impl": "org.apache.hadoop.fs.viewfs.ViewFs",
        f"fs.viewfs.mounttable.{TABLE}.link./out": f"file://{job.base}/out",
    }
    (job.base / "out").mkdir()
    for key, value in conf.items():
        job.spark.conf.set(key, value)
    yield job
    for key in conf:
        job.spark.conf.unset(key)


def result(job: Job) -> list[Any]:
    """Read as Spark wrote it: the sink's log has the names of this file system."""
    return in_order(job.spark.read.schema(job.output).parquet(PATH).collect())


def writer(job: Job) -> ckpt.CheckpointedStreamWriter:
    return job.writer().option("path", PATH).trigger(availableNow=True)


@pytest.mark.slow
def test_it_is_written_as_by_spark_and_only_a_restore_asks_for_its_log(job: Job) -> None:
    """The restore is refused before anything is written; with a known path it works."""
    job.feed.add(events_of(0))
    query = writer(job).start()
    query.awaitTermination()
    before, path = result(job), newest_checkpoint(query)
    assert before == expected(job.feed.rows)
    job.feed.add(events_of(1))
    writer(job).start().awaitTermination()
    assert result(job) == expected(job.feed.rows)
    fork = job.but(location="fork", out="fork-out")
    with refused(ckpt.errors.NotBuiltYetError, PATH, "restored", "file sink", unchanged=job.base):
        writer(fork).restoreFrom(path).start()
    fork.run(restore=path)
    assert in_order([*before, *fork.result()]) == expected(job.feed.rows)
