"""Paths become the URLs that Spark makes of them, on the file system that is Hadoop's default."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.storage.open import open_storage

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


def test_steps_upwards_behind_a_link_lead_where_spark_goes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hadoop takes ``..`` out of the text; the operating system goes up from the link's target."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    url = f"file:{tmp_path}/link/../made"
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(url)
    path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).mkdirs(path)
    assert (tmp_path / "made").is_dir()
    assert qualified_path(spark, url) == f"file:{tmp_path}/made"
    assert open_storage(url).url == str(tmp_path / "made")
    open_storage(url).write("a", [b"1"])
    assert (tmp_path / "made" / "a").is_file()
    assert not (tmp_path / "real" / "made").exists()


@pytest.mark.parametrize("url", ["file:a/b", "file://localhost/a", "file:"])
def test_a_local_url_that_spark_does_not_find(spark: SparkSession, url: str) -> None:
    for read in (open_storage, lambda url: qualified_path(spark, url)):
        with pytest.raises(
            ConfigurationError, match=f"{url} is not a URL of an absolute local path"
        ):
            read(url)


def test_a_scheme_with_a_relative_path(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="'hdfs:a' is a scheme with a relative path"):
        qualified_path(spark, "hdfs:a")


DISTRIBUTED = "org.apache.hadoop.hdfs.DistributedFileSystem"
