"""An epoch of a subtask: steps, keys and timers in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from pyspark_ckpt.errors import StateError, StateValueError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.modes.calls import KeyedPart
from pyspark_ckpt.operator.modes.output import RowsOutput
from pyspark_ckpt.operator.modes.views import RowView
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS, OutputRows
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.run import observers, processing
from pyspark_ckpt.operator.run.observers import Phase
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.operator.time import EpochClock
from tests.unit.operator.run.logged_processor import (
    COLUMNS,
    GROUPS,
    OUTPUT,
    Input,
    Logged,
    Subtask,
    frame_of,
    register,
)
from tests.unit.operator.subtask_epochs import NUMBER


def test_an_epoch_calls_everything_once_and_in_order(subtask: Subtask) -> None:
    processor = Logged(init=lambda self: None)
    rows: Input = [("b", 1), ("a", 2), (None, 3), ("b", 4), ("ab", 5), ("c", 6)]
    output = subtask.run(processor, [[frame_of(rows[:4]), frame_of(rows[4:])]])
    assert processor.log == [
        "init", "restoreState",
        (("ab",), [5]), (("a",), [2]), (("b",), [1, 4]), (("c",), [6]), ((None,), [3]),
        "snapshotState 0", "close",
    ]  # fmt: skip
    assert output == [("ab", 5), ("a", 2), ("b", 5), ("c", 6), (None, 3)]
    assert subtask.run(Logged(), [[frame_of([("b", 10)])]]) == [("b", 15)]


def test_an_epoch_without_rows_runs_all_the_same(subtask: Subtask) -> None:
    processor = Logged()
    assert subtask.run(processor) == []
    assert processor.log == ["init", "restoreState", "snapshotState 0", "close"]


def test_parts_are_processed_one_after_the_other(subtask: Subtask) -> None:
    processor = Logged()
    parts = [[frame_of([("ab", 1), ("a", 2)])], [frame_of([("c", 3)])], [frame_of([(None, 4)])]]
    assert subtask.run(processor, iter(parts)) == [("ab", 1), ("a", 2), ("c", 3), (None, 4)]


def test_spilled_input_gives_the_same_as_input_in_memory(subtask: Subtask, tmp_path: Path) -> None:
    frames = [frame_of([(key, n) for key in GROUPS]) for n in range(20)]
    parts = InputParts(range(32), 1, tmp_path)
    output = subtask.run(Logged(), parts.split(iter(frames)))
    assert output == [(key, sum(range(20))) for key in ("ab", "a", "b", "c", None)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "times"),
    [
        (TimeMode.NONE, (-1, -1)),
        (TimeMode.PROCESSING_TIME, (1000, 700)),
        (TimeMode.EVENT_TIME, (1000, 700)),
    ],
)
def test_the_processor_gets_the_times_of_the_epoch(
    subtask: Subtask, mode: TimeMode, times: tuple[int, int]
) -> None:
    subtask.epochs.clock = EpochClock(mode, 1000, 700)
    processor = Logged()
    subtask.run(processor, [[frame_of([("a", 1)])]])
    assert processor.times == times


def test_the_time_of_an_epoch_is_divided_into_reading_user_code_and_writing(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part takes 7 ms to arrive, each call of a key 100 ms, the end 1 ms."""
    clock_ns = 0

    def passes(milliseconds: int) -> None:
        nonlocal clock_ns
        clock_ns += 1_000_000 * milliseconds

    def parts() -> Iterator[list[pa.RecordBatch]]:
        for rows in ([("a", 1), ("b", 2)], [("c", 3)]):
            passes(7)
            yield [frame_of(rows)]

    class Slow(RowsOutput):
        def take(self) -> pa.RecordBatch:
            passes(20)
            return super().take()

    monkeypatch.setattr(observers, "perf_counter_ns", lambda: clock_ns)
    monkeypatch.setattr(RowView, "new_output", lambda *_: Slow(OutputRows(OUTPUT, "u")))
    subtask.run(Logged(handleInputRows=lambda *_: passes(100), close=lambda _: passes(1)), parts())
    took = {phase: subtask.laps.milliseconds(phase) for phase in Phase}
    assert took == {Phase.READ: 14, Phase.USER: 301, Phase.WRITE: 40}


@pytest.mark.parametrize("drained", [0, 1])
def test_rows_and_output_may_be_lazy(subtask: Subtask, drained: int) -> None:
    class Lazy(Logged):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Any:
            for _ in range(drained):
                self.sum.update((next(rows).n,))
            yield Row(k=key[0], n=drained)
            self.sum.update((99,))

    assert subtask.run(Lazy(), [[frame_of([("a", 1), ("a", 2), ("b", 3)])]]) == [
        ("a", drained), ("b", drained),
    ]  # fmt: skip
    assert subtask.run(Logged(), [[frame_of([("a", 1)])]]) == [("a", 100)]


