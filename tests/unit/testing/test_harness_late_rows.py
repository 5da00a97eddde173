"""A harness gives late rows to a processor that asks for them, in each mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import ProcessorHarness

EVENT = "EventTime"


class Audited(StatefulProcessor):
    """Sums up rows in time, counts late ones, and raises at a negative value."""

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long")
        self.late = handle.getValueState("late", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self.sum.get() or (0,)
        for row in rows:
            self.check(row)
            n += row.v
        self.sum.update((n,))
        yield Row(k=key[0], what="sum", n=n)

    def handleLateRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self.late.get() or (0,)
        for row in rows:
            self.check(row)
            assert row.at <= timerValues.getCurrentWatermarkInMs()
            n += 1
        self.late.update((n,))
        yield Row(k=key[0], what="late", n=n)

    def check(self, row: Row) -> None:
        if row.v < 0:
            msg = f"value {row.v}"
            raise ValueError(msg)

    def close(self) -> None:
        pass


class Mended(Audited):
    def check(self, row: Row) -> None:
        pass


class OnlyInTime(StatefulProcessor):
    init, close = Audited.init, Audited.close

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], what="sum", n=sum(row.v for row in rows))


class InPandas(Audited):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pd.DataFrame({"what": ["sum"], "n": [sum(frame["v"].sum() for frame in rows)]})

    def handleLateRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pd.DataFrame({"what": ["late"], "n": [sum(map(len, rows))]})


class InBatches(ckpt.BatchProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pd.DataFrame({"what": ["sum"], "n": [rows["v"].sum()]})

    def handleLateBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield keys.assign(what="late", n=rows.groupby(level=0).size())[["what", "n"]]

    def close(self) -> None:
        pass


class InArrow(ckpt.ArrowProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pa.table({"what": ["sum"], "n": [pc.sum(rows["v"]).as_py()]})

    def handleLateArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pa.table({"what": ["late"], "n": [len(rows)]})

    def close(self) -> None:
        pass


def harness_of(processor: StatefulProcessor, **arguments: Any) -> ProcessorHarness:
    return ProcessorHarness(
        processor, timeMode=EVENT, eventTimeExtractor=lambda row: int(row["at"]), **arguments
    )


def row(v: int, at: int) -> Row:
    return Row(v=v, at=at)


def test_late_rows_come_first_and_to_their_own_method() -> None:
    harness = harness_of(Audited())
    harness.setWatermark(100)
    found = harness.test("a", [row(1, 101), row(2, 100), row(4, 150), row(8, 7)])
    assert found == [Row(k="a", what="late", n=2), Row(k="a", what="sum", n=5)]
    assert harness.test("b", [row(1, 99)]) == [Row(k="b", what="late", n=1)]
    assert harness.test("b", [row(1, 101)]) == [Row(k="b", what="sum", n=1)]
    assert harness.peekValueState("late", "a") == (2,)


def test_without_the_method_late_rows_are_dropped() -> None:
    harness = harness_of(OnlyInTime())
    harness.setWatermark(100)
    found = harness.test("a", [row(1, 101), row(2, 100)])
    assert found == [Row(k="a", what="sum", n=1)]
    assert harness.test("b", [row(1, 99)]) == []


def in_frame() -> pd.DataFrame:
    return pd.DataFrame({"k": "a", "v": [1, 2, 4, 8], "at": [101, 100, 150, 7]})


def test_frames() -> None:
    harness = harness_of(InPandas())
    harness.setWatermark(100)
    found = harness.testInPandas("a", in_frame())
    assert found.to_numpy().tolist() == [["late", 2], ["sum", 5]]


def test_all_keys_in_one_call() -> None:
    harness = harness_of(InBatches())
    harness.setWatermark(100)
    found = harness.testInBatches(in_frame(), "k")
    assert found.to_numpy().tolist() == [["late", 2], ["sum", 5]]
    harness = harness_of(InArrow())
    harness.setWatermark(100)
    table = pa.Table.from_pandas(in_frame(), preserve_index=False)
    assert harness.testInArrow(table, "k").to_pylist() == [
        {"what": "late", "n": 2},
        {"what": "sum", "n": 5},
    ]


@pytest.mark.parametrize("bad_at", [50, 200], ids=["late", "in time"])
def test_rows_of_a_quarantined_key_are_late_or_not_as_they_came(bad_at: int) -> None:
    harness = harness_of(Audited(), onError="quarantine")
    harness.setWatermark(100)
    assert harness.test("a", [row(-1, bad_at)]) == []
    harness.test("a", [row(2, 60), row(4, 300), row(8, 61)])
    harness.setWatermark(1_000)
    harness.test("a", [row(16, 1_001)])
    mended = harness_of(Mended(), onError="quarantine")
    mended.restore(harness.snapshot())
    found = mended.release()
    late, total = (3, 20) if bad_at == 50 else (2, 19)
    assert [each.n for each in found if each.what == "late"][-1] == late
    assert [each.n for each in found if each.what == "sum"][-1] == total


def test_a_snapshot_goes_on() -> None:
    harness = harness_of(Audited())
    harness.setWatermark(100)
    harness.test("a", [row(1, 1)])
    other = harness_of(Audited())
    other.restore(harness.snapshot())
    assert other.test("a", [row(1, 100)]) == [Row(k="a", what="late", n=2)]


def test_an_error_names_the_method() -> None:
    harness = harness_of(Audited())
    harness.setWatermark(100)
    with pytest.raises(ckpt.errors.ProcessorError, match=r"handleLateRows, key \('a',\)"):
        harness.test("a", [row(-5, 1)])


@pytest.mark.parametrize(
    ("processor", "mode", "says"),
    [
        (Audited, "ProcessingTime", "no row is late"),
        (type("Wrong", (InArrow,), {"handleLateRows": Audited.handleLateRows}), EVENT, "rename it"),
        (type("Few", (Audited,), {"handleLateRows": lambda self, rows: None}), EVENT, "parameters"),
    ],
)
def test_a_method_that_cannot_be_called_is_refused(processor: Any, mode: str, says: str) -> None:
    with pytest.raises(ckpt.errors.PlanError, match=says):
        ProcessorHarness(processor(), timeMode=mode, eventTimeExtractor=lambda row: 0)


def test_none_in_its_place_is_no_method() -> None:
    harness = harness_of(type("Without", (Audited,), {"handleLateRows": None})())
    harness.setWatermark(100)
    assert harness.test("a", [row(2, 100)]) == []


def test_a_watermark_beyond_all_times() -> None:
    harness = harness_of(Audited())
    harness.setWatermark(1 << 62)
    assert harness.test("a", [row(1, 100)]) == [Row(k="a", what="late", n=1)]


def test_a_quarantined_key_is_released_before_the_method_comes_or_goes() -> None:
    harness = harness_of(Audited(), onError="quarantine")
    harness.test("a", [row(-1, 50)])
    other = harness_of(OnlyInTime(), onError="quarantine")
    other.restore(harness.snapshot())
    with pytest.raises(ckpt.errors.IncompatibleStateError, match="had a method for late rows"):
        other.test("b", [row(1, 500)])
