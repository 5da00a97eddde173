"""Where the locations of query tests are: on the local disk, S3, HDFS or Google's storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.storage.open import Storage, open_storage
from tests.servers.gs import gs_conf, gs_jars
from tests.servers.s3a import s3a_conf, s3a_jars

EVERYWHERE = [
    "local",
    pytest.param("s3a", marks=pytest.mark.external),
    pytest.param("hdfs", marks=pytest.mark.external),
    pytest.param("gs", marks=pytest.mark.external),
]


class RemotePath:
    """A directory on a storage, with what tests ask of a local path."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._url}/{name}")

    def __str__(self) -> str:
        return self._url

    @property
    def storage(self) -> Storage:
        return open_storage(self._url)

    def exists(self) -> bool:
        return self.storage.parent().exists(self.storage.name)

    def remove(self) -> None:
        self.storage.parent().remove_directory(self.storage.name)


def use_hadoop_settings(spark: SparkSession, conf: dict[str, str]) -> None:
    """Give a running session settings that begin with ``spark.hadoop.``."""
    context: Any = spark.sparkContext
    for key, value in conf.items():
        context._jsc.hadoopConfiguration().set(key.removeprefix("spark.hadoop."), value)


@contextmanager
def s3a(spark: SparkSession, environment: Mapping[str, str]) -> Iterator[None]:
    """Let a session and its workers reach the S3 server of an environment by S3A."""
    s3a_jars()  # skips the test if they cannot be downloaded
    with _reached(spark, s3a_conf(environment), environment):
        yield


@contextmanager
def gs(spark: SparkSession, environment: Mapping[str, str]) -> Iterator[None]:
    """Let a session and its workers reach a server by Google's connector."""
    gs_jars()  # skips the test if they cannot be downloaded
    with _reached(spark, gs_conf(environment), environment):
        yield


@contextmanager
def _reached(
    spark: SparkSession, conf: dict[str, str], environment: Mapping[str, str]
) -> Iterator[None]:
    use_hadoop_settings(spark, conf)
    workers = spark.sparkContext.environment
    before = dict(workers)
    workers.update(environment)
    try:
        yield
    finally:
        workers.clear()
        workers.update(before)
