"""Puts a stopped query's own location back to a retained checkpoint; driver only.

The checkpoint's state is staged in a directory inside the location. Then the content of the
location is swapped with the staged content. If that is interrupted, the next call finishes it,
and no query starts there before.
"""

from __future__ import annotations

import secrets
from contextlib import closing, suppress
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CkptError, FencedError, RestoreError
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    KEPT_BY_ROLLBACK,
    SEEDINGS,
    SHADOW,
    checkpoint_name,
)
from pyspark_ckpt.formats.location_files import (
    carry_used_paths,
    read_rolled_back,
    void_after_return,
    void_after_rollback,
    write_place,
)
from pyspark_ckpt.formats.origin import write_origin
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.quarantine.quarantined_keys import KEYS_STATE
from pyspark_ckpt.operator.quarantine.releases import BEFORE_ALL, ReleaseFiles
from pyspark_ckpt.restarting.rollback_decision import (
    GoBack,
    RefuseRollback,
    RollbackRequest,
    decide_rollback,
    inspect_for_rollback,
    is_kept,
)
from pyspark_ckpt.restarting.stopped import check_not_draining, wait_until_silent
from pyspark_ckpt.restarting.turn import end_former_runs, turn_of
from pyspark_ckpt.restore.location.seedings import has_savepoints
from pyspark_ckpt.restore.location.swap import (
    Swap,
    begun_swap,
    finish_swap,
    is_note,
    swap,
)
from pyspark_ckpt.restore.location.way_back import QUERY_ID, query_id_at, readable_query_id
from pyspark_ckpt.restore.plan import RestoreRequest, plan_of
from pyspark_ckpt.restore.seeding import seed, write_query_id
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.session import session_in_use
from pyspark_ckpt.storage.fenced import Lease
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.directory import carry_terms
from pyspark_ckpt.stores.open import find_store
from pyspark_ckpt.stores.owner import check_owner, claim_directory
from pyspark_ckpt.stores.place import CheckpointsPlace, recorded_place

