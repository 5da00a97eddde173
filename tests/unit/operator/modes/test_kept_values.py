"""Rows and tables that a processor changes after it has yielded them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.operator.modes.kept_values import kept
from pyspark_ckpt.operator.modes.output import ArrowOutput, RowsOutput
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.testing import ProcessorHarness

LISTS = T.ArrayType(T.LongType())


def rows_of(*types: T.DataType) -> OutputRows:
    fields = [T.StructField(name, kind) for name, kind in zip("ab", types, strict=False)]
    return OutputRows(T.StructType(fields), "an_operator")


@pytest.mark.parametrize(
    "row_of",
    [
        lambda numbers: Row(a=numbers, b=1),
        lambda numbers: Row(b=1, a=numbers),
        lambda numbers: Row(numbers, 1),
        lambda numbers: (numbers, 1),
    ],
)
def test_a_list_in_a_row_that_is_changed(row_of: Callable[[list[int]], Any]) -> None:
    output = RowsOutput(rows_of(LISTS, T.LongType()))

    def yielded() -> Iterator[Any]:
        numbers: list[int] = []
        for number in (1, 2):
            numbers.append(number)
            yield row_of(numbers)

    output.extend(yielded())
    assert output.take().column(0).to_pylist() == [[1], [1, 2]]


def test_bytes_in_a_row_that_are_changed() -> None:
    output = RowsOutput(rows_of(T.BinaryType()))
    data = bytearray(b"a")

    def yielded() -> Iterator[Any]:
        yield Row(a=data)
        data[:] = b"b"
        yield Row(a=data)

    output.extend(yielded())
    assert output.take().column(0).to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize(
    "value",
    [
        [1, [2, {"x": [3]}]],
        {"x": {"y": [bytearray(b"1")]}},
        (1, [2]),
        Row(x=[Row(y=[1])]),
        [np.array([1, 2])],
    ],
    ids=repr,
)
@pytest.mark.parametrize("by_name", [False, True])
def test_kept_values_are_equal_and_share_nothing_that_can_change(value: Any, by_name: bool) -> None:
    before = repr(kept(value, by_name=by_name))
    assert before == repr(kept(kept(value, by_name=by_name)))
    copied = kept(value, by_name=by_name)
    changed = change_all(value)
    assert changed
    assert repr(copied) == before


def change_all(value: Any) -> int:
    """Change all that can be changed in a value; return how many things that were."""
    if isinstance(value, dict):
        inner = sum(map(change_all, value.values()))
        value["more"] = 0
        return inner + 1
    if isinstance(value, list | tuple):
        inner = sum(map(change_all, value))
        if isinstance(value, list):
            value.append(0)
        return inner + isinstance(value, list)
    if isinstance(value, bytearray | np.ndarray):
        value[0] = 77
        return 1
    return 0


@pytest.mark.parametrize("kind", [T.LongType(), T.DoubleType(), T.TimestampType()])
def test_a_table_over_an_array_that_is_changed(kind: T.DataType) -> None:
    output = ArrowOutput(rows_of(kind))
    dtype = {"double": "f8", "timestamp": "datetime64[us]"}.get(kind.simpleString(), "i8")
    numbers = np.zeros(1, dtype)
    zone = "UTC" if isinstance(kind, T.TimestampType) else None

    def yielded() -> Iterator[pa.Table]:
        column = pa.array(numbers)
        table = pa.table({"a": column.cast(pa.timestamp("us", zone)) if zone else column})
        for number in (1, 2):
            numbers[:] = np.array(number, "i8").astype(dtype)
            yield table

    output.extend(yielded())
    assert output.take().column(0).cast(pa.int64()).to_pylist() == [1, 2]


class OneFrame(StatefulProcessor):
    """Yields the same frame for each key."""

    def init(self, handle: Any) -> None:
        self.frame = pd.DataFrame({"k": ["-"], "n": [0], "seen": [[]]})
        self.seen: list[int] = self.frame["seen"][0]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        self.frame.loc[0, "k"] = key[0]
        self.frame.loc[0, "n"] = sum(map(len, rows))
        self.seen.append(1)
        yield self.frame

    def close(self) -> None: ...


class OneList(StatefulProcessor):
    """Yields Rows with the same list."""

    def init(self, handle: Any) -> None:
        self.seen: list[Any] = []

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.seen.append(key[0])
        yield Row(k=key[0], seen=self.seen)

    def close(self) -> None: ...


@pytest.mark.parametrize("schema", [None, "k string, n long, seen array<long>"])
def test_a_harness_returns_frames_as_they_were_yielded(schema: str | None) -> None:
    harness = ProcessorHarness(OneFrame(), outputStructType=schema)
    frames = {"a": pd.DataFrame({"v": [1]}), "b": pd.DataFrame({"v": [1, 2]})}
    found = harness.testMany(frames).sort_values("k")
    assert found[["k", "n"]].to_numpy().tolist() == [["a", 1], ["b", 2]]
    assert sorted(map(len, found["seen"])) == [1, 2]


@pytest.mark.parametrize("schema", [None, "k string, seen array<string>"])
def test_a_harness_returns_rows_as_they_were_yielded(schema: str | None) -> None:
    harness = ProcessorHarness(OneList(), outputStructType=schema)
    found = harness.testMany({"a": [Row(v=1)], "b": [Row(v=1)]})
    assert [row.seen for row in found] == [[found[0].k], [found[0].k, found[1].k]]
