"""Paths become the URLs that Spark makes of them, on the file system that is Hadoop's default."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.spark.paths import qualified_path

NAME_NODE = "hdfs://127.0.0.1:8020"


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/a/b", "file:/a/b"),
        ("a/b", f"file:{Path.cwd()}/a/b"),
        ("file:///a", "file:///a"),
        ("s3a://bucket/a", "s3a://bucket/a"),
        ("hdfs:///a", "hdfs:///a"),
    ],
)
def test_on_a_local_default_file_system(spark: SparkSession, path: str, url: str) -> None:
    assert qualified_path(spark, path) == url


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/a/b", f"{NAME_NODE}/a/b"),
        ("a/b", f"{NAME_NODE}/user/{getpass.getuser()}/a/b"),
        ("hdfs:///a", f"{NAME_NODE}/a"),
        ("hdfs:/a", f"{NAME_NODE}/a"),
        ("hdfs://other:8020/a", "hdfs://other:8020/a"),
        ("file:/a", "file:/a"),
        ("dbfs:/a", "dbfs:/a"),
    ],
)
def test_on_hdfs_as_the_default_file_system(spark: SparkSession, path: str, url: str) -> None:
    """As `core-site.xml` says on a cluster; nothing is asked of the NameNode."""
    conf = {"fs.defaultFS": NAME_NODE, "fs.hdfs.impl": DISTRIBUTED}
    before = {key: spark.conf.get(key, None) for key in conf}
    try:
        for key, value in conf.items():
            spark.conf.set(key, value)
        assert qualified_path(spark, path) == url
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)


DISTRIBUTED = "org.apache.hadoop.hdfs.DistributedFileSystem"