logger = library_logger(__name__)
_STAGED = "_rolling_back-"


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback did; :meth:`Location.rollback` to the name of `kept` undoes it.

    Parameters
    ----------
    location : str
        The query's ``checkpointLocation``.
    to : str
        What it was put back to.
    kept : str
        The directory with what was in the location before.

    Examples
    --------
    >>> ckpt.results.Rollback("/locations/a", "chk-3", "/locations/a/_before_rollback-1").to
    'chk-3'
    """

    location: str
    to: str
    kept: str


def rollback(
    path: str,
    to: str,
    checkpoints_directory: str | None = None,
    *,
    force: bool = False,
    allow_missing_input: bool = False,
    spark: SparkSession | None = None,
) -> Rollback:
    """Put the location of a stopped query back to one of its retained checkpoints."""
    spark = session_in_use("rollback", RestoreError, spark)
    location = open_storage(qualified_path(spark, str(path)), "checkpointLocation")
    given = None
    if checkpoints_directory is not None:
        given = open_storage(qualified_path(spark, str(checkpoints_directory)))
    end_former_runs(location)
    request = RollbackRequest(to, given, force, allow_missing_input)
    with turn_of(location.url):  # a restart in place of this process may be at it
        return _rolled_back(location, request, spark)


def _rolled_back(location: Storage, request: RollbackRequest, spark: SparkSession) -> Rollback:
    while True:
        facts = inspect_for_rollback(location, request, spark)
        decision = decide_rollback(facts, request)
        if isinstance(decision, RefuseRollback):
            raise decision.error
        if isinstance(decision, GoBack):
            return _gone_back(location, decision, request, spark)
        if decision.silent_at is not None:
            wait_until_silent(location, decision.silent_at)
        begun = decision.begun
        if not finish_swap(location, begun):
            continue
        logger.warning("%s: finished the rollback to %s", location.url, begun.to)
        if begun.to == request.to:
            return Rollback(location.url, begun.to, location.url_of(begun.kept))


def _gone_back(
    location: Storage, decision: GoBack, request: RollbackRequest, spark: SparkSession
) -> Rollback:
    place, query_id = decision.place, decision.query_id
    checkpoints = place.checkpoints(query_id)
    if not request.force:
        wait_until_silent(location, checkpoints)
    with closing(find_store(checkpoints)) as store:
        # A start, or another rollback, that comes later claims it too, and this one ends.
        store.claim()
        if begun_swap(location) is not None:
            raise _another_has_begun(location)
        if not request.force:  # a drain that begins after this finds its driver fenced
            check_not_draining(location)
        lease = _Lease(location, store, query_id, decision.found_id)
        _clear_leftovers(location, place.root, lease)
        try:
            wanted = _prepare(spark, place, request.to, query_id, decision.source)
        except Exception:
            lease.check()  # another rollback removes what was staged here as a leftover
            raise
        swap(location, wanted, lease)
    kept = location.url_of(wanted.kept)
    logger.info(
        "%s is rolled back to %s; its earlier content is in %s", location.url, request.to, kept
    )
    return Rollback(location.url, request.to, kept)


def _prepare(
    spark: SparkSession,
    place: CheckpointsPlace,
    to: str,
    query_id: str,
    source: RestoreSource | None,
) -> Swap:
    """Stage what comes in, unless it is in `to`; return the swap that is to be done."""
    location = place.location
    void = read_rolled_back(location)
    token = secrets.token_hex(6)
    if source is None:
        staged = to
        kept = location.child(to)
        _check_has_no_directory(place, kept)
        before = recorded_place(kept) or CheckpointsPlace(kept, place.root)
        if before.root is None:
            carry_terms(place.checkpoints(query_id), before.checkpoints(query_id))
        void = void_after_return(read_rolled_back(kept), _id_of(kept, before.root), void, query_id)
    else:
        staged = f"{_STAGED}{token}"
        try:
            _stage(spark, place, source, location.child(staged))
        except BaseException:
            with suppress(CkptError, OSError):  # the next rollback clears up, too
                _remove_staged(location, place.root, staged)
            raise
        void = void_after_rollback(void, query_id, source.metadata.epoch)
    stays = _stays(place)  # with the directory of the query that was staged
    return Swap(
        to=to,
        kept=f"{KEPT_BY_ROLLBACK}{token}",
        staged=staged,
        outgoing=tuple(
            name for name in location.list() if _is_content(location, name) and name not in stays
        ),
        incoming=tuple(name for name in location.list(staged) if not is_note(name)),
        rolled_back=void,
    )


def _stays(place: CheckpointsPlace) -> set[str]:
    """Return the names in the location that have the checkpoints of the query's settings.

    They are not swapped with the content, because the settings name them.
    """
    inside = place.inside
    if inside is None:
        return set()
    if inside:
        return {inside.partition("/")[0]}
    return {name for name in place.location.list() if QUERY_ID.fullmatch(name)}


def _check_has_no_directory(place: CheckpointsPlace, kept: Storage) -> None:
    """Refuse content that has a directory of the name that the present checkpoints have."""
    twice = sorted(_stays(place).intersection(kept.list()))
    if twice:
        location = place.location
        raise RestoreError(
            f"{location.url}: a rollback has moved a directory of checkpoints to "
            f"{kept.url_of(twice[0])}. Move what is in it to {location.url_of(twice[0])}, remove "
            f"{kept.url_of(twice[0])}, and call rollback again"
        )


def _stage(
    spark: SparkSession, place: CheckpointsPlace, source: RestoreSource, staged: Storage
) -> None:
    """Fill a directory with the location's new content."""
    location, root = place.location, place.root
    checkpoints = place.checkpoints(source.metadata.query_id)
    # Spark's operators are not checked: they are the checkpoint's own, whatever store they use.
    request = RestoreRequest(source.path, given_names=source.metadata.source_names)
    plan = plan_of(source, StatefulOperators.of_metadata(source.metadata), request)
    new_id = write_query_id(staged)
    carry_used_paths(location, staged)
    new_checkpoints = staged.child(CHECKPOINTS_DIRECTORY) if root is None else root.child(new_id)
    if root is not None:
        claim_directory(staged, new_checkpoints, place=location)
    if not write_place(staged, 1, place.record()):
        raise _another_has_begun(location)
    session = own_session(spark, source.plain_conf)
    seed(session, staged, new_checkpoints, new_id, plan, place=location)
    write_origin(new_checkpoints, plan.origin)
    handles = [handle for operator in source.metadata.operators for handle in operator.handles]
    if any(state.name == KEYS_STATE for handle in handles for state in handle.states):
        ReleaseFiles(new_checkpoints).arm(BEFORE_ALL)  # keys of the checkpoint may be quarantined
    # Ids only grow: the newest directory, complete or not, has the highest.
    with closing(find_store(checkpoints)) as store:
        highest = store.last_id()
    new_checkpoints.make_directory(checkpoint_name(highest))
    if root is None:  # else the query's own directory stays where it is
        carry_terms(checkpoints, new_checkpoints)
    logger.info("staged %s in %s", source.path, staged.url)


