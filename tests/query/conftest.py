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


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, feed: Feed) -> Job:
    return Job(spark, tmp_path, feed)
