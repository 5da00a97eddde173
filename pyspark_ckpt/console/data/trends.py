"""Whether states grow: their recorded sizes, and which of them grow fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ckpt.history.run_record import CheckpointRecord

_JUDGED_RECORDS = 6
_SAME_SHARE = 0.05
_MATERIAL_SHARE = 0.1
"""A state grows materially if its growth is at least this part of the fastest state's growth."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The recorded sizes of a state: pairs of an epoch and bytes, oldest first.

    A state that is filled and emptied in turn looks as if it grew between two records. So the
    largest sizes of the older and of the newer records are compared.
    """

    name: str
    sizes: tuple[tuple[int, int], ...]

    @property
    def least(self) -> int:
        """The smallest size."""
        return min(size for _, size in self.sizes)

    @property
    def most(self) -> int:
        """The largest size."""
        return max(size for _, size in self.sizes)

    @property
    def bytes_per_epoch(self) -> float | None:
        """By how much the state grows in an epoch, ``None`` if too few sizes are recorded."""
        if len(self.sizes) < _JUDGED_RECORDS:
            return None
        (first, before), (last, now) = self._largest()
        if abs(now - before) <= _SAME_SHARE * max(before, now):
            return 0.0
        return (now - before) / max(last - first, 1)  # a rollback repeats epochs

    @property
    def ratio(self) -> float | None:
        """How many times the largest older size is the largest newer size; ``None`` if unknown."""
        if len(self.sizes) < _JUDGED_RECORDS:
            return None
        (_, before), (_, now) = self._largest()
        return now / before if before else None

    def _largest(self) -> tuple[tuple[int, int], tuple[int, int]]:
        middle = len(self.sizes) // 2
        older, newer = (
            max(half, key=lambda each: each[1])
            for half in (self.sizes[:middle], self.sizes[middle:])
        )
        return older, newer


@dataclass(frozen=True, slots=True)
class Growth:
    """The trends of a query's states, the fastest growing state first."""

    trends: tuple[Trend, ...]

    @property
    def is_known(self) -> bool:
        """Whether enough sizes of any state are recorded to say whether it grows."""
        return any(each.bytes_per_epoch is not None for each in self.trends)

    @property
    def fastest(self) -> Trend | None:
        """The state that grows fastest, ``None`` if no state is known to grow."""
        return self.trends[0] if self.trends and _rate(self.trends[0]) > 0 else None

    def is_material(self, trend: Trend) -> bool:
        """Return whether a state's growth matters beside the growth of the fastest state."""
        fastest = self.fastest
        return fastest is not None and _rate(trend) >= _MATERIAL_SHARE * _rate(fastest)


def operators_now(recorded: Sequence[CheckpointRecord]) -> frozenset[str]:
    """Return the uids of the operators that the newest record has: another program may have others.

    `recorded` must be ordered oldest first.
    """
    newest = next((each.operators for each in reversed(recorded) if each.operators), ())
    return frozenset(operator.uid for operator in newest)


def _states_now(recorded: Sequence[CheckpointRecord]) -> set[tuple[str, str]]:
    """Return the operator and the name of each state that its newest counts have."""
    waiting = set(operators_now(recorded))  # a state is counted some epochs after a start
    found: set[tuple[str, str]] = set()
    for each in reversed(recorded):
        for operator in each.operators:
            if operator.uid in waiting and operator.states is not None:
                waiting.remove(operator.uid)
                found.update((operator.uid, state.name) for state in operator.states)
        if not waiting:
            break
    return found


def growth_of(recorded: Sequence[CheckpointRecord]) -> Growth:
    """Return how the states of a query grow, as checkpoints recorded their sizes.

    A state or operator that was removed or renamed is left out: it grows no more.

    `recorded` must be ordered oldest first.
    """
    now = _states_now(recorded)
    found: dict[str, list[tuple[int, int]]] = {}
    for each in recorded:
        for operator in each.operators:
            for state in operator.states or ():
                if (operator.uid, state.name) not in now:
                    continue
                line = found.setdefault(f"{operator.uid} / {state.name}", [])
                line.append((each.epoch, state.size_bytes))
    trends = [Trend(name, tuple(line)) for name, line in found.items()]
    return Growth(tuple(sorted(trends, key=lambda trend: -_rate(trend))))


def _rate(trend: Trend) -> float:
    return trend.bytes_per_epoch or 0.0
