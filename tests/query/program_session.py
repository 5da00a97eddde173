"""The session of a program that a test starts."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession


def program_session(work: Path) -> SparkSession:
    """Return a session of two cores and two subtasks, with its files below a directory."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(work / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark
