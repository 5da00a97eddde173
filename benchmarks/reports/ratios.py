"""Figures over the repetitions: the median of ratios within each repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.runs.alternation import Repetition
from benchmarks.runs.case import Figure, Target
from benchmarks.runs.run import Run

Turn = tuple[str, str]
"""Case and contender."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the repetitions."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        values = (self.median, self.lowest, self.highest)
        middle, low, high = (f"{value:,.{digits}f}" for value in values)
        return f"{middle} ({low} to {high})"

    def as_json(self) -> dict[str, float]:
        values = {"median": self.median, "lowest": self.lowest, "highest": self.highest}
        return {name: round(value, 3) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured."""

    target: Target
    ratio: Spread

    @property
    def is_reached(self) -> bool:
        """Whether the median reaches it."""
        if self.target.at_least:
            return self.ratio.median >= self.target.limit
        return self.ratio.median <= self.target.limit

    def text(self) -> str:
        """Return a line for the report."""
        bound = "at least" if self.target.at_least else "at most"
        return (
            f"{self.target.text}: {self.ratio.text(2)}, target {bound} {self.target.limit:g}: "
            f"{'reached' if self.is_reached else 'NOT reached'}"
        )


class Figures:
    """The figures of all repetitions.

    Parameters
    ----------
    repetitions
        In order, all of the same turns.
    """

    def __init__(self, repetitions: Sequence[Repetition]) -> None:
        self._repetitions = repetitions

    def has(self, turn: Turn) -> bool:
        """Return whether a contender took part."""
        return turn in self._repetitions[0]

    def runs(self, turn: Turn) -> list[Run]:
        """Return a contender's runs."""
        return [runs[turn] for runs in self._repetitions]

    def spread(self, turn: Turn, figure: Callable[[Run], float | None]) -> Spread | None:
        """Return a figure of a contender, ``None`` if it has none."""
        values = [figure(run) for run in self.runs(turn)]
        known = [value for value in values if value is not None]
        return Spread.of(known) if known else None

    def ratio(self, turn: Turn, other: Turn, figure: Figure) -> Spread | None:
        """Return the ratio of two contenders' figures within each repetition."""
        ratios = []
        for ours, theirs in zip(self.runs(turn), self.runs(other), strict=True):
            over, under = ours.figure(figure), theirs.figure(figure)
            if over is None or under is None:
                return None
            ratios.append(over / under)
        return Spread.of(ratios)

    def times_as_fast(self, turn: Turn, other: Turn, figure: Figure) -> Spread | None:
        """Return how many times as fast as another contender one is."""
        if figure is Figure.MS_PER_EPOCH:
            turn, other = other, turn
        return self.ratio(turn, other, figure)

    def verdicts(self, targets: Sequence[Target]) -> list[Verdict]:
        """Return the verdicts on the targets whose contenders took part."""
        verdicts = []
        for target in targets:
            if self.has(target.ours) and self.has(target.other):
                ratio = self.ratio(target.ours, target.other, target.figure)
                if ratio is not None:
                    verdicts.append(Verdict(target, ratio))
        return verdicts
