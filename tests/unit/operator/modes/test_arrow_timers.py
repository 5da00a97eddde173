"""All due timers come to a processor of Arrow tables in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import ProcessorError, StateUseError
from pyspark_ckpt.operator.modes.mode import ARROW
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sides import EpochInput
from pyspark_ckpt.operator.run import processing
from pyspark_ckpt.operator.run.processing import EpochProcessing
from tests.unit.operator.run.logged_processor import COLUMNS, OUTPUT, Input, frame_of
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs

Fired = list[tuple[str | None, list[int], int | None]]
"""The keys of a call, the times of the timers of each, and its count before."""


class Alarms(ckpt.ArrowProcessor):
    """Sets a timer at each row's number, and counts the timers of a key."""

    def __init__(self, also: Callable[[Alarms, pa.Table, pa.Table], None] | None = None) -> None:
        self.also = also
        self.calls: list[Fired] = []

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", NUMBER)

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
        self.handle.registerTimers(
            keys.take(rows.column("key_position")), rows.column("n").to_pylist()
        )

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        assert keys.column("key_position").to_pylist() == list(range(len(keys)))
        before = self.count.getMany(keys).column("n")
        times: list[list[int]] = [[] for _ in range(len(keys))]
        for timer in timers.to_pylist():
            times[timer["key_position"]].append(timer["time_ms"])
        names = keys.column("k").to_pylist()
        self.calls.append(list(zip(names, times, before.to_pylist(), strict=True)))
        fired = pa.array(map(len, times), pa.int64())
        self.count.updateMany(keys, pa.table({"n": pc.add(pc.fill_null(before, 0), fired)}))
        if self.also is not None:
            self.also(self, keys, timers)
        its_keys = keys.take(timers.column("key_position"))
        yield its_keys.append_column("n", timers.column("time_ms"))

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
        mode = ARROW.of_operator(COLUMNS, OutputRows(OUTPUT, "u"))
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


def test_all_timers_come_in_one_call(subtask: Subtask) -> None:
    processor = Alarms()
    output = subtask.run(processor, ROWS)
    # By time, and keys of one time in the order of their stored form.
    assert processor.calls == [
        [("c", [30], None), ("a", [40, 50], None), ("b", [40], None), (None, [40], None)]
    ]
    assert output == [("c", 30), ("a", 40), ("a", 50), ("b", 40), (None, 40)]
    assert subtask.run_.timers_fired == 5
    processor = Alarms()
    assert subtask.run(processor) == []
    assert processor.calls == []
    subtask.epochs.set_time(3000)
    assert subtask.run(processor) == [("c", 2000)]
    assert processor.calls == [[("c", [2000], 1)]]


def test_more_timers_than_are_read_together_come_in_several_calls(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing, "TIMERS_AT_ONCE", 2)
    processor = Alarms()
    assert len(subtask.run(processor, ROWS)) == 5
    assert processor.calls == [
        [("c", [30], None), ("a", [40], None)],
        [("b", [40], None), (None, [40], None)],
        [("a", [50], 1)],
    ]


@pytest.mark.parametrize("most", [1, 2, 100])
def test_due_timers_that_a_call_registers_fire_in_the_next_epoch(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Also at the time of a timer that fires, in whichever call."""
    monkeypatch.setattr(processing, "TIMERS_AT_ONCE", most)

    def again(self: Alarms, keys: pa.Table, timers: pa.Table) -> None:
        its_keys = keys.take(timers.column("key_position"))
        its_keys = its_keys.filter(pc.equal(timers.column("time_ms"), 40))
        self.handle.registerTimers(its_keys, [40] * len(its_keys))
        self.handle.registerTimers(its_keys, [20] * len(its_keys))
        of_b = its_keys.filter(pc.equal(its_keys.column("k"), "b"))
        self.handle.deleteTimers(of_b, [20] * len(of_b))

    subtask.run(Alarms(again), ROWS)
    after = Alarms()
    subtask.run(after)
    fired = [(k, times) for call in after.calls for k, times, _ in call]
    if most == 100:
        assert fired == [("a", [20, 40]), (None, [20, 40]), ("b", [40])]
    times_of: dict[str | None, list[int]] = {}
    for k, times in fired:
        times_of.setdefault(k, []).extend(times)
    assert times_of == {"a": [20, 40], None: [20, 40], "b": [40]}
    last = Alarms()
    subtask.run(last)
    assert last.calls == []


def test_a_timer_of_a_later_call_that_is_deleted_fires_all_the_same(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in PySpark, where an earlier timer of the key deletes it."""
    monkeypatch.setattr(processing, "TIMERS_AT_ONCE", 2)

    def delete(self: Alarms, keys: pa.Table, timers: pa.Table) -> None:
        self.handle.deleteTimers(keys, [50] * len(keys))

    processor = Alarms(delete)
    subtask.run(processor, ROWS)
    assert processor.calls[-1] == [("a", [50], 1)]
    after = Alarms()
    subtask.run(after)
    assert after.calls == []


def test_keyed_state_belongs_to_no_single_key_there(subtask: Subtask) -> None:
    def reads(self: Alarms, keys: pa.Table, timers: pa.Table) -> None:
        with pytest.raises(StateUseError, match="outside a key"):
            self.count.get()

    processor = Alarms(reads)
    subtask.run(processor, ROWS)
    assert processor.calls


def test_an_error_names_the_step_and_the_keys_are_known_to_a_capture(subtask: Subtask) -> None:
    def fails(self: Alarms, keys: pa.Table, timers: pa.Table) -> None:
        raise RuntimeError("no such luck")

    with pytest.raises(ProcessorError, match=r"handleExpiredTimers.*no such luck") as raised:
        subtask.run(Alarms(fails), ROWS)
    assert "operator 'u', subtask 0" in str(raised.value)
    decoded = [COLUMNS.decode_key(key) for _, key in subtask.run_.timers_under_way]
    assert decoded == [("c",), ("a",), ("b",), (None,)]


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
