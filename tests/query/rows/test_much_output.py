"""Calls that yield far more than leaves the worker at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import HAND_OVER, Job
from tests.query.model import events_of

pytestmark = pytest.mark.slow

ROWS = 50_000
"""What each key yields: more than three batches."""


class _Much(StatefulProcessor):
    """Counts in its state what the key has yielded so far, while it yields."""

    def init(self, handle: Any) -> None:
        self.yielded = handle.getValueState("yielded", "n long")

    def numbers(self, at_once: int) -> Iterator[range]:
        (begun,) = self.yielded.get() or (0,)
        for start in range(begun, begun + ROWS, at_once):
            yield range(start, start + at_once)
            self.yielded.update((start + at_once,))


class MuchRows(_Much):
    """As tuples."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for numbers in self.numbers(1):
            yield key[0], numbers[0]


class MuchPandas(_Much):
    """As frames, each of them small."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for numbers in self.numbers(500):
            yield pd.DataFrame({"k": key[0], "n": numbers})


class MuchArrow(ckpt.ArrowProcessor):
    """As tables for all keys."""

    def init(self, handle: Any) -> None:
        self.yielded = handle.getValueState("yielded", "n long")

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        begun = [n or 0 for n in self.yielded.getMany(keys).column("n").to_pylist()]
        for step in range(0, ROWS, 500):
            for key, start in zip(keys.column("k").to_pylist(), begun, strict=True):
                numbers = range(start + step, start + step + 500)
                yield pa.table({"k": [key] * 500, "n": numbers})
        self.yielded.updateMany(keys, pa.table({"n": [start + ROWS for start in begun]}))


WIDE = pytest.mark.soak


@pytest.mark.parametrize(
    ("method", "processor", "hand_over"),
    [
        ("transformWithState", MuchRows, "arrow"),
        pytest.param("transformWithState", MuchRows, "packed", marks=WIDE),
        pytest.param("transformWithStateInPandas", MuchPandas, "arrow", marks=WIDE),
        ("transformWithStateInArrow", MuchArrow, "arrow"),
    ],
)
def test_each_row_is_there_once(job: Job, method: str, processor: Any, hand_over: str) -> None:
    job = job.but(method=method, processor=processor, output="k string, n long")
    job = job.using({HAND_OVER: hand_over})
    job.feed.add(events_of(0))
    job.run()
    job.feed.add(events_of(1))
    job.run()
    found = job.spark.read.parquet(str(job.base / "out")).groupBy("k").agg(
        F.count("n").alias("rows"), F.min("n").alias("first"), F.max("n").alias("last"),
        F.count_distinct("n").alias("distinct"),
    )  # fmt: skip
    calls = {key: 0 for key, _ in job.feed.rows}
    for epoch in (0, 1):
        for key in {key for key, _ in events_of(epoch)}:
            calls[key] += 1
    assert {row.k: (row.rows, row.first, row.last, row.distinct) for row in found.collect()} == {
        key: (n * ROWS, 0, n * ROWS - 1, n * ROWS) for key, n in calls.items()
    }
