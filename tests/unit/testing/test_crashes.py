"""Crashes and lost copies: a test cannot see a difference from a run without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.testing import CrashStep, ProcessorHarness
from state_backends import BACKEND_TYPES
from tests.unit.testing.processors import (
    KEYED_STATES,
    OPERATOR_STATES,
    BatchCount,
    Count,
    Everything,
)

MAX_SEGMENTS = Materialization().max_segments
KEYS = ["ada", "bob", None]
ALL_IN_FILES = {"spark.ckpt.internal.execution.checkpointing.data-inline-threshold": "0b"}
IN_EVERY_EPOCH = [
    step for step in CrashStep if step not in (CrashStep.AFTER_BASE, CrashStep.AFTER_FIRST_KEY)
]


@dataclass(frozen=True)
class Call:
    """One call of the harness, and the faults before it ends."""

    rows: dict[Any, list[Row]]
    time_ms: int | None
    crashes: tuple[CrashStep, ...]
    loses_copy: bool

    def on(self, harness: ProcessorHarness) -> list[Row]:
        if self.time_ms is None:
            return harness.testMany(self.rows)
        return harness.setProcessingTime(self.time_ms)


def calls() -> st.SearchStrategy[list[Call]]:
    rows = st.dictionaries(
        st.sampled_from(KEYS),
        st.lists(st.builds(lambda n: Row(n=n), st.integers(0, 60)), max_size=3),
        max_size=3,
    )
    crashes = st.lists(st.sampled_from(IN_EVERY_EPOCH), max_size=2).map(tuple)
    one = st.tuples(rows, st.none() | st.integers(1, 20), crashes, st.booleans())

    def at_times(drawn: list[Any]) -> list[Call]:
        now, result = 0, []
        for given_rows, step_ms, *wrong in drawn:
            now += step_ms or 0
            result.append(Call(given_rows, None if step_ms is None else now, *wrong))
        return result

    return st.lists(one, min_size=1, max_size=8).map(at_times)


def state_of(harness: ProcessorHarness) -> dict[str, Any]:
    keyed = {(name, key): harness.peek(name, key) for name in KEYED_STATES for key in KEYS}
    timers = {key: harness.peekTimers(key) for key in KEYS}
    return {**keyed, **timers, **{name: harness.peek(name) for name in OPERATOR_STATES}}


def new_harness(**named: Any) -> ProcessorHarness:
    return ProcessorHarness(Everything(), timeMode="ProcessingTime", **named)


class TestHistories:
    @pytest.mark.slow
    @pytest.mark.parametrize("conf", [{}, ALL_IN_FILES], ids=["inline", "in files"])
    @given(history=calls())
    @settings(max_examples=15)
    def test_on_heap(self, conf: dict[str, str], history: list[Call]) -> None:
        self.check(history, conf=conf)

    @given(history=calls())
    @settings(max_examples=5)
    def test_on_rocksdb(self, history: list[Call]) -> None:
        self.check(history, backend="rocksdb", conf=ALL_IN_FILES)

    @pytest.mark.soak
    @pytest.mark.parametrize("backend", BACKEND_TYPES)
    @given(history=calls())
    @settings(max_examples=300)
    def test_for_long(self, backend: str, history: list[Call]) -> None:
        self.check(history, backend=backend, conf=ALL_IN_FILES)

    def check(self, history: list[Call], **named: Any) -> None:
        calm, crashing = new_harness(), new_harness(**named)
        for call in history:
            expected = call.on(calm)
            for step in call.crashes:
                before = crashing.snapshot()
                crashing.crashAt(step)
                with pytest.raises(ckpt.errors.CrashedError, match="crashed"):
                    call.on(crashing)
                assert crashing.snapshot().handle == before.handle
            if call.loses_copy:
                crashing.loseLocalCopy()
            assert call.on(crashing) == expected
        assert state_of(crashing) == state_of(calm)


@pytest.mark.parametrize("step", IN_EVERY_EPOCH)
@pytest.mark.parametrize("backend", BACKEND_TYPES)
def test_a_crash_raises_at_its_step_once(backend: str, step: CrashStep) -> None:
    harness = new_harness(backend=backend)
    harness.test("ada", [Row(n=3)])
    harness.crashAt(step)
    with pytest.raises(
        ckpt.errors.CrashedError, match=f"'harness': crashed {step.value}, as planned"
    ):
        harness.test("ada", [Row(n=4)])
    assert harness.peek("sum", "ada") == (3,)
    assert [row.sum for row in harness.test("ada", [Row(n=4)])] == [7]


def test_what_ran_before_each_step_ran_and_nothing_after_it() -> None:
    """The processor's calls leave a trace outside of the state."""
    expected = {
        CrashStep.BEFORE_INIT: [],
        CrashStep.AFTER_INIT: ["init"],
        CrashStep.AFTER_FIRST_KEY: ["init", "rows"],
        CrashStep.AFTER_ROWS: ["init", "rows", "rows"],
        CrashStep.AFTER_TIMERS: ["init", "rows", "rows", "timer", "timer", "close"],
        CrashStep.BEFORE_SEGMENT: ["init", "rows", "rows", "timer", "timer", "close"],
        CrashStep.AFTER_SEGMENT: ["init", "rows", "rows", "timer", "timer", "close"],
    }
    for step, calls_until in expected.items():
        harness = ProcessorHarness(_Traced(), timeMode="ProcessingTime")
        _TRACE.clear()
        harness.crashAt(step)
        with pytest.raises(ckpt.errors.CrashedError):
            harness.testMany({"ada": [Row()], "bob": [Row()]})
        assert calls_until == _TRACE, step


