"""What a run's processes take, looked at twice a second through ``/proc``; Linux only."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.machine.cpu import own_processes

FIXED_COMPILER_THREADS = "-XX:-UseDynamicNumberOfCompilerThreads"
"""Option of the JVM: a compiler's thread that ends would take its CPU time with it."""

_PROC = Path("/proc")
_INTERVAL_SECONDS = 0.5
_WORKER = b"pyspark.daemon"
_JVM = "java"
_COMPILERS = ("C1 Compiler", "C2 Compiler")


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU time of this process and of all below it.

    Parameters
    ----------
    work
        Of driver, JVM and workers, without the JVM's compilers.
    compilers
        Of the JVM's threads that compile. How much they compile differs from run to run.
    """

    work: float
    compilers: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `at_s` is in seconds since 1970, `cpu` since the processes began."""

    at_s: float
    cpu: CpuSeconds
    workers_bytes: int


class Samples:
    """Looks at CPU time and at the memory of Spark's Python workers while it is entered.

    Of memory, pages that several processes share count once (proportional set size), mapped files
    that are in memory included.
    """

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="samples", daemon=True)

    def __enter__(self) -> Samples:
        if (_PROC / "self" / "smaps_rollup").is_file():
            self._samples.append(look())
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._samples.append(look())

    def workers_peak_bytes(self, since_s: float) -> int | None:
        """Return the workers' highest memory since a time, ``None`` if there was no look."""
        of_time = (sample.workers_bytes for sample in self._samples if sample.at_s >= since_s)
        return max(of_time, default=None)

    def cpu_between(self, begin_s: float, end_s: float) -> CpuSeconds | None:
        """Return the CPU time from one time to another, ``None`` if there were no looks."""
        return cpu_between(self._samples, begin_s, end_s)

    def _look(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            self._samples.append(look())


def cpu_between(samples: Sequence[Sample], begin_s: float, end_s: float) -> CpuSeconds | None:
    """Return the CPU time between two times; between two looks, it counts as spent evenly."""
    if len(samples) < 2:
        return None
    begin, end = _cpu_at(samples, begin_s), _cpu_at(samples, end_s)
    return CpuSeconds(end.work - begin.work, end.compilers - begin.compilers)


def _cpu_at(samples: Sequence[Sample], at_s: float) -> CpuSeconds:
    after = bisect_left(samples, at_s, key=lambda sample: sample.at_s)
    later = samples[min(max(after, 1), len(samples) - 1)]
    earlier = samples[min(max(after, 1), len(samples) - 1) - 1]
    part = (at_s - earlier.at_s) / (later.at_s - earlier.at_s)
    part = min(max(part, 0.0), 1.0)
    return CpuSeconds(
        earlier.cpu.work + part * (later.cpu.work - earlier.cpu.work),
        earlier.cpu.compilers + part * (later.cpu.compilers - earlier.cpu.compilers),
    )


def look() -> Sample:
    """Read the clocks and the memory of this process and of all below it."""
    at_s = time.time()
    ticks = own_processes()
    second = os.sysconf("SC_CLK_TCK")
    compilers = sum(_compilers_ticks(pid) for pid in ticks) / second
    workers_bytes = sum(_size_bytes(pid) for pid in ticks if _is_worker(pid))
    return Sample(
        at_s, CpuSeconds(sum(ticks.values()) / second - compilers, compilers), workers_bytes
    )


def _compilers_ticks(pid: int) -> int:
    try:
        if (_PROC / str(pid) / "comm").read_text(encoding="utf-8").strip() != _JVM:
            return 0
        return sum(_thread_ticks((_PROC / str(pid) / "task").iterdir()))
    except OSError:
        return 0  # it ended just now


def _thread_ticks(threads: Iterable[Path]) -> Iterable[int]:
    for thread in threads:
        try:
            if not (thread / "comm").read_text(encoding="utf-8").startswith(_COMPILERS):
                continue
            fields = (thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it ended just now
        yield int(fields[11]) + int(fields[12])


def _is_worker(pid: int) -> bool:
    try:
        return _WORKER in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False  # it ended just now


def _size_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
