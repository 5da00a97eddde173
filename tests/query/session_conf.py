"""Conf of the session that all tests share, changed during a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def session_conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set conf values of a session and put back what was there before."""
    before = {key: value for key, value in spark.conf.getAll.items() if key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in values:
            if key in before:
                spark.conf.set(key, before[key])
            else:
                spark.conf.unset(key)
