"""The streaming job: one query definition, run by the original and by the fork."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import pyspark_ckpt as ckpt
from examples.flights.data import STREAM_SCHEMA
from examples.flights.expected import in_order
from examples.flights.processor import OUTPUT_SCHEMA, Turnarounds

_POLL_SECONDS = 0.25
_PYSPARK_STATE_STORE = (  # the only one that PySpark's operator can use
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
)


@dataclass(frozen=True)
class Epoch:
    """An epoch that is over."""

    rows: int
    duration_ms: int


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
    rows = ckpt.key_by(_stream(spark, source), "tailnum").transformWithState(
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


def turnarounds_of_pyspark(
    spark: SparkSession, source: Path, run: Path, threshold_min: int
) -> DataStreamWriter:
    """Return the same query with PySpark's own operator: the same processor and sink."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _PYSPARK_STATE_STORE)
    keyed = _stream(spark, source).groupBy("tailnum")
    rows = keyed.transformWithState(Turnarounds(threshold_min), OUTPUT_SCHEMA, "Append", "None")
    writer = rows.writeStream.format("parquet").option("path", str(run / "turnarounds"))
    return writer.option("checkpointLocation", str(run / "location"))


def _stream(spark: SparkSession, source: Path) -> DataFrame:
    stream = spark.readStream.schema(STREAM_SCHEMA)
    return stream.option("maxFilesPerTrigger", 1).parquet(str(source))


def follow(query: StreamingQuery, until_rows: int, show: Callable[[int, int], None]) -> None:
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


def epochs_of(query: StreamingQuery) -> list[Epoch]:
    """Return the epochs with rows that a query has done since it was started."""
    return [
        Epoch(progress["numInputRows"], progress["durationMs"]["triggerExecution"])
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def _done(query: StreamingQuery) -> tuple[int, int]:
    """Return the rows and epochs done since the query was started."""
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    return sum(rows), sum(count > 0 for count in rows)
