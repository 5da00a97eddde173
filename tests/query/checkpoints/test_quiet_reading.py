"""Reading the handles of a checkpoint does not fill the log; other reads warn as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.state_reader import FEW_PARTITIONS
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import Job
from tests.query.model import events_of
from tests.query.session_conf import session_conf

WARNING = "exist in loadedMaps"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """What the root logger, at level WARN, has from Spark's state store; Log4j's own file."""
    java: Any = spark._jvm
    log4j = java.org.apache.logging.log4j
    path = tmp_path / "spark.log"
    builder = log4j.core.appender.FileAppender.newBuilder()
    builder.setName(path.name)
    builder.withFileName(str(path))
    builder.setLayout(log4j.core.layout.PatternLayout.createDefaultLayout())
    appender = builder.build()
    appender.start()
    loggers = log4j.LogManager.getContext(False)
    root = loggers.getConfiguration().getRootLogger()
    root.addAppender(appender, log4j.Level.WARN, None)
    spark.sparkContext.setLogLevel("WARN")
    yield path
    spark.sparkContext.setLogLevel("OFF")
    root.removeAppender(path.name)
    appender.stop()


@pytest.mark.soak_variants
@pytest.mark.parametrize("parallelism", [2, FEW_PARTITIONS + 1])
def test_no_warning_for_a_checkpoint(job: Job, log: Path, parallelism: int) -> None:
    """Read by the driver, and by a Spark job."""
    job.feed.add(events_of(0), events_of(1))
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": str(parallelism)}):
        job.run()
    location = str(job.location_path)
    job.spark.read.format("statestore").load(location).collect()
    before = log.read_text().count(WARNING)
    assert before >= parallelism
    files = SparkLog(LocalStorage(job.location_path))
    assert len(read_handles(job.spark, files, 1, 0, parallelism)) <= parallelism
    assert log.read_text().count(WARNING) == before
    assert job.spark.sparkContext.getLocalProperty("mdc.pyspark_ckpt") is None
    job.spark.read.format("statestore").load(location).collect()
    assert log.read_text().count(WARNING) >= before + parallelism
