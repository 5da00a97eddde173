"""A harness runs a processor in the mode of its class, with what modes can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.testing import ProcessorHarness
from tests.processor_of_each_mode import PROCESSORS
from tests.unit.testing.captured_query import CapturedQuery

INPUT = {"ada": [30, 2000, 30], "bob": [40]}
IN_A_HARNESS = [name for name in PROCESSORS if name != "arrow"]


def run(name: str, harness: ProcessorHarness) -> list[tuple[Any, ...]]:
    """Process the input and then all timers; return the output in the order of its values."""
    frames = {key: pd.DataFrame({"n": numbers}) for key, numbers in INPUT.items()}
    if name == "batches":
        rows = pd.concat([frame.assign(k=key) for key, frame in frames.items()])
        found = [harness.testInBatches(rows, "k")]
    elif name == "pandas":
        found = [harness.testMany(frames)]
    else:
        found = [harness.testMany({key: [Row(n=n) for n in ns] for key, ns in INPUT.items()})]
    for now_ms in (35, 50, 3000, 3001):
        found.append(harness.setProcessingTime(now_ms))
    rows_out = [
        tuple(row)
        for output in found
        for row in (output if isinstance(output, list) else output.to_numpy().tolist())
    ]
    return sorted(rows_out, key=repr)


@pytest.mark.parametrize("name", IN_A_HARNESS)
def test_the_same_in_each_mode(name: str) -> None:
    harness = ProcessorHarness(PROCESSORS[name](sets_timers=True), timeMode="ProcessingTime")
    assert run(name, harness) == [
        ("ada", -4), ("ada", -5), ("ada", -6), ("ada", -7), ("ada", 2060), ("bob", -2),
        ("bob", -3), ("bob", 40),
    ]  # fmt: skip
    assert harness.peekListState("seen", "bob") == [(40,), (-40,), (-41,)]


EPOCHS: list[dict[str | None, list[int]]] = [
    {"ada": [30, 2000, 30], "bob": [40]},
    {"eve": [8, 9], None: [7], "ada": [-1], **{f"key {n}": [n, 100 * n] for n in range(50)}},
]
TIMES_MS = (35, 50, 3000, 3001, 5000)


def over(name: str, harness: ProcessorHarness, epoch: dict[str | None, list[int]]) -> Any:
    if name == "rows":
        return harness.testMany({key: [Row(n=n) for n in ns] for key, ns in epoch.items()})
    frames = {key: pd.DataFrame({"n": ns}) for key, ns in epoch.items()}
    if name == "pandas":
        return harness.testMany(frames)
    keys = [key for key, ns in epoch.items() for _ in ns]
    rows = pd.concat(frames.values(), ignore_index=True).assign(k=keys)
    return harness.testInBatches(rows, "k")


def values_of(output: Any) -> list[tuple[Any, ...]]:
    rows = output.to_numpy().tolist() if isinstance(output, pd.DataFrame) else output
    return list(map(tuple, rows))


@pytest.mark.parametrize("name", IN_A_HARNESS)
def test_output_and_state_are_those_of_a_query(name: str, tmp_path: Path) -> None:
    """The same rows through a harness, and through a subtask as a task drives it."""
    processor, schema = PROCESSORS[name](sets_timers=True), "k string, n long"
    harness = ProcessorHarness(processor, timeMode="ProcessingTime", outputStructType=schema)
    query = CapturedQuery(
        tmp_path, "heap", processor, schema=schema, mode=name, time_mode=TimeMode.PROCESSING_TIME
    )
    for epoch in EPOCHS:
        rows = [(key, n) for key, ns in epoch.items() for n in ns]
        wanted = [tuple(row.values()) for row in query.epoch(rows, now_ms=0)]
        assert values_of(over(name, harness, epoch)) == wanted
        assert len(wanted) >= len(epoch)
    for now_ms in TIMES_MS:
        wanted = [tuple(row.values()) for row in query.epoch(now_ms=now_ms)]
        assert values_of(harness.setProcessingTime(now_ms)) == wanted
    subtask = harness._subtask
    with open_local_copy(subtask._local, "heap", subtask.storage, subtask.handle) as local:
        assert list(local.backend.scan()) == list(query.backend.scan())
    query.close()


def test_a_restored_harness_knows_the_names_of_keys() -> None:
    class Names(ckpt.BatchProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> None:
            self.handle.registerTimers(keys, [1000] * len(keys))

        def handleExpiredTimers(self, keys: Any, timers: Any, timerValues: Any) -> Any:
            yield keys

        def close(self) -> None: ...

    harness = ProcessorHarness(Names(), timeMode="ProcessingTime", keyColumns=2)
    harness.testInBatches(pd.DataFrame({"a": ["x"], "b": [1]}), "a", "b")
    snapshot = harness.snapshot()
    assert harness.setProcessingTime(1000).to_dict("list") == {"a": ["x"], "b": [1]}
    restored = ProcessorHarness.restored(Names(), snapshot)
    assert restored.setProcessingTime(1000).to_dict("list") == {"a": ["x"], "b": [1]}
