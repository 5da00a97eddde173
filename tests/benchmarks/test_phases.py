"""The stopwatch of an epoch's phases, and the calls that it wraps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name

import pytest

from benchmarks.profile_epoch import ProfiledSubtask
from benchmarks.reports import phase_timer
from benchmarks.reports.phase_timer import PhaseTimer
from benchmarks.reports.phases import PHASES, MeasuredSubtask, patch_phases
from benchmarks.runs.not_durable import NotDurableSubtask
from pyspark_ckpt.operator.durable.materialization import Materializer
from pyspark_ckpt.operator.plan import operator as operator_plan
from pyspark_ckpt.operator.run import barrier as epoch_end
from pyspark_ckpt.operator.run import subtask
from pyspark_ckpt.operator.run.subtask import SubtaskFunction


class Clock:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(phase_timer, "perf_counter", clock)
    return clock


def test_inner_phases_do_not_count_for_outer_ones(clock: Clock) -> None:
    timer = PhaseTimer()

    def inner() -> None:
        clock.now += 2

    timed_inner = timer.timed(inner, "inner")

    def outer() -> None:
        clock.now += 1
        timed_inner()
        clock.now += 1

    timer.timed(outer, "outer")()
    clock.now += 100  # outside of all
    assert timer.seconds == {"outer": 2, "inner": 2}


def test_only_the_steps_of_a_generator_count(clock: Clock) -> None:
    timer = PhaseTimer()

    def items() -> Iterator[int]:
        for item in range(3):
            clock.now += 1
            yield item

    for _ in timer.timed(items, "items")():
        clock.now += 10
    assert timer.seconds == {"items": 3}


def test_only_begin_and_end_of_a_context_count(clock: Clock) -> None:
    timer = PhaseTimer()

    @contextmanager
    def opened() -> Iterator[str]:
        clock.now += 1
        yield "it"
        clock.now += 2

    with timer.timed(opened, "open")() as it:
        assert it == "it"
        clock.now += 10
    assert timer.seconds == {"open": 3}


def test_an_error_leaves_its_phase(clock: Clock) -> None:
    timer = PhaseTimer()

    def fails() -> None:
        clock.now += 1
        raise ValueError("in vain")

    with pytest.raises(ValueError, match="in vain"):
        timer.timed(fails, "fails")()
    clock.now += 10
    assert timer.seconds == {"fails": 1}


def functions() -> list[object]:
    return [resolve_name(name) for name in chain.from_iterable(PHASES.values())]


def test_every_phase_is_a_call_of_the_library_and_is_put_back() -> None:
    before = functions()
    with ExitStack() as patches:
        patch_phases(patches, PhaseTimer())
        assert all(one is not other for one, other in zip(before, functions(), strict=True))
    assert functions() == before


def test_what_measurements_replace_is_still_there(tmp_path: Path) -> None:
    arguments = list(signature(SubtaskFunction).parameters)
    for measured, own in (
        (NotDurableSubtask, []),
        (MeasuredSubtask, [tmp_path]),
        (ProfiledSubtask, [tmp_path]),
    ):
        assert issubclass(measured, SubtaskFunction)
        signature(measured).bind(*own, *arguments)  # as the plan of an operator makes it
        # Both hand-overs, in Arrow and as packed rows, come here.
        assert vars(measured)["process"] is not SubtaskFunction.process
    for owner, name in (
        (operator_plan, "SubtaskFunction"),
        (subtask, "open_local_copy"),
        (Materializer, "advance"),
        (epoch_end, "make_segment"),
    ):
        assert callable(getattr(owner, name)), name
