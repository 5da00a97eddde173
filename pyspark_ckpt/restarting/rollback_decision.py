"""What is at a location that is to be rolled back, and what a rollback does with it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, RestoreError
from pyspark_ckpt.formats.layout import (
    DRAIN_MARKER,
    DRIVERS,
    KEPT_BY_ROLLBACK,
    checkpoint_id_of,
    checkpoint_name,
)
from pyspark_ckpt.restore.location.seedings import is_half_seeded
from pyspark_ckpt.restore.location.swap import Swap, begun_swap, is_untouched
from pyspark_ckpt.restore.location.way_back import query_id_at, readable_query_id
from pyspark_ckpt.restore.missing_input import files_seen, planned_input
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.sessions.connect import runs_on_server
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import is_active
from pyspark_ckpt.spark.source_files import files_read
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.open import find_store
from pyspark_ckpt.stores.owner import check_owner
from pyspark_ckpt.stores.place import CheckpointsPlace, is_same_place, recorded_place


class Runs(Enum):
    """Where the query of a location runs, as far as a session shows it."""

    NOWHERE = "nowhere"
    HERE = "here"
    ON_SERVER = "on the Spark Connect server"


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """A rollback as the caller wants it; see :func:`rollback`."""

    to: str
    given: Storage | None = None
    force: bool = False
    allows_missing_input: bool = False


@dataclass(frozen=True, slots=True)
class RollbackFacts:
    """What is at a location. What comes after a fact that refuses the rollback is left out.

    `begun` is a swap that was begun and not ended; `is_untouched` says that it has moved nothing.
    `query_id` is found in other files if Spark's own is damaged, `found_id` is what that file says.
    `place` is where the checkpoints are; `misplaced` is the error if that is not known. `is_return`
    says that the rollback undoes another one. `unusable` is the error of a checkpoint that cannot
    be gone back to. `is_of_query` says that a driver of the query has used the checkpoints
    directory.
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
    is_return: bool = False
    has_run: bool = True
    source: RestoreSource | None = None
    unusable: CkptError | None = None
    disowned: RestoreError | None = None
    missing_input: CkptError | None = None
    is_of_query: bool = True
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class FinishSwap:
    """A rollback or a restart in place is finished first, and the location looked at again.

    With `waits`, the query must give no sign of life before.
    """

    begun: Swap
    waits: bool = False


@dataclass(frozen=True, slots=True)
class GoBack:
    """The location goes back to `source`, or to the content of another rollback if ``None``."""

    query_id: str
    found_id: str | None
    place: CheckpointsPlace
    source: RestoreSource | None


@dataclass(frozen=True, slots=True)
class RefuseRollback:
    """Nothing is changed; the error says why, and what to do."""

    error: CkptError


RollbackDecision = FinishSwap | GoBack | RefuseRollback


def is_kept(name: str) -> bool:
    """Return whether a name in a location has what was there before a rollback."""
    return name.startswith(KEPT_BY_ROLLBACK)


def inspect_for_rollback(
    location: Storage, request: RollbackRequest, spark: SparkSession
) -> RollbackFacts:
    """Return what is at a location; nothing is written that stays."""
    begun = begun_swap(location)
    facts = RollbackFacts(location.url, begun=begun)
    if begun is not None:
        facts = replace(facts, is_untouched=is_untouched(location, begun))
        if not facts.is_untouched:
            return facts
    # Spark's own files may be damaged or lost: that may be why the location is rolled back.
    query_id = query_id_at(location, request.given)
    facts = replace(facts, query_id=query_id, is_half_seeded=is_half_seeded(location))
    if query_id is None or facts.is_half_seeded:
        return facts
    facts = replace(facts, found_id=readable_query_id(location), runs=_runs(spark, query_id))
    try:
        place = _place(location, request, query_id)
    except RestoreError as exc:
        return replace(facts, misplaced=exc)
    checkpoints = place.checkpoints(query_id)
    facts = replace(
        facts,
        place=place,
        # A rollback alone leaves these. It would be no proof that the query is stopped, and to
        # claim the directory would fence nobody.
        is_of_query=any(name != DRIVERS for name in checkpoints.list()),
        is_draining=location.exists(DRAIN_MARKER),
    )
    if begun is not None:
        return facts
    is_return = is_kept(request.to) and location.exists(request.to)
    facts = replace(facts, is_return=is_return)
    if not is_return:
        facts = replace(facts, has_run=_has_run(location, checkpoints))
        try:
            source = _source(location, checkpoints, request.to, query_id)
        except CkptError as exc:
            return replace(facts, unusable=exc)
        facts = replace(facts, source=source)
    if place.root is not None:
        try:
            check_owner(location, checkpoints)
        except RestoreError as exc:
            return replace(facts, disowned=exc)
    return replace(facts, missing_input=_missing_input(location, facts.source, request, spark))


def decide_rollback(facts: RollbackFacts, request: RollbackRequest) -> RollbackDecision:
    """Return what a rollback does; the first fact that speaks against it decides."""
    if facts.begun is not None and not facts.is_untouched:
        return FinishSwap(facts.begun)
    error = _no_query_to_go_back(facts) or _runs_still(facts) or facts.misplaced
    if error is not None:
        return RefuseRollback(error)
    query_id, place = facts.query_id, facts.place
    assert query_id is not None  # else the rollback was refused
    assert place is not None
    if facts.begun is not None:  # it may be of long ago
        error = None if request.force else _not_known_to_be_stopped(facts)
        waits = not request.force
        return FinishSwap(facts.begun, waits) if error is None else RefuseRollback(error)
    error = facts.unusable if facts.has_run else _never_ran(facts)
    error = error or facts.disowned or facts.missing_input
    if error is None and not request.force:
        error = _not_known_to_be_stopped(facts)
    if error is not None:
        return RefuseRollback(error)
    return GoBack(query_id, facts.found_id, place, facts.source)


