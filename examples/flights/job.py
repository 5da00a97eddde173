"""The streaming job: one query definition, run by the original and by the fork."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pandas as pd
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from examples.flights.data import STREAM_SCHEMA
from examples.flights.expected import in_order
from examples.flights.processor import OUTPUT_SCHEMA, Turnarounds

_POLL_SECONDS = 0.25


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """Run a quiet local Spark with two cores, or the one that spark-submit asks for."""
    builder = SparkSession.builder.appName("pyspark_ckpt: New York flights")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it
        builder = _local(builder)
    spark = (
        builder.config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.warehouse.dir", str(directory / "spark-warehouse"))
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def _local(builder: SparkSession.Builder) -> SparkSession.Builder:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log_settings = Path(__file__).with_name("log4j2.properties").as_uri()
    return (
        builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log_settings}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
    )


def turnarounds(
    spark: SparkSession, source: Path, run: Path, threshold_min: int, backend: str
) -> ckpt.CheckpointedStreamWriter:
    """Return the query over the flights in `source`, ready to be started.

    Parameters
    ----------
    source
        Directory of flight files; one of them is an epoch.
    run
        Where this run keeps its results and its checkpoints.
    threshold_min
        See :class:`examples.flights.processor.Turnarounds`.
    backend
        Where the state is: ``rocksdb`` or ``heap``.
    """
    flights = (
        spark.readStream.schema(STREAM_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    )
    rows = ckpt.key_by(flights, "tailnum").transformWithState(
        statefulProcessor=Turnarounds(threshold_min),
        outputStructType=OUTPUT_SCHEMA,
        outputMode="Append",
        timeMode="None",
        uid="turnarounds",
    )
    return (
        ckpt.write_stream(rows)
        .format("parquet")
        .option("path", str(run / "turnarounds"))
        .option("checkpointLocation", str(run / "location"))
        .option("spark.ckpt.state.backend.type", backend)
        .option("spark.ckpt.execution.checkpointing.interval", "3s")
    )


def follow(
    query: ckpt.CheckpointedQuery, until_rows: int, show: Callable[[int, int], None]
) -> None:
    """Show rows and epochs done until `until_rows` rows are committed.

    Raises
    ------
    pyspark.errors.StreamingQueryException
        If the query fails.
    """
    rows, epochs = _done(query)
    while rows < until_rows and query.isActive:
        sleep(_POLL_SECONDS)
        rows, epochs = _done(query)
        show(rows, epochs)
    query.processAllAvailable()  # raises the error of the query
    show(*_done(query))


def read_result(spark: SparkSession, run: Path) -> pd.DataFrame:
    """Return all rows that a run wrote."""
    return in_order(spark.read.parquet(str(run / "turnarounds")).toPandas())


def _done(query: ckpt.CheckpointedQuery) -> tuple[int, int]:
    """Return the rows and epochs done since the query was started."""
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    return sum(rows), sum(count > 0 for count in rows)
