"""Timers of many keys come to a processor of Arrow tables in one call for each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import ProcessorError, StateUseError
from pyspark_ckpt.operator.modes.arrow import ArrowInput
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sides import EpochInput
from pyspark_ckpt.operator.run import processing
from pyspark_ckpt.operator.run.processing import EpochProcessing
from tests.unit.operator.run.test_processing import COLUMNS, OUTPUT, Input, frame_of
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs

Fired = tuple[int, list[str | None], list[int | None]]


class Alarms(ckpt.ArrowProcessor):
    """Sets a timer at each row's number, and counts the timers of a key."""

    def __init__(self, also: Callable[[Alarms, pa.Table, int], None] | None = None) -> None:
        self.also = also
        self.fired: list[Fired] = []

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", NUMBER)

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
        self.handle.registerTimers(
            keys.take(rows.column("key_position")), rows.column("n").to_pylist()
        )

    def handleExpiredTimers(
        self, keys: pa.Table, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pa.Table]:
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        before = self.count.getMany(keys).column("n")
        self.fired.append((time_ms, keys.column("k").to_pylist(), before.to_pylist()))
        self.count.updateMany(keys, pa.table({"n": pc.add(pc.fill_null(before, 0), 1)}))
        if self.also is not None:
            self.also(self, keys, time_ms)
        yield keys.append_column("n", pa.array([time_ms] * len(keys)))

    def close(self) -> None:
        pass


class Subtask:
    """Runs epochs of one subtask."""

    def __init__(self, epochs: SubtaskEpochs) -> None:
        self.epochs = epochs

    def run(self, processor: ckpt.ArrowProcessor, rows: Input = ()) -> list[tuple[Any, ...]]:  # type: ignore[assignment]
        """Run an epoch and return the rows that it emitted."""
        epochs = self.epochs
        handle = epochs.begin()
        epochs.leave_key()
        mode = ArrowInput(COLUMNS, OutputRows(OUTPUT, "u"))
        self.run_ = EpochProcessing(
            processor, epochs.table, handle, epochs.clock, mode, COLUMNS.decode_key,
            f"operator 'u', subtask 0, epoch {epochs.number}",
        )  # fmt: skip
        parts = [[frame_of(rows)]] if rows else []
        try:
            batches = list(self.run_.run(lambda: EpochInput(parts), epochs.number))
        except BaseException:
            epochs.drop()
            raise
        epochs.end()
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def subtask(subtask_epochs: SubtaskEpochs) -> Subtask:
    subtask_epochs.set_time(1000)
    return Subtask(subtask_epochs)


ROWS: Input = [("a", 40), ("b", 40), (None, 40), ("c", 30), ("a", 50), ("c", 2000)]


def test_all_keys_of_a_time_come_in_one_call_by_time(subtask: Subtask) -> None:
    processor = Alarms()
    output = subtask.run(processor, ROWS)
    # Keys of one time are in the order of their stored form, which begins with the key group.
    assert processor.fired == [
        (30, ["c"], [None]),
        (40, ["a", "b", None], [None, None, None]),
        (50, ["a"], [1]),
    ]
    assert output == [("c", 30), ("a", 40), ("b", 40), (None, 40), ("a", 50)]
    assert subtask.run_.timers_fired == 5
    processor = Alarms()
    assert subtask.run(processor) == []
    subtask.epochs.set_time(3000)
    assert subtask.run(processor) == [("c", 2000)]
    assert processor.fired == [(2000, ["c"], [1])]


def test_more_timers_than_are_read_together_come_in_several_calls(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing, "TIMERS_AT_ONCE", 2)
    processor = Alarms()
    assert len(subtask.run(processor, ROWS)) == 5
    assert [(time, keys) for time, keys, _ in processor.fired] == [
        (30, ["c"]), (40, ["a"]), (40, ["b", None]), (50, ["a"]),
    ]  # fmt: skip


def test_timers_that_a_call_registers_fire_in_their_time_and_no_sooner(subtask: Subtask) -> None:
    def again(self: Alarms, keys: pa.Table, time_ms: int) -> None:
        if time_ms == 40:
            self.handle.registerTimers(keys, [20] * len(keys))  # due: fires in the next epoch
            self.handle.deleteTimers(keys.slice(0, 1), [50])  # fires all the same, as in PySpark

    processor = Alarms(again)
    subtask.run(processor, ROWS)
    assert [time for time, *_ in processor.fired] == [30, 40, 50]
    after = Alarms()
    subtask.run(after)
    assert after.fired == [(20, ["a", "b", None], [2, 1, 1])]
    last = Alarms()
    subtask.run(last)
    assert last.fired == []


def test_keyed_state_belongs_to_no_single_key_there(subtask: Subtask) -> None:
    def reads(self: Alarms, keys: pa.Table, time_ms: int) -> None:
        with pytest.raises(StateUseError, match="outside a key"):
            self.count.get()

    subtask.run(Alarms(reads), ROWS)


def test_an_error_names_the_step_and_the_keys_are_known_to_a_capture(subtask: Subtask) -> None:
    def fails(self: Alarms, keys: pa.Table, time_ms: int) -> None:
        if time_ms == 40:
            raise RuntimeError("no such luck")

    with pytest.raises(ProcessorError, match=r"handleExpiredTimers.*no such luck") as raised:
        subtask.run(Alarms(fails), ROWS)
    assert "operator 'u', subtask 0" in str(raised.value)
    decoded = [COLUMNS.decode_key(key) for _, key in subtask.run_.timers_under_way]
    assert decoded == [("a",), ("b",), (None,)]


def test_without_the_method_each_timer_has_a_call(subtask: Subtask) -> None:
    class OneByOne(ckpt.ArrowProcessor):
        def __init__(self) -> None:
            self.fired: list[Any] = []

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", NUMBER)

        def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
            Alarms.handleInputArrow(self, keys, rows, timerValues)  # type: ignore[arg-type]

        def close(self) -> None:
            pass

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[pa.Table]:
            assert self.count.get() is None
            self.fired.append((key[0], expiredTimerInfo.getExpiryTimeInMs()))
            yield pa.table({"k": pa.array(list(key), pa.string()), "n": [0]})

    processor = OneByOne()
    assert len(subtask.run(processor, ROWS)) == 5
    assert processor.fired == [("c", 30), ("a", 40), ("b", 40), (None, 40), ("a", 50)]
