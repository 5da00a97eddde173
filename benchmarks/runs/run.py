"""The measurements of one run of one contender whose whole output was right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.machine.cpu import CpuUse
from benchmarks.machine.samples import CpuSeconds
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

    @property
    def ended_at(self) -> float:
        """The commit."""
        return self.started_at + self.ms / 1000


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of the counted part of a run.

    Parameters
    ----------
    rows, seconds
        From the start of the first counted epoch to the commit of the last, gaps included.
    epochs
        The counted ones; none for a program that has none.
    cpu
        CPU time of driver, JVM and workers in that time.
    machine
        What the machine did in the whole run, start and warm-up included.
    workers_peak_bytes
        Most memory that the Python workers took together.
    checkpoints
        That a query of this library completed.
    more
        Further figures of this workload, by name.
    """

    rows: int
    seconds: float
    epochs: Sequence[Epoch] = ()
    cpu: CpuSeconds | None = None
    machine: CpuUse | None = None
    workers_peak_bytes: int | None = None
    checkpoints: int | None = None
    more: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_epochs(cls, epochs: Sequence[Epoch], **others: Any) -> Run:
        """Return the run whose counted epochs these are."""
        seconds = epochs[-1].ended_at - epochs[0].started_at
        return cls(seconds=seconds, epochs=epochs, **others)

    def figure(self, figure: Figure) -> float | None:
        """Return one of the figures that ratios compare, ``None`` if this run does not have it."""
        if figure is Figure.ROWS_PER_SECOND:
            return self.rows / self.seconds
        if figure is Figure.RESTORE_SECONDS:
            return self.more.get(figure.value)
        return 1000 * self.seconds / len(self.epochs) if self.epochs else None

    @property
    def median_epoch_ms(self) -> float | None:
        """Median time from trigger to commit."""
        return median(epoch.ms for epoch in self.epochs) if self.epochs else None

    @property
    def cpu_seconds_per_million_rows(self) -> float | None:
        """CPU time of driver, JVM and workers, without the JVM's compilers."""
        return None if self.cpu is None else 1e6 * self.cpu.work / self.rows

    @property
    def compiler_seconds_per_million_rows(self) -> float | None:
        """CPU time of the JVM's compilers."""
        return None if self.cpu is None else 1e6 * self.cpu.compilers / self.rows

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
