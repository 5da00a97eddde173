"""One Spark session for all tests that can share it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.servers`, however pytest began

from tests.servers.s3 import BUCKET, s3_server
from tests.servers.zookeeper import zookeeper_server

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# Tests are short: the JVM's second compiler would take more than it ever gives back.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

PARALLELISM = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks are collected by nbmake; each starts a driver of its own."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.own_jvm)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; a task may fail three times before its query does."""
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("pyspark_ckpt tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", PARALLELISM)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("local")))
        .config("spark.sql.session.timeZone", "UTC")
        # Code made for a few rows takes longer to compile than to do without; programs that the
        # tests start in a JVM of their own have Spark's default.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[dict[str, str]]:
    """What a process needs to reach the S3 server, which has one bucket; set in this one."""
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3", use_listings_cache=False).mkdir(BUCKET)
        yield environment


@pytest.fixture(scope="session")
def zookeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a ZooKeeper server."""
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


@pytest.fixture
def s3_url(s3_environment: dict[str, str]) -> str:
    """A directory of the test's own in the bucket."""
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"
