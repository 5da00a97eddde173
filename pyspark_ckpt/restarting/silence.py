"""Refuses to roll back a query that another application may run, by the records of its runs.

A driver writes a note every half minute. Its clock and that of this host may be apart. So no time
in a record counts, only what is new in the directory while this process waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.history.last_run import SILENCE_MS, OpenRuns
from pyspark_ckpt.history.run_log import RecordedRuns
from pyspark_ckpt.history.run_record import run_record_kind
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.open import Storage

POLL_S = 1.0

logger = library_logger(__name__)


def check_silent(
    location: Storage,
    checkpoints: Storage,
    *,
    clock: Callable[[], int] = monotonic_ms,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Return once no other application runs a query, as far as its records say.

    A run without an end may go on. It is silent if it writes nothing for two minutes, for which the
    call waits. A Spark Connect server continues a query whose client has ended, without any sign of
    life.
    """
    runs = _recorded(location, checkpoints)
    began_ms = clock()
    open_runs = _open_runs(location, runs)
    if open_runs.may_run:
        logger.warning(
            "%s: %s, and nothing says that it was stopped: waiting for two minutes whether it "
            "gives a sign of life",
            location.url,
            open_runs,
        )
    while open_runs.may_run and clock() - began_ms <= SILENCE_MS:
        sleep(POLL_S)
        found = _recorded(location, checkpoints)
        new = {run_record_kind(name) for name in set(found.names) - set(runs.names)}
        if new - {"ended"}:
            raise RestoreError(
                f"{location.url}: its query runs, because it has given a sign of life while this "
                f"call waited ({open_runs}). Stop it first"
            )
        if new:
            open_runs = _open_runs(location, found)
        runs = found


def _recorded(location: Storage, checkpoints: Storage) -> RecordedRuns:
    runs = RecordedRuns(checkpoints)
    if runs.problem is not None:
        raise RestoreError(
            f"{location.url}: nobody knows whether its query runs, because the records of its runs "
            f"cannot be listed ({runs.problem}). Try again, or give force=True (--force) if you "
            "know that it is stopped"
        )
    return runs


def _open_runs(location: Storage, runs: RecordedRuns) -> OpenRuns:
    """Return the runs that may go on; refuse one that no sign of life would show."""
    records, notes = runs.starts_and_ends(), runs.notes(1)
    found = OpenRuns.of(records, notes[-1] if notes else None, has_unread=runs.has_unread(records))
    for run in found.started:
        if run.outlives_client:
            raise RestoreError(
                f"query {run.query_id} may run at {location.url}: {run.started_by} started it over "
                "Spark Connect, whose server continues a query when its client ends, and nothing "
                "says that it was stopped. Attach to it in its session, and stop it. If you know "
                "that its server no longer runs it, give force=True (--force)"
            )
    return found
