"""Queries whose epochs are captured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import StatefulProcessor

from tests.unit.testing.captured_query import CapturedQuery, Query


@pytest.fixture
def captured(tmp_path: Path) -> Iterator[Query]:
    made: list[CapturedQuery] = []

    def make(processor: StatefulProcessor, backend: str = "heap", **more: Any) -> CapturedQuery:
        made.append(CapturedQuery(tmp_path / str(len(made)), backend, processor, **more))
        return made[-1]

    yield make
    for query in made:
        query.close()
