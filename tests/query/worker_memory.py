"""The memory of the Python workers that run a query, measured from outside."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.machine.process_memory import taken_bytes

INTERVAL_S = 0.01
MARK = "PYSPARK_CKPT_TEST"
MIB = 1 << 20


@dataclass
class WorkerMemory:
    """The most memory that any of the watched workers has allocated, native memory included."""

    mark: str
    peak_bytes: int = 0
    _known: dict[int, bool] = field(default_factory=dict)

    @property
    def peak_mib(self) -> float:
        assert self.peak_bytes > 0, "no worker was seen"
        return self.peak_bytes / MIB

    def look(self) -> None:
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):  # noqa: PTH208 (only names)
            if pid not in self._known:
                self._known[pid] = self._is_worker(pid)
            if self._known[pid]:
                self.peak_bytes = max(self.peak_bytes, taken_bytes(pid)[0])

    def _is_worker(self, pid: int) -> bool:
        """Return whether a process has the mark: the daemon or a worker that it has forked."""
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            return False


@contextmanager
def watched_workers(spark: SparkSession) -> Iterator[WorkerMemory]:
    """Give queries that start in this context their own workers, and watch these workers.

    A worker is watched from its start, so before it opens a local copy.
    """
    memory, is_over = WorkerMemory(uuid.uuid4().hex), threading.Event()

    def watch() -> None:
        while not is_over.wait(INTERVAL_S):
            memory.look()

    watcher = threading.Thread(target=watch, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        # Spark shares workers between queries of the same environment.
        patch.setitem(spark.sparkContext.environment, MARK, memory.mark)
        watcher.start()
        try:
            yield memory
        finally:
            is_over.set()
            watcher.join()
