"""Unsupported features raise NotBuiltYetError, which names them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from tests.query.harness import Job, refused
from tests.query.model import Count
from tests.query.session_conf import session_conf

OUTPUT = "k string, n long"


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Count, output=OUTPUT)


def transform(job: Job, **arguments: Any) -> DataFrame:
    wanted = {
        "statefulProcessor": Count(),
        "outputStructType": OUTPUT,
        "outputMode": "Append",
        "timeMode": "None",
        "uid": "op",
        **arguments,
    }
    return ckpt.key_by(job.feed.stream(job.spark), "k").transformWithState(**wanted)


def test_columns_of_types_that_are_not_built(job: Job) -> None:
    """Calendar intervals are unsupported in input and output; the message names the columns."""
    df = job.feed.stream(job.spark).withColumn("nested", F.expr("array(make_interval(1))"))
    with refused(ckpt.errors.NotBuiltYetError, "nested", "interval", unchanged=job.base):
        ckpt.key_by(df, "k")
    with refused(ckpt.errors.NotBuiltYetError, "nested", "interval", unchanged=job.base):
        job.but(output="nested array<interval>").df()


def start(job: Job, df: DataFrame, location: str = "") -> None:
    writer = ckpt.write_stream(df).format("noop").outputMode("append")
    writer.option("checkpointLocation", location or str(job.location_path)).start()


def test_spark_operators_with_other_state_stores(job: Job) -> None:
    """Stores whose file names have ids are not supported."""
    df = transform(job).dropDuplicates(["k"])
    version = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    with session_conf(job.spark, {version: "2"}):
        with refused(ckpt.errors.NotBuiltYetError, version, "dedupe", unchanged=job.base):
            start(job, df)


@pytest.mark.parametrize("scheme", ["dbfs", "viewfs", "cos"])
def test_locations_on_file_systems_without_a_storage(job: Job, scheme: str) -> None:
    """Spark may have them; this library would not know whether a file is created exclusively."""
    location = f"{scheme}://bucket/loc"
    with refused(
        ckpt.errors.NotBuiltYetError, location, "checkpointLocation", "mounted", unchanged=job.base
    ):
        start(job, job.df(), location)


def test_a_location_in_the_memory_of_one_process(job: Job) -> None:
    with refused(ckpt.errors.ConfigurationError, "memory://loc", "mounted", unchanged=job.base):
        start(job, job.df(), "memory://loc")


def test_directories_that_are_not_local(job: Job) -> None:
    """The other directories, and what a query is restored from, need a supported scheme."""
    remote = "ftp://host/dir"
    for key in ("dir", "savepoint-dir"):
        key = f"spark.ckpt.execution.checkpointing.{key}"
        with refused(ckpt.errors.CkptError, remote, unchanged=job.base) as caught:
            job.using({key: remote}).start()
        assert caught.errisinstance(ckpt.errors.NotBuiltYetError)
    with refused(ckpt.errors.NotBuiltYetError, remote, unchanged=job.base):
        job.start(restore=remote)


def test_savepoints_in_the_memory_of_one_process(job: Job) -> None:
    """The files of the tasks would be nowhere; a directory that is given is as one configured."""
    place = "memory://savepoints"
    job.feed.add([("a", 1)])
    with job.running() as query:
        query.processAllAvailable()
        for save in (query.triggerSavepoint, query.stopWithSavepoint):
            with pytest.raises(
                ckpt.errors.ConfigurationError, match=f"{place} is in the memory of one"
            ):
                save(place)
        assert query.isActive
        kept = query.triggerSavepoint(str(job.base / "savepoints"))
    for edit in (ckpt.edit_state(kept.path), ckpt.edit_state(query=job.df())):
        with pytest.raises(
            ckpt.errors.ConfigurationError, match=f"{place} is in the memory of one"
        ):
            edit.save(place)
