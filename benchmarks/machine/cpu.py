"""CPU time of this program and of the rest of the machine, from ``/proc``: the noise of a run.

Wall-clock figures of a shared machine mean little without it. CPU seconds of a run depend much less
on other programs, so they check the ratios. Linux only; elsewhere there are no such figures.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LOOK_SECONDS = 5.0
_QUIET_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since the start of the machine or program; ``None`` on systems without ``/proc``."""

    wall: float
    own: float
    busy: float

    @classmethod
    def now(cls) -> CpuTimes | None:
        """Read the clocks of this process with its descendants, and of the whole machine."""
        if not (_PROC / "self" / "stat").is_file():
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        with (_PROC / "stat").open(encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        idle = fields[3] + fields[4]
        return cls(
            time.monotonic(), sum(own_processes().values()) / ticks, (sum(fields) - idle) / ticks
        )


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU used between two readings of the clocks."""

    own_seconds: float
    others_share: float
    """Part of the machine's CPUs that other programs took."""

    @classmethod
    def since(cls, start: CpuTimes | None) -> CpuUse | None:
        """Return what was used since `start`."""
        end = CpuTimes.now()
        if start is None or end is None:
            return None
        own = end.own - start.own
        others = max(0.0, end.busy - start.busy - own)
        return cls(own, others / ((end.wall - start.wall) * (os.cpu_count() or 1)))


def wait_for_quiet(patience_seconds: float) -> None:
    """Wait until other programs leave the machine idle, at most `patience_seconds`."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        start = CpuTimes.now()
        time.sleep(_LOOK_SECONDS)
        use = CpuUse.since(start)
        if use is None or use.others_share < _QUIET_SHARE:
            return


def own_processes() -> dict[int, int]:
    """Return CPU ticks by process id of this process and its descendants, ended ones included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may contain anything.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended just now
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(int(field) for field in fields[11:15])
    return {pid: ticks[pid] for pid in ticks if _is_below(pid, os.getpid(), parents)}


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of one process below this one so far, 0 if there is none."""
    return own_processes().get(pid, 0) / os.sysconf("SC_CLK_TCK")


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor
