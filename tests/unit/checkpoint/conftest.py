"""The query without Spark, and its runners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import Storage
from tests.unit.checkpoint.runner_query import (
    QUERY,
    SUBTASKS,
    FaultyStorage,
    Query,
)


@pytest.fixture
def query(storage: Storage, snapshot: CheckpointMetadata) -> Query:
    return Query(FaultyStorage(storage.root), snapshot)


@pytest.fixture
def start(query: Query) -> Iterator[Callable[..., CheckpointRunner]]:
    """Return a function that starts the query's runner; it can be called again."""
    runners = []

    def start(**changed: Any) -> CheckpointRunner:
        settings = Settings(**{"num_retained": 2, "interval_ms": 3_600_000, **changed})
        runner = CheckpointRunner(QUERY, SUBTASKS, query.storage, settings, query.snapshot)
        runners.append(runner)
        return runner

    yield start
    for runner in runners:
        runner.close()