def test_output_leaves_in_frames_of_bounded_length(subtask: Subtask) -> None:
    each = CHUNK_ROWS // 2 + 1
    processor = Logged(handleInputRows=lambda self, key, rows: (
        Row(n=n, k=key[0]) for n in range(each)
    ))  # fmt: skip
    rows: Input = [(key, 1) for key in GROUPS]
    output = subtask.run(processor, [[frame_of(rows)]])
    assert [len(one) for one in subtask.frames] == [2 * each, 2 * each, each]
    assert output == [(key, n) for key in ("ab", "a", "b", "c", None) for n in range(each)]


def much(self: Logged, key: Any, *_: Any) -> Iterator[Row]:
    """Yield two batches and a row, and note how many batches had left before each row."""
    self.left = []
    for n in range(2 * CHUNK_ROWS + 1):
        self.left.append(len(self.taken))
        yield Row(k=key[0], n=n)


@pytest.mark.slow
@pytest.mark.parametrize("of_timer", [False, True])
def test_what_one_call_yields_leaves_while_it_yields(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch, *, of_timer: bool
) -> None:
    taken: list[int] = []
    take = RowsOutput.take

    def noted(self: RowsOutput) -> pa.RecordBatch:
        taken.append(self.rows)
        return take(self)

    monkeypatch.setattr(RowsOutput, "take", noted)
    steps: dict[str, Any] = {"handleInputRows": much}
    if of_timer:
        subtask.epochs.set_time(1000, TimeMode.PROCESSING_TIME)
        steps = {"handleInputRows": register(900), "handleExpiredTimer": much}
    processor = Logged(**steps)
    processor.taken = taken
    output = subtask.run(processor, [[frame_of([("a", 0), ("b", 0)])]])
    numbers = range(2 * CHUNK_ROWS + 1)
    assert output[2 * of_timer :] == [(key, n) for key in "ab" for n in numbers]
    assert max(taken) <= 2 * CHUNK_ROWS
    assert processor.left[-1] - processor.left[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, 2 * CHUNK_ROWS + 5])
@pytest.mark.parametrize("of_timer", [False, True])
def test_a_row_that_does_not_fit_names_its_key_behind_rows_that_have_left(
    subtask: Subtask, before: int, *, of_timer: bool
) -> None:
    def misfit(_: Logged, key: Any, *__: Any) -> Iterator[Row]:
        rows = {"a": CHUNK_ROWS - 3, "b": before}.get(key[0], 1)
        yield from (Row(k=key[0], n=n) for n in range(rows))
        if key[0] == "b":
            yield Row(k="b", n="no number")

    steps = {"handleInputRows": misfit}
    if of_timer:
        subtask.epochs.set_time(1000, TimeMode.PROCESSING_TIME)
        steps = {"handleInputRows": register(900), "handleExpiredTimer": misfit}
    rows: Input = [("ab", 0), ("a", 0), ("b", 0), ("c", 0)]
    place = "handleExpiredTimer" if of_timer else "handleInputRows"
    with pytest.raises(StateValueError, match=rf"by {place}, key \('b',\)"):
        subtask.run(Logged(**steps), [[frame_of(rows)]])


@pytest.mark.parametrize("mode", [TimeMode.PROCESSING_TIME, TimeMode.EVENT_TIME])
@pytest.mark.parametrize("at_once", [1, 2, 100_000])
def test_timers_fire_after_all_rows_in_the_order_of_time(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch, mode: TimeMode, at_once: int
) -> None:
    monkeypatch.setattr(processing, "TIMERS_AT_ONCE", at_once)
    subtask.epochs.set_time(1000, mode)
    processor = Logged(handleInputRows=register(900, 990, 2000))
    rows: Input = [("c", 0), ("a", 5), ("b", 10)]
    output = subtask.run(processor, [[frame_of(rows[:1])], [frame_of(rows[1:])]])
    assert processor.log[5:-2] == [
        (("c",), "timer 900"), (("a",), "timer 905"), (("b",), "timer 910"),
        (("c",), "timer 990"), (("a",), "timer 995"), (("b",), "timer 1000"),
    ]  # fmt: skip
    assert output[3:] == [("c", -900), ("a", -905), ("b", -910), ("c", -990), ("a", -995),
                          ("b", -1000)]  # fmt: skip
    for time_ms, fired in (
        (2004, [("c", -2000)]),
        (2004, []),
        (9999, [("a", -2005), ("b", -2010)]),
    ):
        subtask.epochs.set_time(time_ms, mode)
        assert subtask.run(Logged()) == fired


def test_timers_of_event_time_look_at_the_watermark_only(subtask: Subtask) -> None:
    subtask.epochs.clock = EpochClock(TimeMode.EVENT_TIME, 10**9, 899)
    assert subtask.run(Logged(handleInputRows=register(900)), [[frame_of([("a", 0)])]]) == [
        ("a", 0)
    ]
    subtask.epochs.clock = EpochClock(TimeMode.EVENT_TIME, 0, 900)
    assert subtask.run(Logged()) == [("a", -900)]