def _no_query_to_go_back(facts: RollbackFacts) -> CkptError | None:
    if facts.query_id is None:
        return _never_ran(facts)
    if facts.is_half_seeded:
        return RestoreError(
            f"{facts.location}: a restore into this location has not ended. If no driver is doing "
            "it, start the query with restoreFrom again"
        )
    return None


def _never_ran(facts: RollbackFacts) -> RestoreError:
    return RestoreError(f"{facts.location} has no committed epoch: there is nothing to roll back")


def _runs_still(facts: RollbackFacts) -> CkptError | None:
    if facts.runs is Runs.HERE:
        return RestoreError(f"query {facts.query_id} runs at {facts.location}: stop it first")
    if facts.runs is Runs.ON_SERVER:
        return RestoreError(
            f"query {facts.query_id} runs at {facts.location}, on the Spark Connect server, "
            "perhaps without a client: stop the query that attach() returns for its id"
        )
    return None


def _not_known_to_be_stopped(facts: RollbackFacts) -> CkptError | None:
    """Refuse a query that another application may run, or drain."""
    if not facts.is_of_query:
        assert facts.place is not None  # else nobody has looked into it
        assert facts.query_id is not None
        checkpoints = facts.place.checkpoints(facts.query_id)
        return RestoreError(
            f"{facts.location}: nobody knows whether its query runs, because {checkpoints.url} has "
            "no checkpoints of it. If its disk is not mounted, mount it. Give checkpointsDirectory "
            "(--checkpoints-directory) if it is elsewhere now. If the directory is gone and you "
            "know that the query is stopped, give force=True (--force)"
        )
    return still_draining(facts.location) if facts.is_draining else None


def still_draining(location: str) -> RestoreError:
    """Return the error of a query that is being drained: its last epoch may run."""
    return RestoreError(
        f"{location}: its query is being drained, or its drain was interrupted. Wait for "
        "the driver that drains it, or start the query, which finishes the drain, and stop it. "
        "If no driver is at it, give force=True (--force)"
    )


def _runs(spark: SparkSession, query_id: str) -> Runs:
    if is_active(spark, query_id):
        return Runs.HERE
    if is_connect(spark) and runs_on_server(spark, query_id):
        return Runs.ON_SERVER
    return Runs.NOWHERE


def _place(location: Storage, request: RollbackRequest, query_id: str) -> CheckpointsPlace:
    """Return where the location has its checkpoints, by its record or by what the caller gives."""
    wanted, recorded = CheckpointsPlace(location, request.given), recorded_place(location)
    if recorded is None:
        return wanted
    there = recorded.checkpoints(query_id).url
    is_gone = not recorded.has_content(query_id)
    if request.given is None:
        if is_gone and recorded.root is not None and not request.force:
            raise RestoreError(
                f"{location.url}: its checkpoints are in {there}, which is gone: its disk may not "
                "be mounted, or it was moved or deleted. Mount it or put it back, or give "
                "checkpointsDirectory (--checkpoints-directory) if it is elsewhere now. To undo a "
                "rollback without them, if you know that the query is stopped, give force=True "
                "(--force)"
            )
        return recorded
    is_moved = is_gone and wanted.has_content(query_id)
    if is_moved or is_same_place(wanted, recorded, query_id):
        return wanted
    raise RestoreError(
        f"{location.url}: its checkpoints are in {there}, not in "
        f"{wanted.checkpoints(query_id).url}: call rollback without checkpointsDirectory "
        "(--checkpoints-directory), it is known"
    )


def _has_run(location: Storage, checkpoints: Storage) -> bool:
    """Return whether an epoch is committed, or a checkpoint shows it: Spark's logs may be lost."""
    if SparkLog(location).committed_epoch() is not None:
        return True
    with closing(find_store(checkpoints)) as store:
        return bool(store.ids())


def _source(location: Storage, checkpoints: Storage, to: str, query_id: str) -> RestoreSource:
    """Return the checkpoint that is gone back to."""
    if checkpoint_id_of(to) is None:
        raise RestoreError(
            f"{location.url} cannot be rolled back to {to!r}: give the name of a retained "
            f"checkpoint of the query that ran there ({_names_of_retained(checkpoints)})"
        )
    try:
        source = RestoreSource(checkpoints.url_of(to))
    except CheckpointNotFoundError as exc:
        raise CheckpointNotFoundError(
            f"{location.url} has no complete checkpoint {to}: give the name of a retained one "
            f"({_names_of_retained(checkpoints)})"
        ) from exc
    if source.metadata.query_id != query_id:
        raise RestoreError(
            f"{source.path} is a checkpoint of query {source.metadata.query_id}, {location.url} "
            f"is of {query_id}: restore it into a fresh checkpointLocation"
        )
    return source


def _names_of_retained(checkpoints: Storage) -> str:
    with closing(find_store(checkpoints)) as store:
        return ", ".join(map(checkpoint_name, store.ids())) or "there is none"


def _missing_input(
    location: Storage,
    source: RestoreSource | None,
    request: RollbackRequest,
    spark: SparkSession,
) -> CkptError | None:
    """Return the error of input that the void epochs have read and that is gone.

    The logs of the sources in the location have the void epochs. With `allows_missing_input`, the
    rows of missing input are left out.
    """
    if source is not None:
        path, seen = source.path, files_seen(source)
    else:
        kept = location.child(request.to)
        path, seen = kept.url, files_read(kept)
    read, allows = files_read(location), request.allows_missing_input
    return next(iter(planned_input(spark, path, read, seen, allows=allows).errors), None)
