"""Epochs that failed, captured and run again without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt import ArrowProcessor, BatchProcessor
from pyspark_ckpt.errors import HarnessUseError, ProcessorError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.testing import replay
from tests.unit.testing.captured_query import MINUTE_MS, RELEASES_ALL, CapturedQuery, Query
from tests.unit.testing.everything import Everything


class Raising(Everything):
    bad = 13

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        if any(row.v == self.bad for row in rows):
            msg = f"value {self.bad}"
            raise ValueError(msg)
        yield from super().handleInputRows(key, iter(rows), timerValues)


class Mended(Raising):
    bad = -1


def test_a_failing_task_writes_what_the_failing_key_saw(captured: Query) -> None:
    query = captured(Raising(), time_mode=TimeMode.PROCESSING_TIME, fails_only=True)
    query.epoch([("a", 1), ("b", 2)], rules=[("all", 50)])
    assert query.files() == []
    with pytest.raises(ProcessorError, match="run it again without Spark") as caught:
        query.epoch([("a", 5), ("b", 90), ("b", 13), ("c", 1)], rules=[("all", 60)])
    (file,) = query.files()
    assert str(file) in str(caught.value)
    with pytest.raises(ProcessorError, match=r"key \('b',\).*value 13"):
        replay(file, Raising())
    result = replay(file, Mended())
    assert list(result.output.itertuples(index=False, name=None)) == [
        (1, "all", -1),
        (1, "b", 2 + 60 + 13),
    ]
    assert "value 13" in result.failures[0]
    assert result.is_same
    assert result.not_repeated == []
    with pytest.raises(ProcessorError):  # the epoch again: the file is there
        query.epoch([("a", 5), ("b", 90), ("b", 13), ("c", 1)], rules=[("all", 60)])
    assert query.files() == [file]


def test_a_captured_epoch_that_fails_has_all_rows(captured: Query) -> None:
    query = captured(Raising(), time_mode=TimeMode.PROCESSING_TIME)
    query.epoch([("a", 1), ("b", 2)])
    with pytest.raises(ProcessorError):
        query.epoch([("a", 5), ("b", 13), ("c", 1)])
    result = replay(query.save(), Mended())
    assert sorted(result.output[result.output["epoch"] == 1]["k"]) == ["a", "b", "c"]
    assert result.is_same


def test_a_late_timer_that_raises_is_captured(captured: Query) -> None:
    class Alarm(Everything):
        is_mended = False

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Row]:
            if not self.is_mended:
                raise KeyError(key)
            yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)

    query = captured(Alarm(), time_mode=TimeMode.PROCESSING_TIME, fails_only=True)
    query.epoch([("a", 1), ("b", 2)])
    with pytest.raises(ProcessorError):
        query.epoch(now_ms=10 * MINUTE_MS)
    (file,) = query.files()
    with pytest.raises(ProcessorError, match="handleExpiredTimer"):
        replay(file, Alarm())
    mended = Alarm()
    mended.is_mended = True
    assert replay(file, mended).output["n"].tolist() == [1_000_001]


class Divides(StatefulProcessor):
    """A timer fails for a key whose total, of state and of rows of its own epoch, is ten."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.total.get() or (0,))[0] + sum(row.v for row in rows)
        self.total.update((n,))
        self.handle.registerTimer(MINUTE_MS)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        (n,) = self.total.get()
        yield Row(k=key[0], n=100 // (n - 10))

    def close(self) -> None:
        pass


class DividesTables(ArrowProcessor):
    """The same, with all keys of a part in one call."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> Iterator[Any]:
        by_key = rows.group_by("key_position").aggregate([("v", "sum")])
        sums = by_key.sort_by("key_position")
        stored = pc.fill_null(self.total.getMany(keys)["n"], 0)
        self.total.updateMany(keys, pa.table({"n": pc.add(stored, sums["v_sum"])}))
        self.handle.registerTimers(keys, [MINUTE_MS] * len(keys))
        return iter(())

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[Any]:
        less = pc.subtract(self.total.getMany(keys)["n"], 10)
        yield pa.table({"k": keys["k"], "n": pc.divide(pa.scalar(100), less)})

    def close(self) -> None:
        pass


class DividesFrames(BatchProcessor):
    """The same in frames."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[Any]:
        n = self.total.getMany(keys)["n"].fillna(0) + rows.groupby(level=0)["v"].sum()
        self.total.updateMany(keys, n.to_frame("n"))
        self.handle.registerTimers(keys, [MINUTE_MS] * len(keys))
        return iter(())

    def handleExpiredTimers(
        self, keys: pd.DataFrame, timers: pd.DataFrame, timerValues: Any
    ) -> Iterator[Any]:
        yield keys.assign(n=[100 // (n - 10) for n in map(int, self.total.getMany(keys)["n"])])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("rows", Divides), ("batches", DividesFrames), ("arrow", DividesTables)],
)
def test_a_timer_that_raises_is_captured_with_its_keys_rows(
    captured: Query, mode: str, kind: type
) -> None:
    query = captured(kind(), time_mode=TimeMode.PROCESSING_TIME, mode=mode, fails_only=True)
    query.epoch([("a", 7), ("b", 5)], now_ms=0)
    parts = [[("b", 1), ("c", 1)], [("a", 1), ("a", 2), ("d", 1)]]
    with pytest.raises(ProcessorError, match="run it again without Spark") as caught:
        query.epoch(*parts, now_ms=MINUTE_MS)
    (file,) = query.files()
    with pytest.raises(ProcessorError, match=r"(?i)divi") as again:
        replay(file, kind())
    step = "handleExpiredTimer" + ("" if mode == "rows" else "s")
    assert step in str(caught.value)
    assert step in str(again.value)


def test_rows_that_are_too_many_to_be_kept_for_timers(captured: Query) -> None:
    query = captured(
        Divides(), time_mode=TimeMode.PROCESSING_TIME, fails_only=True, limit_bytes=1_000
    )
    query.epoch([("a", 7)], now_ms=0)
    with pytest.raises(ProcessorError) as caught:
        query.epoch([("b", n) for n in range(100)], [("a", 3)], now_ms=MINUTE_MS)
    assert "run it again" not in str(caught.value)
    with pytest.raises(HarnessUseError, match=r"too many to be kept for that, more than 1000"):
        replay(query.files()[0], Divides())


def test_an_error_that_does_not_come_again_is_no_success(captured: Query) -> None:
    class Once(Everything):
        fails = True

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            if self.fails:
                msg = "another system had no answer"
                raise ConnectionError(msg)
            return super().handleInputRows(key, rows, timerValues)

    processor = Once()
    query = captured(processor, time_mode=TimeMode.PROCESSING_TIME, fails_only=True)
    with pytest.raises(ProcessorError):
        query.epoch([("a", 1)])
    processor.fails = False
    result = replay(query.files()[0], processor)
    assert not result
    assert "no answer" in result.not_repeated[0]
    with pytest.raises(AssertionError, match=r"(?s)raised no error.*no answer.*as it was"):
        result.assert_same()


def test_quarantined_keys_are_replayed(captured: Query) -> None:
    query = captured(Raising(), time_mode=TimeMode.PROCESSING_TIME, quarantines=True)
    query.epoch([("a", 1), ("b", 13)])
    query.epoch([("a", 2), ("b", 3)])
    replay(query.save(), Raising()).assert_same()
    wheres = {each.where for each in replay(query.save(), Mended()).differences}
    assert {"output", "state '__quarantine'", "state '__quarantine_rows'"} <= wheres


class Quarantining(Raising):
    """Fails for some values, each time in the same line, and for the timers of some keys."""

    bad_timers = ()

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        for row in rows:
            if row.v > 1_000:
                raise OverflowError(row.v)
        yield from super().handleInputRows(key, iter(rows), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        if key[0] in self.bad_timers:
            raise KeyError(key[0])
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


class MendedQuarantining(Quarantining):
    bad = -1


def quarantining(captured: Query, **more: Any) -> CapturedQuery:
    return captured(
        Quarantining(),
        time_mode=TimeMode.PROCESSING_TIME,
        quarantines=True,
        fails_only=True,
        **more,
    )


def test_the_failure_of_a_quarantined_key_is_a_unit_test(
    captured: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query = quarantining(captured)
    query.epoch([("a", 1), ("b", 2)], rules=[("all", 50)])
    assert query.files() == []
    query.epoch([("a", 5), ("b", 90), ("b", 13), ("c", 1)], rules=[("all", 60)])
    (file,) = query.files()
    assert file.name.startswith("quarantined-")
    assert str(file) in caplog.text
    with pytest.raises(ProcessorError, match=r"key \('b',\).*value 13"):
        replay(file, Quarantining())
    result = replay(file, MendedQuarantining())
    assert result.is_same
    assert "value 13" in result.failures[0]
    assert list(result.output.itertuples(index=False, name=None)) == [
        (1, "all", -1),
        (1, "b", 2 + 60 + 13),
    ]


def test_one_capture_is_kept_of_quarantined_keys_that_fail_alike(captured: Query) -> None:
    query = quarantining(captured)
    query.epoch([(key, 1_000 + number) for number, key in enumerate("abcdef", 1)])
    (first,) = query.files()
    written = first.read_bytes()
    query.epoch([("g", 2_000)])
    assert query.files() == [first]
    assert first.read_bytes() == written
    query.epoch([("h", 13)])  # another line
    assert len(query.files()) == 2

    class Changed(Quarantining):
        pass

    query.processor = Changed()
    query.epoch([("i", 3_000)])
    assert len(query.files()) == 3  # the code was changed and fails again


def test_a_timer_for_which_a_key_is_quarantined_is_captured_with_its_rows(captured: Query) -> None:
    query = quarantining(captured)
    query.processor.bad_timers = ("a",)
    query.epoch([("a", 1), ("b", 2)])
    query.epoch([("a", 5), ("b", 1)], now_ms=10 * MINUTE_MS)
    (file,) = query.files()
    with pytest.raises(ProcessorError, match=r"handleExpiredTimer, key \('a',\)"):
        replay(file, query.processor)
    assert replay(file, Quarantining()).output["n"].tolist() == [6, 1_000_002]


def test_a_released_key_that_fails_again_is_captured_with_its_kept_rows(captured: Query) -> None:
    query = quarantining(captured)
    query.epoch([("a", 1), ("a", 13)])
    query.epoch([("a", 2)])
    for file in query.files():
        file.unlink()
    query.epoch([("b", 1)], releases=RELEASES_ALL)
    (file,) = query.files()
    with pytest.raises(ProcessorError, match=r"handleInputRows, key \('a',\).*value 13"):
        replay(file, Quarantining())
    assert replay(file, MendedQuarantining()).output["n"].tolist() == [14, 16]


def test_too_much_of_a_quarantined_key_is_not_captured(
    captured: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query = quarantining(captured, limit_bytes=100)
    query.epoch([("a", number) for number in range(100)])
    assert query.files() == []
    assert "a quarantined key is not captured: it has more than" in caplog.text