def test_a_segment_file_is_durable_only_after_its_step() -> None:
    harness = ProcessorHarness(Count(), conf=ALL_IN_FILES)
    for step, files in ((CrashStep.BEFORE_SEGMENT, 0), (CrashStep.AFTER_SEGMENT, 1)):
        harness.crashAt(step)
        with pytest.raises(ckpt.errors.CrashedError):
            harness.test("ada", [Row(n=1)])
        root = harness._subtask.storage.root
        assert len(list(root.rglob("*.chg"))) == files
    assert harness.snapshot().files == {}
    harness.test("ada", [Row(n=1)])
    assert len(harness.snapshot().files) == 1


@pytest.mark.parametrize("backend", BACKEND_TYPES)
def test_a_lost_copy_is_built_from_durable_files(backend: str) -> None:
    harness = ProcessorHarness(Count(), conf=ALL_IN_FILES, backend=backend)
    harness.test("ada", [Row(n=1)])
    assert harness.peek("count", "ada") == (1,)
    (segment,) = harness._subtask.storage.root.rglob("*.chg")
    content = segment.read_bytes()
    segment.unlink()
    assert harness.peek("count", "ada") == (1,), "the copy has it"
    harness.loseLocalCopy()
    with pytest.raises(ckpt.errors.CorruptFileError, match=segment.name):
        harness.peek("count", "ada")
    segment.write_bytes(content)
    assert harness.peek("count", "ada") == (1,)


def test_a_crash_after_a_base_waits_for_an_epoch_that_writes_one() -> None:
    harness = ProcessorHarness(Count())
    harness.crashAt(CrashStep.AFTER_BASE)
    for n in range(MAX_SEGMENTS):
        assert harness.test("ada", [Row(n=1)]) == [Row(key="ada", n=n + 1)]
    with pytest.raises(ckpt.errors.CrashedError, match="base snapshot"):
        harness.test("ada", [Row(n=1)])
    assert harness.snapshot().handle.base is None
    assert harness.test("ada", [Row(n=1)]) == [Row(key="ada", n=MAX_SEGMENTS + 1)]
    assert harness.snapshot().handle.base is not None
    harness.loseLocalCopy()
    assert harness.peek("count", "ada") == (MAX_SEGMENTS + 1,)


def test_a_crash_while_the_clock_moves_leaves_it_where_it_was() -> None:
    harness = new_harness()
    harness.test("ada", [Row(n=4)])
    harness.crashAt(CrashStep.AFTER_TIMERS)
    with pytest.raises(ckpt.errors.CrashedError):
        harness.setProcessingTime(5)
    assert harness.peekTimers("ada") == [4]
    assert [row.n for row in harness.setProcessingTime(5)] == [-4]
    assert harness.peekTimers("ada") == []


def test_without_rows_the_first_timer_is_the_first_key() -> None:
    harness = ProcessorHarness(_Traced(), timeMode="ProcessingTime")
    harness.testMany({"ada": [Row()], "bob": [Row()]})
    _TRACE.clear()
    harness.crashAt(CrashStep.AFTER_FIRST_KEY)
    with pytest.raises(ckpt.errors.CrashedError):
        harness.setProcessingTime(10)
    assert _TRACE == ["init", "timer"]


def test_states_that_the_test_sets_do_not_crash() -> None:
    harness = ProcessorHarness(Count())
    harness.crashAt(CrashStep.AFTER_SEGMENT)
    harness.updateValueState("count", "ada", (3,))
    assert harness.peekValueState("count", "ada") == (3,)
    with pytest.raises(ckpt.errors.CrashedError):
        harness.test("ada", [Row(n=1)])


def test_batches_crash_after_their_first_part() -> None:
    harness = ProcessorHarness(BatchCount())
    frame = pd.DataFrame({"user": ["ada", "bob"], "n": [1, 2]})
    harness.crashAt(CrashStep.AFTER_FIRST_KEY)
    with pytest.raises(ckpt.errors.CrashedError):
        harness.testInBatches(frame, "user")
    output = harness.testInBatches(frame, "user")
    assert dict(zip(output["user"], output["n"], strict=True)) == {"ada": 1, "bob": 2}


_TRACE: list[str] = []


class _Traced(Everything):
    def init(self, handle: Any) -> None:
        self.handle = handle
        _TRACE.append("init")

    def restoreState(self, context: Any) -> None: ...

    def snapshotState(self, context: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        _TRACE.append("rows")
        self.handle.registerTimer(0)
        self.handle.registerTimer(5)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        _TRACE.append("timer")
        return iter(())

    def close(self) -> None:
        _TRACE.append("close")
