"""A harness runs a processor in the mode of its class, with what modes can do."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import ProcessorHarness
from tests.processor_of_each_mode import PROCESSORS

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
