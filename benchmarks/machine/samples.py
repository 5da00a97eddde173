"""Memory of Spark's Python workers, from ``/proc``; only Linux has such figures."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from benchmarks.machine.cpu import own_processes

_PROC = Path("/proc")
_INTERVAL_SECONDS = 0.5
_WORKER = b"pyspark.daemon"


class WorkersMemory:
    """Reads twice a second, while it is entered, the memory of the workers below this process.

    Pages that several processes share count once (proportional set size), mapped files that are
    in memory included.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="workers-memory", daemon=True)

    def __enter__(self) -> WorkersMemory:
        if (_PROC / "self" / "smaps_rollup").is_file():
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

    def peak_bytes(self, since: float) -> int | None:
        """Return their highest memory since a time, ``None`` if there was no reading."""
        return max((taken for at, taken in self._samples if at >= since), default=None)

    def _look(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            taken = sum(_size_bytes(pid) for pid in own_processes() if _is_worker(pid))
            self._samples.append((time.time(), taken))


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
