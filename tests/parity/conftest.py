"""Fixtures of the parity tests; the Spark session is the one of all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[2]))  # for `tests.parity...`, however pytest began

from tests.by_value import pickled_by_value
from tests.parity import engines
from tests.parity.engines import Both
from tests.query import harness, model


@pytest.fixture(scope="module", autouse=True)
def modules_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    with pickled_by_value(harness, model, engines, request.module):
        yield


@pytest.fixture(autouse=True)
def no_query_left(spark: SparkSession) -> Iterator[None]:
    """A failed test does not leave its query running into the next one."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> Callable[..., Both]:
    """Make the two runs of one program."""

    def make(ddl: str, *files: object, **program: object) -> Both:
        return Both(spark, tmp_path, ddl, files, **program)  # type: ignore[arg-type]

    return make


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the pandas variants to ``make soak``: PySpark's operator is slow to start."""
    for item in items:
        if "parity" in item.path.parts and "andas" in item.name:
            item.add_marker(pytest.mark.soak)
