"""Runs one attempt to take a savepoint, in a thread that its caller can give up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql.utils import is_remote
from pyspark.util import InheritableThread

from pyspark_ckpt.checkpoint.cleaning import CleaningHold
from pyspark_ckpt.checkpoint.time_limit import expired, in_time
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.spark.jobs import SparkJobs

_LONGEST_GRACE_MS = 30_000
"""Spark jobs are cancelled at the timeout, and may then end by themselves for so long."""


class SavepointAttempt:
    """One attempt to take a savepoint; `triggered_at_ms` is when it was made."""

    def __init__(self, what: str, hold: CleaningHold, timeout_ms: int) -> None:
        self.triggered_at_ms = now_ms()
        self._what = what
        self._hold = hold
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._is_given_up = False
        self._is_recorded = False
        self._held = ExitStack()
        self.jobs: SparkJobs | None = None

    def run(self, work: Callable[[], Savepoint]) -> Savepoint:
        """Return what `work` returns; it has the local properties and tags of this thread.

        ``CheckpointAbortedError`` is raised if `work` hangs. `work` cannot be cancelled, but it
        publishes nothing if it continues later.
        """
        grace_ms = min(self._timeout_ms, _LONGEST_GRACE_MS)
        try:
            return in_time(self._what, self._timeout_ms + grace_ms, work, _thread_class())
        except BaseException:
            self._give_up()
            raise

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep the cleaner away until the context ends or the attempt is given up."""
        with ExitStack() as own:
            own.enter_context(self._hold.held())
            with self._lock:
                if not self._is_given_up:
                    self._held = own.pop_all()
            try:
                yield
            finally:
                self._let_go()

    def check(self) -> None:
        """Check that the savepoint may still be completed."""
        if self._is_given_up:
            raise expired(self._what, self._timeout_ms)

    def is_first_record(self) -> bool:
        """Return true at the first call, so that a failure is recorded once."""
        with self._lock:
            is_first, self._is_recorded = not self._is_recorded, True
            return is_first

    def _give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
        self._let_go()
        if self.jobs is not None:
            with suppress(Exception):  # an application that has ended runs no jobs
                self.jobs.cancel()

    def _let_go(self) -> None:
        with self._lock:
            held = self._held.pop_all()
        held.close()


def _thread_class() -> type[threading.Thread]:
    """Return a thread with the caller's Spark properties, which Spark Connect does not have."""
    return threading.Thread if is_remote() else InheritableThread
