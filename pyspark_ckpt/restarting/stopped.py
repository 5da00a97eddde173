"""Whether the query of a location is stopped, and where its checkpoints are.

What changes a location of a stopped query asks this first. A driver writes a note every half
minute. Its clock and that of this host may be apart. So no time in a record counts, only what is
new in the directory while this process waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from pyspark.sql import SparkSession

from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.errors import CkptError, RestoreError
from pyspark_ckpt.formats.layout import DRAIN_MARKER, DRIVERS
from pyspark_ckpt.history.run_log import SILENCE_MS, OpenRuns, RecordedRuns, run_record_kind
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restarting.turn import runs_at_a_copy
from pyspark_ckpt.restore.location.seedings import is_half_seeded
from pyspark_ckpt.restore.location.swap import Swap, begun_swap, is_untouched
from pyspark_ckpt.restore.location.way_back import query_id_at, readable_query_id
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.place import CheckpointsPlace, is_same_place, recorded_place

logger = library_logger(__name__)
POLL_S = 1.0


class Runs(Enum):
    """Where the query of a location runs, as far as a session shows it."""

    NOWHERE = "nowhere"
    HERE = "here"
    ON_SERVER = "on the Spark Connect server"


@dataclass(frozen=True, slots=True)
class StoppedFacts:
    """What shows whether a query is stopped. What comes after a fact that says no is left out.

    `begun` is a swap that was begun and not ended; `is_untouched` says that it has moved nothing.
    `query_id` is found in other files if Spark's own is damaged, `found_id` is what that file says.
    `place` is where the checkpoints are; `misplaced` is the error if that is not known.
    `is_of_query` says that a driver of the query has used the checkpoints directory.
    """

    location: str
    begun: Swap | None = None
    is_untouched: bool = False
    query_id: str | None = None
    found_id: str | None = None
    is_half_seeded: bool = False
    runs: Runs = Runs.NOWHERE
    place: CheckpointsPlace | None = None
    misplaced: RestoreError | None = None
    is_of_query: bool = True
    is_draining: bool = False


def inspect_stopped(
    location: Storage, given: Storage | None, spark: SparkSession, *, force: bool
) -> StoppedFacts:
    """Return what shows whether the query of a location is stopped; nothing stays written.

    `given` is ``spark.ckpt.execution.checkpointing.dir`` as the caller says it. With `force` a
    directory may be gone.
    """
    begun = begun_swap(location)
    facts = StoppedFacts(location.url, begun=begun)
    if begun is not None:
        facts = replace(facts, is_untouched=is_untouched(location, begun))
        if not facts.is_untouched:
            return facts
    # Spark's own files may be damaged or lost: that may be why the location is changed.
    query_id = query_id_at(location, given)
    facts = replace(facts, query_id=query_id, is_half_seeded=is_half_seeded(location))
    if query_id is None or facts.is_half_seeded:
        return facts
    facts = replace(
        facts, found_id=readable_query_id(location), runs=_runs(location, spark, query_id)
    )
    try:
        place = _place(location, given, query_id, force=force)
    except RestoreError as exc:
        return replace(facts, misplaced=exc)
    checkpoints = place.checkpoints(query_id)
    return replace(
        facts,
        place=place,
        # A rollback alone leaves these. It would be no proof that the query is stopped, and to
        # claim the directory would fence nobody.
        is_of_query=any(name != DRIVERS for name in checkpoints.list()),
        is_draining=location.exists(DRAIN_MARKER),
    )


def why_it_runs(facts: StoppedFacts) -> CkptError | None:
    """Return why a query counts as running, or its checkpoints as lost; ``None`` if neither."""
    if facts.is_half_seeded:
        return RestoreError(
            f"{facts.location}: a restore into this location has not ended. If no driver is doing "
            "it, start the query with restoreFrom again"
        )
    if facts.runs is Runs.HERE:
        return RestoreError(f"query {facts.query_id} runs at {facts.location}: stop it first")
    if facts.runs is Runs.ON_SERVER:
        return RestoreError(
            f"query {facts.query_id} runs at {facts.location}, on the Spark Connect server, "
            "perhaps without a client: stop the query that attach() returns for its id"
        )
    return facts.misplaced


def why_it_may_run(facts: StoppedFacts) -> CkptError | None:
    """Return why another application may run or drain the query, ``None`` if nothing shows it."""
    if not facts.is_of_query:
        assert facts.place is not None  # else nobody has looked into it
        assert facts.query_id is not None
        checkpoints = facts.place.checkpoints(facts.query_id)
        return RestoreError(
            f"{facts.location}: nobody knows whether its query runs, because {checkpoints.url} has "
            "no checkpoints of it. If its disk is not mounted, mount it. Give "
            "checkpoints_directory (--checkpoints-directory) if it is elsewhere now. If the "
            "directory is gone and you know that the query is stopped, give force=True (--force)"
        )
    return still_draining(facts.location) if facts.is_draining else None


def still_draining(location: str) -> RestoreError:
    """Return the error of a query that is being drained: its last epoch may run."""
    return RestoreError(
        f"{location}: its query is being drained, or its drain was interrupted. Wait for "
        "the driver that drains it, or start the query, which finishes the drain, and stop it. "
        "If no driver is at it, give force=True (--force)"
    )


def wait_until_silent(location: Storage, checkpoints: Storage) -> None:
    """Return once no other application runs or drains the query, as far as that shows."""
    check_silent(location, checkpoints)
    check_not_draining(location)


def check_not_draining(location: Storage) -> None:
    """Check that no drain of the query was begun."""
    if location.exists(DRAIN_MARKER):
        raise still_draining(location.url)


def _runs(location: Storage, spark: SparkSession, query_id: str) -> Runs:
    session = session_of(spark)
    if session.is_active(query_id):
        return Runs.NOWHERE if runs_at_a_copy(location, query_id) else Runs.HERE
    if session.runs_on_server(query_id):
        return Runs.ON_SERVER
    return Runs.NOWHERE


def _place(
    location: Storage, given: Storage | None, query_id: str, *, force: bool
) -> CheckpointsPlace:
    """Return where the location has its checkpoints, by its record or by what the caller gives."""
    wanted, recorded = CheckpointsPlace(location, given), recorded_place(location)
    if recorded is None:
        return wanted
    there = recorded.checkpoints(query_id).url
    is_gone = not recorded.has_content(query_id)
    if given is None:
        if is_gone and recorded.root is not None and not force:
            raise RestoreError(
                f"{location.url}: its checkpoints are in {there}, which is gone: its disk may not "
                "be mounted, or it was moved or deleted. Mount it or put it back, or give "
                "checkpoints_directory (--checkpoints-directory) if it is elsewhere now. To undo a "
                "rollback without them, if you know that the query is stopped, give force=True "
                "(--force)"
            )
        return recorded
    is_moved = is_gone and wanted.has_content(query_id)
    if is_moved or is_same_place(wanted, recorded, query_id):
        return wanted
    raise RestoreError(
        f"{location.url}: its checkpoints are in {there}, not in "
        f"{wanted.checkpoints(query_id).url}: call rollback without checkpoints_directory "
        "(--checkpoints-directory), it is known"
    )


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
    runs = _recorded_runs(location, checkpoints)
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
        found = _recorded_runs(location, checkpoints)
        new = {run_record_kind(name) for name in set(found.names) - set(runs.names)}
        if new - {"ended"}:
            raise RestoreError(
                f"{location.url}: its query runs, because it has given a sign of life while this "
                f"call waited ({open_runs}). Stop it first"
            )
        if new:
            open_runs = _open_runs(location, found)
        runs = found


def _recorded_runs(location: Storage, checkpoints: Storage) -> RecordedRuns:
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
