"""How many slots a savepoint's copies take."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle
from pyspark_ckpt.savepoint.job import SavepointJob
from pyspark_ckpt.spark.jobs import SparkJobs
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy


def copy_of(subtask: int, size_bytes: int) -> SubtaskCopy:
    file = FileReference(path=f"shared/{subtask}", size_bytes=size_bytes, sha256="0" * 64)
    base = BaseSnapshot("v", 1, None, (BaseFile("f", file),)) if size_bytes else None
    handle = Handle(
        query_id="q", uid="op", subtask=subtask, parallelism=4, max_parallelism=128, epoch=7,
        key_schema="{}", states=(), base=base,
    )  # fmt: skip
    return SubtaskCopy(handle=handle, source="s", target="t", is_canonical=True, token="x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size_bytes", "idle_ms", "at_once"),
    [
        (0, 0, 1),  # all of it in the handle, but the query is busy
        (0, 5, 2),
        (8_000_000, 99, 1),  # it has waited for less time than the copy will take
        (8_000_000, 101, 2),
        (60_000_000, math.inf, 2),
        (100_000_000, math.inf, 1),
    ],
)
def test_all_slots_only_where_the_query_will_wait(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
    idle_ms: float,
    at_once: int,
) -> None:
    jobs: list[int] = []

    def run(_: SavepointJob, copies: Any, progress: Any) -> list[Handle]:
        jobs.append(len(copies))
        return [copy.handle for copy in copies]

    monkeypatch.setattr(SavepointJob, "_run", run)
    job = SavepointJob(spark, "savepoint", SparkJobs(spark, "it"), lambda: idle_ms)
    copies = [copy_of(subtask, size_bytes) for subtask in range(4)]
    assert job(copies) == [copy.handle for copy in copies]
    assert jobs == [at_once] * (4 // at_once)
