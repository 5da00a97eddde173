"""One timed run of one contender, checked row by row.

Measured is the time from trigger to commit as Spark reports it for each epoch (``triggerExecution``
of ``StreamingQuery.recentProgress``): planning, reading, shuffle, operator, state, sink and Spark's
own logs. Not measured are the start of the query, the warm-up epochs, and the check afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contenders import Contender
from benchmarks.cpu import CpuTimes, CpuUse
from benchmarks.data import in_order, link_files
from pyspark_ckpt import CheckpointedQuery

MAX_EPOCHS = 1_000


class WrongResultError(Exception):
    """A contender's output is not what pandas computes from the same data."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Spark's report of one epoch."""

    rows: int
    started_at: float
    durations_ms: Mapping[str, int]

    @property
    def ms(self) -> int:
        """Trigger to commit."""
        return self.durations_ms["triggerExecution"]


@dataclass(frozen=True, slots=True)
class Run:
    """The steady epochs of one run whose whole output was right."""

    contender: Contender
    epochs: Sequence[Epoch]
    all_rows: int
    cpu: CpuUse | None
    checkpoints: int | None

    @property
    def rows_per_second(self) -> float:
        """Rows of the steady epochs per second of their triggers."""
        return 1000 * sum(epoch.rows for epoch in self.epochs) / sum(e.ms for e in self.epochs)

    @property
    def cpu_seconds_per_million_rows(self) -> float | None:
        """CPU time of driver, JVM and workers over the whole query, start and warm-up included."""
        return None if self.cpu is None else 1e6 * self.cpu.own_seconds / self.all_rows

    @property
    def share_in_triggers(self) -> float:
        """Part of the wall-clock time that lies within triggers: close to 1, nothing is hidden."""
        last = self.epochs[-1]
        wall_ms = 1000 * (last.started_at - self.epochs[0].started_at) + last.ms
        return sum(epoch.ms for epoch in self.epochs) / wall_ms

    def median_durations_ms(self) -> dict[str, float]:
        """Return the median of each part of an epoch."""
        parts = sorted({part for epoch in self.epochs for part in epoch.durations_ms})
        return {
            part: median(epoch.durations_ms.get(part, 0) for epoch in self.epochs) for part in parts
        }


def new_session(directory: Path) -> SparkSession:
    """Start the session that all contenders share: two cores, two shuffle partitions.

    State goes to Spark's RocksDB store with a changelog, its fastest durable setting, for all
    contenders; this library keeps only its handles there.
    """
    state_store = "spark.sql.streaming.stateStore"
    spark: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName("pyspark_ckpt benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", MAX_EPOCHS)
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
        .config(
            f"{state_store}.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config(f"{state_store}.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_checked(
    spark: SparkSession,
    contender: Contender,
    files: Sequence[Path],
    directory: Path,
    warm_up_epochs: int,
) -> Run:
    """Run a contender over the files, check all its output, and return the steady epochs.

    Raises
    ------
    WrongResultError
        If the output, the number of epochs or of rows is not what it must be.
    """
    source = link_files(files, directory / "source")
    output = directory / "output"
    clocks = CpuTimes.now()
    query = contender.start(spark, source, output, directory / "location")
    query.awaitTermination()
    cpu = CpuUse.since(clocks)
    epochs = _epochs(query)
    if len(epochs) != len(files):
        raise WrongResultError(f"{contender.name}: {len(epochs)} epochs for {len(files)} files")
    _check_output(contender.name, _read_output(spark, output), contender.expected(files))
    run = Run(
        contender,
        epochs=epochs[warm_up_epochs:],
        all_rows=sum(epoch.rows for epoch in epochs),
        cpu=cpu,
        checkpoints=_checkpoints(contender.name, query),
    )
    shutil.rmtree(directory, ignore_errors=True)
    return run


def _epochs(query: StreamingQuery) -> list[Epoch]:
    return [
        Epoch(
            rows=progress["numInputRows"],
            started_at=datetime.fromisoformat(progress["timestamp"]).timestamp(),
            durations_ms=dict(progress["durationMs"]),
        )
        for progress in _progress(query)
        if progress["numInputRows"] > 0
    ]


def _progress(query: StreamingQuery) -> Sequence[Any]:
    return query.recentProgress


def _read_output(spark: SparkSession, output: Path) -> pd.DataFrame:
    # Spark reads exactly the files that the sink's log has committed.
    frame: pd.DataFrame = spark.read.parquet(str(output)).toArrow().to_pandas()
    return frame


def _check_output(name: str, output: pd.DataFrame, expected: pd.DataFrame) -> None:
    try:
        pd.testing.assert_frame_equal(in_order(output), expected)
    except AssertionError as exc:
        raise WrongResultError(f"{name}: the output is not what pandas computes: {exc}") from exc


def _checkpoints(name: str, query: StreamingQuery) -> int | None:
    """Return how many checkpoints a query of this library took, none of them given up."""
    if not isinstance(query, CheckpointedQuery):
        return None
    rows = query.checkpoints().collect()
    aborted = [row.reason for row in rows if row.status != "completed"]
    if aborted:
        raise WrongResultError(f"{name}: checkpoints were given up: {aborted}")
    return max((row.checkpoint_id for row in rows), default=0)
