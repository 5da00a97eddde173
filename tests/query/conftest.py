"""Fixtures of the tests of whole queries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[2]))  # for `tests.query.harness`, however pytest began

from tests.by_value import pickled_by_value
from tests.golden import program
from tests.query import harness, model, timed
from tests.query.harness import Feed, Job
from tests.query.place import EVERYWHERE, RemotePath, gs, s3a


@pytest.fixture(scope="module", autouse=True)
def modules_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    with pickled_by_value(harness, model, timed, program, request.module):
        yield


@pytest.fixture(autouse=True)
def no_query_left(spark: SparkSession) -> Iterator[None]:
    """A failed test does not leave its query running into the next one."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "in")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("everywhere") is not None:
        metafunc.parametrize("place", EVERYWHERE, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[RemotePath | None]:
    """Where the locations of a test are, ``None`` for the local disk."""
    kind = getattr(request, "param", "local")
    if kind == "local":
        yield None
    elif kind == "hdfs":
        yield RemotePath(request.getfixturevalue("hdfs_url"))
    elif kind == "gs":
        with gs(request.getfixturevalue("spark"), request.getfixturevalue("gcs_environment")):
            yield RemotePath(request.getfixturevalue("gcs_url"))
    else:
        spark: SparkSession = request.getfixturevalue("spark")
        with s3a(spark, request.getfixturevalue("s3_environment")):
            yield RemotePath(request.getfixturevalue("s3_url").replace("s3://", "s3a://"))


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, feed: Feed, place: RemotePath | None) -> Job:
    return Job(spark, tmp_path, feed, place=place)
