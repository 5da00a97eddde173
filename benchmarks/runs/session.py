"""The Spark sessions of a benchmark: one per run, all in one JVM, which stays warm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from benchmarks.machine.samples import FIXED_COMPILER_THREADS

MAX_EPOCHS = 1_000


def use_this_python() -> None:
    """Let Spark's workers run this interpreter, and find this package wherever they start."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.getenv("PYTHONPATH")]))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # PySpark's own concatenation of pandas frames warns once in each of its calls.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")


class Sessions:
    """Gives each run its own session, so that it finds no workers or state of another.

    Two cores and two shuffle partitions. State goes to Spark's RocksDB store with a changelog, its
    fastest durable setting, for all contenders; this library keeps only its handles there.

    Parameters
    ----------
    directory
        For Spark's local files and its warehouse.
    local_files_jar
        Whether Spark writes its small files with this library's jar.
    """

    def __init__(self, directory: Path, *, local_files_jar: bool = False) -> None:
        self._directory = directory
        self._jar = ckpt.local_files_conf() if local_files_jar else {}
        self._spark: SparkSession | None = None

    def new(self) -> SparkSession:
        """End the session before and return a new one."""
        self.stop()
        state_store = "spark.sql.streaming.stateStore"
        self._spark = spark = (
            SparkSession.builder.master("local[2]")
            .appName("pyspark_ckpt benchmark")
            .config("spark.driver.memory", "4g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", FIXED_COMPILER_THREADS)
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.streaming.numRecentProgressUpdates", MAX_EPOCHS)
            .config("spark.sql.warehouse.dir", str(self._directory / "warehouse"))
            .config("spark.local.dir", str(self._directory / "local"))
            .config(map=self._jar)
            .config(
                f"{state_store}.providerClass",
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            )
            .config(f"{state_store}.rocksdb.changelogCheckpointing.enabled", "true")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        return spark

    def last(self) -> SparkSession:
        """Return the session that was begun last, or a new one."""
        return self._spark or self.new()

    def stop(self) -> None:
        """End the session, if there is one."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
