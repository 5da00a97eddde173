"""What is at a location that is to be rolled back, and what a rollback does with it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, RestoreError
from pyspark_ckpt.formats.layout import (
    KEPT_BY_ROLLBACK,
    checkpoint_id_of,
    checkpoint_name,
)
from pyspark_ckpt.history.places import after_rollback
from pyspark_ckpt.restarting.stopped import (
    StoppedFacts,
    inspect_stopped,
    why_it_may_run,
    why_it_runs,
)
from pyspark_ckpt.restore.location.swap import Swap
from pyspark_ckpt.restore.missing_input import files_seen, planned_input
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.source_files import files_read
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.open import find_store
from pyspark_ckpt.stores.owner import check_owner
from pyspark_ckpt.stores.place import CheckpointsPlace


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """A rollback as the caller wants it; see :meth:`Location.rollback`."""

    to: str
    given: Storage | None = None
    force: bool = False
    allows_missing_input: bool = False


@dataclass(frozen=True, slots=True)
class RollbackFacts:
    """What is at a location. What comes after a fact that refuses the rollback is left out.

    `is_return` says that the rollback undoes another one. `unusable` is the error of a checkpoint
    that cannot be gone back to.
    """

    stopped: StoppedFacts
    is_return: bool = False
    has_run: bool = True
    source: RestoreSource | None = None
    unusable: CkptError | None = None
    disowned: RestoreError | None = None
    missing_input: CkptError | None = None


@dataclass(frozen=True, slots=True)
class FinishSwap:
    """A rollback or a restart in place is finished first, and the location looked at again.

    The query must give no sign of life before, in the checkpoints directory `silent_at`.
    """

    begun: Swap
    silent_at: Storage | None = None


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
    stopped = inspect_stopped(location, request.given, spark, force=request.force)
    facts, query_id, place = RollbackFacts(stopped), stopped.query_id, stopped.place
    if query_id is None or place is None or stopped.begun is not None:
        return facts
    checkpoints = place.checkpoints(query_id)
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
    stopped = facts.stopped
    begun, query_id, place = stopped.begun, stopped.query_id, stopped.place
    if begun is not None and not stopped.is_untouched:
        return FinishSwap(begun)
    if query_id is None:
        return RefuseRollback(_never_ran(facts))
    error = why_it_runs(stopped)
    if error is None and begun is None:
        error = facts.unusable if facts.has_run else _never_ran(facts)
        error = error or facts.disowned or facts.missing_input
    if error is None and not request.force:
        error = why_it_may_run(stopped)
    if error is not None:
        return RefuseRollback(error)
    assert place is not None  # else its error has refused the rollback
    if begun is not None:  # it may be of long ago
        return FinishSwap(begun, None if request.force else place.checkpoints(query_id))
    return GoBack(query_id, stopped.found_id, place, facts.source)


def _never_ran(facts: RollbackFacts) -> RestoreError:
    return RestoreError(
        f"{facts.stopped.location} has no committed epoch: there is nothing to roll back"
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
            f"checkpoint of the query that ran there ({_names_of_retained(location, checkpoints)})"
        )
    try:
        source = RestoreSource(checkpoints.url_of(to))
    except CheckpointNotFoundError as exc:
        raise CheckpointNotFoundError(
            f"{location.url} has no complete checkpoint {to}: give the name of a retained one "
            f"({_names_of_retained(location, checkpoints)})"
        ) from exc
    if source.metadata.query_id != query_id:
        raise RestoreError(
            f"{source.path} is a checkpoint of query {source.metadata.query_id}, {location.url} "
            f"is of {query_id}: restore it into a fresh checkpointLocation"
        )
    return source


def _names_of_retained(location: Storage, checkpoints: Storage) -> str:
    with closing(find_store(checkpoints)) as store:
        retained = ", ".join(map(checkpoint_name, store.ids()))
    return retained or f"there is none{after_rollback(location.url)}"


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
