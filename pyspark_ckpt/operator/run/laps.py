"""The time of an epoch's processing by phase, measured per part of the rows, never per row."""

from __future__ import annotations

from enum import IntEnum
from time import perf_counter_ns


class Phase(IntEnum):
    """What a subtask does between the opening of its state and the barrier."""

    READ = 0
    USER = 1
    WRITE = 2


class Laps:
    """A stop watch: the time of a phase ends when another phase begins.

    It begins with :attr:`Phase.READ`, when it is made.
    """

    def __init__(self) -> None:
        self._phase = Phase.READ
        self._took_ns = [0] * len(Phase)
        self._began_ns = perf_counter_ns()

    def begin(self, phase: Phase) -> None:
        """End the phase under way, and begin `phase`."""
        now_ns = perf_counter_ns()
        self._took_ns[self._phase] += now_ns - self._began_ns
        self._phase, self._began_ns = phase, now_ns

    def milliseconds(self, phase: Phase) -> int:
        """Return the time of a phase, without the time since a phase began last."""
        return round(self._took_ns[phase] / 1_000_000)
