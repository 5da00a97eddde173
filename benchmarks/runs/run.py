"""The measurements of one run of one contender whose whole output was right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.machine.cpu import CpuUse
from benchmarks.runs.case import Figure


class WrongResultError(Exception):
    """A contender's output is wrong."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Spark's report of one epoch."""

    number: int
    started_at: float
    durations_ms: Mapping[str, int]

    @property
    def ms(self) -> int:
        """Trigger to commit."""
        return self.durations_ms["triggerExecution"]


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of the counted part of a run.

    Parameters
    ----------
    rows, seconds
        From the start of the first counted epoch to the commit of the last, gaps included.
    epochs
        The counted ones; none for a program that has none.
    all_rows, cpu
        Rows and CPU time of the whole run, start and warm-up included.
    workers_peak_bytes
        Most memory that the Python workers took together.
    checkpoints
        That a query of this library completed.
    more
        Further figures of this workload, by name.
    """

    rows: int
    seconds: float
    all_rows: int
    epochs: Sequence[Epoch] = ()
    cpu: CpuUse | None = None
    workers_peak_bytes: int | None = None
    checkpoints: int | None = None
    more: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_epochs(cls, epochs: Sequence[Epoch], **others: Any) -> Run:
        """Return the run whose counted epochs these are."""
        last = epochs[-1]
        seconds = last.started_at + last.ms / 1000 - epochs[0].started_at
        return cls(seconds=seconds, epochs=epochs, **others)

    def figure(self, figure: Figure) -> float | None:
        """Return one of the figures that ratios compare, ``None`` if this run does not have it."""
        if figure is Figure.ROWS_PER_SECOND:
            return self.rows / self.seconds
        return 1000 * self.seconds / len(self.epochs) if self.epochs else None

    @property
    def median_epoch_ms(self) -> float | None:
        """Median time from trigger to commit."""
        return median(epoch.ms for epoch in self.epochs) if self.epochs else None

    @property
    def cpu_seconds_per_million_rows(self) -> float | None:
        """CPU time of driver, JVM and workers over the whole run."""
        return None if self.cpu is None else 1e6 * self.cpu.own_seconds / self.all_rows

    @property
    def share_in_triggers(self) -> float | None:
        """Part of the counted time that lies within triggers: close to 1, nothing is hidden."""
        if not self.epochs:
            return None
        return sum(epoch.ms for epoch in self.epochs) / (1000 * self.seconds)

    def median_durations_ms(self) -> dict[str, float]:
        """Return the median of each part of an epoch, as Spark reports it."""
        parts = sorted({part for epoch in self.epochs for part in epoch.durations_ms})
        return {
            part: median(epoch.durations_ms.get(part, 0) for epoch in self.epochs) for part in parts
        }
