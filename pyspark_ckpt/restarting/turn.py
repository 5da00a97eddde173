"""The turn of those who act on one query: a restart in place, a stop, and who waits for them.

Those who start a query at a location, or run its last epochs, take turns by the location.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, ConfigurationError
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import Storage

in_batch_of: ContextVar[str | None] = ContextVar("in_batch_of", default=None)
"""The id of the query whose ``foreachBatch`` function this thread runs."""


_locations: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
_locations_guard = threading.Lock()
"""Guards `_locations`, a lock for each."""


class RunOfProcess(Protocol):
    """A run of a query in this process."""

    def is_at(self, location: str, query_id: str | None) -> bool:
        """Return whether it is a run at a location, or of a query."""

    def runs_elsewhere(self, location: Storage, query_id: str) -> bool:
        """Return whether it is a run of a query, not ended, at another location than this one."""

    def end_if_session_ended(self, *, waits: bool) -> None:
        """Let a run whose Spark session has ended do nothing more; perhaps wait for its end."""


_runs: WeakSet[RunOfProcess] = WeakSet()


def note_run(run: RunOfProcess) -> None:
    """Note a run of this process, for what acts on its location next."""
    with _locations_guard:
        _runs.add(run)


def end_former_runs(location: Storage) -> None:
    """End the runs of this process whose Spark session has ended, before a location changes.

    ``spark.stop()`` leaves Spark's own thread of each query as it is. The thread would begin an
    epoch during a run of the next session, or on files that a rollback replaces. So this function
    waits for the runs at the location.
    """
    with _locations_guard:
        runs = list(_runs)
    if not runs:
        return
    query_id = None
    with suppress(CkptError, OSError):  # whatever comes next says so
        query_id = SparkLog(location).query_id()
    for run in runs:
        run.end_if_session_ended(waits=run.is_at(location.url, query_id))


def runs_at_a_copy(location: Storage, query_id: str) -> bool:
    """Return whether this process runs a query at another location, one of which is a copy.

    A copy has the query's id, by which Spark knows its runs. Spark runs it once at a time.
    """
    with _locations_guard:
        runs = list(_runs)
    return any(run.runs_elsewhere(location, query_id) for run in runs)


def turn_of(location: str) -> threading.Lock:
    """Return the lock under which this process runs something at a location.

    A start holds it until the query runs, and a stop while it runs the last epochs.
    """
    with _locations_guard:
        return _locations.setdefault(location, threading.Lock())


class Turn:
    """Held while a query is restarted in place or stopped; a thread may take it several times.

    A restart and a stop wait for the query's batch, so the batch never waits for them.
    """

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id
        self._lock = threading.RLock()

    @property
    def _is_in_batch(self) -> bool:
        return in_batch_of.get() == self._query_id

    @contextmanager
    def taken(self, call: str) -> Iterator[None]:
        """Have the turn while the context lasts, however long that takes.

        In the query's batch, ConfigurationError is raised.
        """
        if self._is_in_batch:
            raise ConfigurationError(
                f"query {self._query_id}: {call} in the function of foreachBatch would wait for "
                "that function: call it from another thread, and do not wait for it in the function"
            )
        with self._lock:
            yield

    @contextmanager
    def taken_unless_in_batch(self, timeout_s: float | None = None) -> Iterator[None]:
        """Have the turn while the context lasts, but not in the query's batch.

        If `timeout_s` is ``None``, it waits without end. CheckpointAbortedError is raised if it
        takes longer, as in a listener that a restart waits for.
        """
        if self._is_in_batch:
            yield
            return
        if not self.wait(timeout_s):
            raise CheckpointAbortedError(
                f"query {self._query_id} has been restarted or stopped for {timeout_s:g} s: ask "
                "again when that is over",
                AbortReason.EXPIRED,
            )
        try:
            yield
        finally:
            self.leave()

    def wait(self, timeout_s: float | None) -> bool:
        """Take the turn; return whether it was free in time."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0))

    def leave(self) -> None:
        """Give the turn back."""
        self._lock.release()