def test_a_timer_has_the_state_of_its_key(subtask: Subtask) -> None:
    def total(self: Logged, key: Any, time_ms: int) -> list[Row]:
        assert list(self.handle.listTimers()) == [time_ms]
        (number,) = self.sum.get()
        self.sum.update((number + 1,))
        return [Row(k=key[0], n=number)]

    subtask.run(Logged(handleInputRows=register(5000)), [[frame_of([("a", 1), ("b", 2)])]])
    subtask.epochs.set_time(9000)
    assert subtask.run(Logged(handleExpiredTimer=total)) == [("a", 1), ("b", 2)]
    assert subtask.run(Logged(), [[frame_of([("a", 0), ("b", 0)])]]) == [("a", 2), ("b", 3)]


def test_what_a_handler_registers_fires_in_a_later_epoch_and_its_own_time_is_lost(
    subtask: Subtask,
) -> None:
    def again(self: Logged, key: Any, time_ms: int) -> None:
        self.handle.registerTimer(time_ms)
        if time_ms == 500:
            self.handle.registerTimer(600)
            self.handle.registerTimer(1500)

    subtask.run(
        Logged(handleInputRows=register(500), handleExpiredTimer=again), [[frame_of([("a", 0)])]]
    )
    assert subtask.run(Logged(handleExpiredTimer=again)) == [("a", -600)]
    assert subtask.run(Logged(handleExpiredTimer=again)) == []
    subtask.epochs.set_time(1500)
    assert subtask.run(Logged(handleExpiredTimer=again)) == [("a", -1500)]
    assert subtask.run(Logged()) == []


def test_without_a_time_mode_nothing_fires(subtask: Subtask) -> None:
    subtask.run(Logged(handleInputRows=register(5000)), [[frame_of([("a", 1)])]])
    subtask.epochs.set_time(9000, TimeMode.NONE)
    assert subtask.run(Logged()) == []
    subtask.epochs.set_time(9000, TimeMode.EVENT_TIME)
    assert subtask.run(Logged()) == [("a", -5001)]


def test_entries_age_by_the_newest_row_of_their_key(subtask: Subtask) -> None:
    class Aged(Logged):
        def init(self, handle: Any) -> None:
            super().init(handle)
            self.sum = handle.getValueState("aged", NUMBER, StateTtlConfig(100, time="event"))

    frames = [frame_of([("a", 1), ("b", 1), (None, 1)], 1000), frame_of([("a", 1)], 1050),
              frame_of([("a", 1), ("c", 1)], 900), frame_of([("ab", 1)], None)]  # fmt: skip
    subtask.epochs.set_time(0, TimeMode.EVENT_TIME)
    subtask.run(Aged(), [list(frames)])
    alive = {}
    for watermark_ms in (99, 100, 999, 1000, 1099, 1100, 1149, 1150):
        subtask.epochs.set_time(watermark_ms, TimeMode.EVENT_TIME)
        handle = subtask.epochs.begin()
        state = handle.getValueState("aged", NUMBER, StateTtlConfig(100, time="event"))
        part = KeyedPart(RowView(), COLUMNS, list(frames))
        subtask.epochs.table.begin_part(part.stored)
        found = []
        for position, (key,) in enumerate(part.keys):
            subtask.epochs.table.enter(position)
            if state.exists():
                found.append(key)
        alive[watermark_ms] = set(found)
        subtask.epochs.drop()
    every, timeless = set(GROUPS), "ab"  # whose time begins with the first watermark
    assert alive == {
        99: every, 100: every, 999: every, 1000: {"a", "b", None, timeless},
        1099: {"a", "b", None, timeless}, 1100: {"a", timeless}, 1149: {"a", timeless},
        1150: {timeless},
    }  # fmt: skip


@pytest.mark.parametrize("step", ["init", "restoreState", "snapshotState", "close"])
def test_keyed_state_is_out_of_reach_outside_keys(subtask: Subtask, step: str) -> None:
    def use(self: Logged, *_: Any) -> None:
        with pytest.raises(StateError, match="outside a key"):
            self.sum.update((1,))

    processor = Logged(**{step: use, "handleInputRows": register(1)})
    assert subtask.run(processor, [[frame_of([("a", 5)])]]) == [("a", 5), ("a", -6)]


def test_raw_state_goes_from_epoch_to_epoch(subtask: Subtask) -> None:
    def count(self: Logged, context: Any) -> None:
        self.seen = [int(stream.read()) for stream in context.getRawOperatorStateInputs()]

    def keep(self: Logged, context: Any) -> None:
        context.getRawOperatorStateOutput().write(b"%d" % (sum(self.seen) + 1))

    for number in range(4):
        processor = Logged(restoreState=count, snapshotState=keep)
        subtask.run(processor)
        assert processor.seen == ([number] if number else [])