def _id_of(kept: Storage, root: Storage | None) -> str:
    query_id = query_id_at(kept, root)
    if query_id is None:
        raise RestoreError(f"{kept.url} has no query: give the name of a retained checkpoint")
    return query_id


@dataclass(frozen=True, slots=True)
class _Lease:
    """The right to roll a location back, until another driver claims the query.

    `found_id` is ``None`` if Spark's file with the id was lost or damaged before.
    """

    location: Storage
    store: CompletedCheckpointStore
    query_id: str
    found_id: str | None

    def check(self) -> None:
        """Check that no other driver has claimed the query, and that its content is still there."""
        self.store.check()
        if readable_query_id(self.location) not in (self.query_id, self.found_id):
            raise _another_has_begun(self.location)


def _another_has_begun(location: Storage) -> FencedError:
    return FencedError(
        f"{location.url}: another rollback of this location has begun since. Look at what it did, "
        "and call rollback again if you still need to"
    )


def _clear_leftovers(location: Storage, root: Storage | None, lease: Lease) -> None:
    """Remove what is left of a rollback that ended before its marker was written."""
    # Listed before the look: what a later rollback stages is not in the list.
    for name in [name for name in location.list() if name.startswith(_STAGED)]:
        lease.check()
        _remove_staged(location, root, name)


def _remove_staged(location: Storage, root: Storage | None, name: str) -> None:
    """Remove what was staged for one rollback.

    Outside of the location this is the checkpoints directory of the new query. Only the staged
    directory knows that query's id, so the staged directory is removed last.
    """
    staged = location.child(name)
    never_started = readable_query_id(staged)
    if root is not None and never_started is not None:
        in_use = {query_id_at(location, root)}
        kept = [location.child(name) for name in location.list() if is_kept(name)]
        if never_started not in in_use | {readable_query_id(each) for each in kept}:
            _remove_never_started(root, never_started, staged, location)
    location.delete_directory(name)


def _remove_never_started(root: Storage, query_id: str, staged: Storage, location: Storage) -> None:
    """Remove the checkpoints directory of a query that was staged, unless it has a checkpoint.

    In a copy of a location, the directory may belong to the original, whose query continued.
    """
    if QUERY_ID.fullmatch(query_id) is None:
        return
    try:
        check_owner(staged, root.child(query_id), place=location)
    except RestoreError as exc:
        logger.warning("%s is not deleted: %s", root.url_of(query_id), exc)
        return
    with closing(find_store(root.child(query_id))) as store:
        has_checkpoints = bool(store.ids())
    if has_checkpoints:
        logger.warning("%s is not deleted, because it has checkpoints", root.url_of(query_id))
        return
    root.delete_directory(query_id)


def _is_content(location: Storage, name: str) -> bool:
    """Return whether a name of a location is swapped.

    Its seedings stay: their numbers grow. So do savepoints: they belong to the user, and the
    history and other programs know them by their paths. And so do shadows, which may run on.
    """
    if name.startswith((KEPT_BY_ROLLBACK, _STAGED, SHADOW)) or name == SEEDINGS:
        return False
    return not has_savepoints(location, name)
