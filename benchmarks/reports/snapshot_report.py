"""The report on epochs around base snapshots and checkpoints: Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.reports.markdown_table import table

MOST_TIMES_THE_MEDIAN = 1.5
MOST_NEW_BYTES = 0.05
_PARTS = ("open_ms", "process_ms", "barrier_ms")


@dataclass(frozen=True, slots=True)
class ObservedEpoch:
    """One epoch, and what ran at the same time.

    `open_ms`, `process_ms` and `barrier_ms` are those of the slowest subtask.
    """

    number: int
    durations_ms: Mapping[str, int]
    has_snapshot: bool
    has_checkpoint: bool
    open_ms: int
    process_ms: int
    barrier_ms: int

    @property
    def ms(self) -> int:
        """Trigger to commit."""
        return self.durations_ms["triggerExecution"]

    @property
    def beside(self) -> str:
        """What ran at the same time."""
        names = [
            name
            for name, is_so in (
                ("base snapshot", self.has_snapshot),
                ("checkpoint", self.has_checkpoint),
            )
            if is_so
        ]
        return " and ".join(names) or "nothing"


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """The counted epochs of one run.

    Parameters
    ----------
    settings, machine
        What figures depend on.
    epochs
        In order.
    new_shares
        For each checkpoint, the share of bytes that the one before did not have.
    """

    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    epochs: Sequence[ObservedEpoch]
    new_shares: Sequence[float]

    @property
    def median_ms(self) -> float:
        """Median of all epochs."""
        return median(epoch.ms for epoch in self.epochs)

    def worst_ratios(self) -> list[float]:
        """Return the slowest epoch of each stretch with a snapshot, as a ratio to the median."""
        worst: list[int] = []
        is_going_on = False
        for epoch in self.epochs:
            if epoch.has_snapshot:
                worst = (
                    [*worst[:-1], max(worst[-1], epoch.ms)] if is_going_on else [*worst, epoch.ms]
                )
            is_going_on = epoch.has_snapshot
        return [each / self.median_ms for each in worst]

    def markdown(self) -> str:
        """Return the tables."""
        ratios = self.worst_ratios()
        slowest = max(epoch.ms for epoch in self.epochs) / self.median_ms
        lines = ["# Epochs around base snapshots and checkpoints", ""]
        lines += [
            "Settings: "
            + ", ".join(f"{name} {value}" for name, value in self.settings.items())
            + ".",
            "",
            "Machine: "
            + ", ".join(f"{name} {value}" for name, value in self.machine.items())
            + ".",
            "",
            f"- median epoch {self.median_ms:.0f} ms; slowest of all {slowest:.2f} times that",
            f"- slowest epoch beside each snapshot, in medians: {_listed(ratios)}",
            f"- target: at most {MOST_TIMES_THE_MEDIAN}",
            f"- new bytes of each checkpoint, as share: {_listed(self.new_shares, 3)}",
            f"- target: at most {MOST_NEW_BYTES}",
            "",
            *table(self._rows()),
        ]
        return "\n".join([*lines, ""])

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "median_ms": self.median_ms,
            "worst_ratios": self.worst_ratios(),
            "new_shares": list(self.new_shares),
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }

    def _rows(self) -> list[list[str]]:
        rows = [["beside the epoch", "epochs", "median ms", "slowest ms", "in medians", *_PARTS]]
        for beside in sorted({epoch.beside for epoch in self.epochs}):
            found = [epoch for epoch in self.epochs if epoch.beside == beside]
            slowest = max(epoch.ms for epoch in found)
            rows.append(
                [
                    beside,
                    str(len(found)),
                    f"{median(epoch.ms for epoch in found):.0f}",
                    str(slowest),
                    f"{slowest / self.median_ms:.2f}",
                    *(f"{median(getattr(each, name) for each in found):.0f}" for name in _PARTS),
                ]
            )
        return rows


def _listed(numbers: Sequence[float], digits: int = 2) -> str:
    return ", ".join(f"{number:.{digits}f}" for number in numbers) or "none"
