"""The Spark session of the programs that make and continue golden data."""

from __future__ import annotations

from pyspark.sql import SparkSession


def golden_session(local_directory: str) -> SparkSession:
    """Start a session of two cores and two shuffle partitions."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", local_directory)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
