"""Contexts that watch the steps of an epoch, and the time of phases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pyspark_ckpt.operator.run import observers
from pyspark_ckpt.operator.run.observers import Laps, Phase, in_phase, observed_by


class Walk:
    """Notes its steps, and when their context begins and ends."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def context(self) -> Iterator[None]:
        self.log.append("begin")
        try:
            yield
        finally:
            self.log.append("end")

    @observed_by(context)
    def step(self, number: int) -> int:
        self.log.append(f"step {number}")
        return number

    @observed_by(context)
    def steps(self, *, last: int) -> Iterator[int]:
        for number in range(last):
            self.log.append(f"step {number}")
            yield number


def test_the_context_of_a_method_ends_with_it() -> None:
    walk = Walk()
    assert walk.step(3) == 3
    assert walk.log == ["begin", "step 3", "end"]


def test_the_context_of_a_method_that_yields_ends_when_nobody_asks_it_any_more() -> None:
    walk = Walk()
    assert list(walk.steps(last=2)) == [0, 1]
    assert walk.log == ["begin", "step 0", "step 1", "end"]
    walk.log.clear()
    steps = iter(walk.steps(last=2))
    assert walk.log == []
    next(steps)
    del steps
    assert walk.log == ["begin", "step 0", "end"]


def test_a_phase_within_another_gives_the_time_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ms = 0

    class Timed:
        def __init__(self) -> None:
            self.laps = Laps()

        @in_phase(Phase.USER)
        def output(self) -> Iterator[None]:
            self.passes(10)
            yield from self.written()
            self.passes(10)

        @in_phase(Phase.WRITE)
        def written(self) -> Iterator[None]:
            self.passes(5)
            yield

        def passes(self, milliseconds: int) -> None:
            nonlocal clock_ms
            clock_ms += milliseconds

    monkeypatch.setattr(observers, "perf_counter_ns", lambda: 1_000_000 * clock_ms)
    timed = Timed()
    timed.passes(1)
    for _ in timed.output():
        timed.passes(2)
    with timed.laps.phase(Phase.USER):
        pass
    took = {phase: timed.laps.milliseconds(phase) for phase in Phase}
    assert took == {Phase.READ: 1, Phase.USER: 20, Phase.WRITE: 7}
