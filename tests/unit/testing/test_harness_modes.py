"""A harness runs a processor in the mode of its class, with what modes can do."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.testing import ProcessorHarness
from tests.processor_of_each_mode import PROCESSORS
from tests.unit.testing.captured_query import CapturedQuery

INPUT: dict[str | None, list[int]] = {"ada": [30, 2000, 30], "bob": [40]}


def run(name: str, harness: ProcessorHarness) -> list[tuple[Any, ...]]:
    """Process the input and then all timers; return the output in the order of its values."""
    found = values_of(over(name, harness, INPUT))
    for now_ms in (35, 50, 3000, 3001):
        found += values_of(harness.setProcessingTime(now_ms))
    return sorted(found, key=repr)


@pytest.mark.parametrize("name", PROCESSORS)
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
    if name == "batches":
        return harness.testInBatches(rows, "k")
    return harness.testInArrow(pa.Table.from_pandas(rows, preserve_index=False), "k")


def values_of(output: Any) -> list[tuple[Any, ...]]:
    """Return the key and the number of each row."""
    if isinstance(output, pa.Table):
        return [(row["k"], row["n"]) for row in output.to_pylist()]
    if isinstance(output, pd.DataFrame):
        output = output.astype(object).where(output.notna(), None).to_numpy().tolist()
    return list(map(tuple, output))


@pytest.mark.parametrize("name", PROCESSORS)
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


BROADCAST = {
    "rows": [Row(n=3)],
    "pandas": pd.DataFrame({"n": [3]}),
    "batches": pd.DataFrame({"n": [3]}),
    "arrow": pa.table({"n": [3]}),
}
"""Broadcast rows in the form of each mode."""


@pytest.mark.parametrize("name", PROCESSORS)
def test_broadcast_and_initial_rows_in_each_mode(name: str) -> None:
    rows, frames = [("ada", Row(n=100))], [("ada", pd.DataFrame({"n": [100]}))]
    processor = PROCESSORS[name]()
    if name == "rows":
        harness = ProcessorHarness(processor, initialStateRow=rows)
    else:
        harness = ProcessorHarness(processor, initialStatePandas=frames)
    harness.testBroadcast(BROADCAST[name])
    assert harness.peek("offsets") == {("offset",): (3,)}
    assert sorted(values_of(over(name, harness, {"ada": [1, 2], "bob": [4]}))) == [
        ("ada", 106),
        ("bob", 7),
    ]


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("rows", "arrow", "a StatefulProcessor gets Rows or frames: give a list of Rows"),
        ("batches", "rows", "a BatchProcessor gets frames: give a frame"),
        ("arrow", "batches", "an ArrowProcessor gets tables: give a table"),
    ],
)
def test_broadcast_rows_in_another_form_are_refused(name: str, given: str, words: str) -> None:
    with pytest.raises(ckpt.errors.PlanError, match=words):
        ProcessorHarness(PROCESSORS[name]()).testBroadcast(BROADCAST[given])


def test_broadcast_integers_of_a_batch_keep_their_digits() -> None:
    class Batches(PROCESSORS["batches"]):  # type: ignore[misc]
        def handleBroadcastRows(self, rows: Any, timerValues: Any) -> None:
            for frame in rows:
                (n, _) = frame["n"].tolist()
                self.offsets.updateValue(("offset",), (n,))

    harness = ProcessorHarness(Batches(), inputStructType="n long")
    harness.testBroadcast(pd.DataFrame({"n": pd.array([2**53 + 1, None], "Int64")}))
    assert harness.peek("offsets") == {("offset",): (2**53 + 1,)}


class Newest(ckpt.ArrowProcessor):
    """Keeps the newest number of a key, and yields its rows with the one that was there."""

    def __init__(self, ttl: ckpt.StateTtlConfig | None = None) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.newest = handle.getValueState("newest", "n long", self.ttl)

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> Any:
        before = self.newest.getMany(keys)["n"]
        self.newest.updateMany(keys, rows.select(["n"]))
        yield rows.append_column("before", before)
        yield from rows.slice(0, 0).to_batches()

    def close(self) -> None: ...


@pytest.mark.parametrize("schema", [None, "user string, day date, n long, before long"])
def test_rows_in_tables(schema: str | None) -> None:
    """Late rows are dropped, a missing column is null, and a time to live counts from the rows."""
    harness = ProcessorHarness(
        Newest(ckpt.StateTtlConfig(10, "event")),
        timeMode="EventTime",
        eventTimeExtractor=lambda row: row.at_ms,
        outputStructType=schema,
        inputStructType="user string, day date, n int, at_ms long",
    )
    days = pa.array([19_782, None], pa.date32())
    first = pa.table({"user": ["ada", "bob"], "n": [1, 2], "at_ms": [100, 100], "day": days})
    found = harness.testInArrow(first, "user").select(["user", "day", "n", "before"])
    assert sorted(found.to_pylist(), key=repr) == [
        {"user": "ada", "day": datetime.date(2024, 2, 29), "n": 1, "before": None},
        {"user": "bob", "day": None, "n": 2, "before": None},
    ]
    assert found.schema.field("n").type == (pa.int32() if schema is None else pa.int64())
    assert len(harness.setWatermark(105)) == 0
    later = pa.table({"user": ["ada", "bob"], "n": [3, 4], "at_ms": [105, 106]})
    (row,) = harness.testInArrow(later, "user").to_pylist()
    assert (row["user"], row["day"], row["n"], row["before"]) == ("bob", None, 4, 2)
    harness.setWatermark(111)
    last = pa.table({"user": ["ada", "bob"], "n": [5, 6], "at_ms": [112, 112]})
    found = harness.testInArrow(last, "user")
    assert dict(zip(found["user"].to_pylist(), found["before"].to_pylist(), strict=True)) == {
        "ada": None,
        "bob": 4,
    }
    assert harness.peekValueState("newest", "ada") == (5,)


def test_each_kind_of_processor_has_its_test() -> None:
    table = pa.table({"k": ["ada"], "n": [1]})
    with pytest.raises(ckpt.errors.PlanError, match="an ArrowProcessor is tested by testInArrow"):
        ProcessorHarness(Newest()).test("ada", [Row(n=1)])
    with pytest.raises(ckpt.errors.PlanError, match="needs a BatchProcessor: call testInArrow"):
        ProcessorHarness(Newest()).testInBatches(table.to_pandas(), "k")
    with pytest.raises(ckpt.errors.PlanError, match="needs an ArrowProcessor: call testInBatches"):
        ProcessorHarness(PROCESSORS["batches"]()).testInArrow(table, "k")
    with pytest.raises(
        ckpt.errors.PlanError, match=r"got the key columns \['x'\]: name some of.*'k'"
    ):
        ProcessorHarness(Newest()).testInArrow(table, "x")


def test_what_is_yielded_is_kept_as_it_was() -> None:
    numbers = np.array([1, 2])

    class Yields(Newest):
        def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> Any:
            yield pa.table({"n": pa.array(numbers)})
            numbers[:] = 7

    harness = ProcessorHarness(Yields())
    assert harness.testInArrow(pa.table({"k": ["ada"], "n": [1]}), "k")["n"].to_pylist() == [1, 2]


def test_what_is_no_table_is_refused() -> None:
    class Yields(Newest):
        def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> Any:
            yield rows.to_pandas()

    for schema in (None, "n long"):
        harness = ProcessorHarness(Yields(), outputStructType=schema)
        with pytest.raises(
            ckpt.errors.StateValueError, match="yielded DataFrame: yield Arrow tables"
        ):
            harness.testInArrow(pa.table({"k": ["ada"], "n": [1]}), "k")


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
