"""What is at a location at which a query is about to start; :func:`inspect` only reads.

What a start does with it is decided by :func:`~pyspark_ckpt.restore.location.decision.decide`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.errors import CkptError, CorruptFileError, IncompatibleStateError, RestoreError
from pyspark_ckpt.formats.handle import newest_initial_time_ms
from pyspark_ckpt.formats.layout import store_note_path
from pyspark_ckpt.formats.location_files import read_place
from pyspark_ckpt.operator.plan.operator import MIN, POLICY
from pyspark_ckpt.restore.location.seedings import is_half_seeded
from pyspark_ckpt.restore.location.sink_path import PathFacts, path_facts, restored_path_facts
from pyspark_ckpt.restore.location.swap import begun_swap
from pyspark_ckpt.restore.location.way_back import (
    damaged_location,
    lost_metadata,
    lost_operator,
    query_id_at,
)
from pyspark_ckpt.restore.operators import check_stored_operators, unread_state
from pyspark_ckpt.restore.plan import RestorePlan, RestoreRequest, plan_of_request
from pyspark_ckpt.spark.damage import Damage, damaged_file, damaged_log, damaged_metadata
from pyspark_ckpt.spark.jobs import JOB_ERRORS
from pyspark_ckpt.spark.log import Sources, SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.sink import FileSinkLog
from pyspark_ckpt.spark.state_files import OUR_NAME, operator_name
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores import place as places
from pyspark_ckpt.stores.owner import check_owner, resolved_path
from pyspark_ckpt.stores.place import (
    CheckpointsPlace,
    NewestCheckpoint,
    newest_checkpoint,
    recorded_place,
)


class Swapping(Enum):
    """A swap of the location's content that has begun and not ended."""

    NONE = "none"
    RESTART = "restart"  # a start finishes it, because no epoch is lost
    ROLLBACK = "rollback"


class Draining(Enum):
    """A drain that has begun and not ended."""

    NONE = "none"
    AT_ITS_END = "at its end"  # no epoch has to run: it has run, or the drain is void
    DUE = "due"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a start wants: its program, its directories, and what it is restored from.

    `option` is the parallelism of the writer's option, and `set_parallelism` that of the session;
    each is ``None`` if it is not set. `parallelism_key` is the setting that decides the latter.
    `policy` is the watermark policy of the session.
    """

    operators: StatefulOperators
    place: CheckpointsPlace
    has_store_elsewhere: bool = False
    sources: Sources = field(default_factory=lambda: Sources(()))
    sink: FileSinkLog | None = None
    restore: RestoreRequest | None = None
    option: int | None = None
    set_parallelism: int | None = None
    parallelism_key: str = ""
    policy: str = MIN


@dataclass(frozen=True, slots=True)
class Content:
    """The newest offsets, by which a location's content is known again.

    Nobody replaces the offsets of an epoch but a swap, and a drain that a start finishes.
    """

    path: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is at a location. What comes after a fact that refuses the start may be left out.

    `damage` is the error of a damaged file of Spark's. A half seeded location has no epochs, so
    `begun` and `committed` are ``None``. `place` is ``None`` if the query has no id, and
    `disowned` the error of a location that does not own its checkpoints. `newest` is looked at if
    epochs may be lost that it has. `output` is ``None`` if there is no file sink, or if nobody sees
    its path.

    `bound` is the parallelism of Spark's next epoch, and `bound_before` that of the epoch before
    it; both are ``None`` in a fresh location. `stored_policy` is the watermark policy of the epoch.

    `plan` is what the query is restored with, if no epoch is committed. `is_plan_inside` says that
    its source lies in the location, which a restore clears. `states` says why the
    state of the newest epoch does not fit; `are_states_known` whether that was looked at, which
    takes a job of Spark.
    """

    location: str
    swapping: Swapping = Swapping.NONE
    content: Content | None = None
    is_half_seeded: bool = False
    draining: Draining = Draining.NONE
    damage: CkptError | None = None
    query_id: str | None = None
    begun: int | None = None
    committed: int | None = None
    place: places.Facts | None = None
    place_number: int = 0
    disowned: RestoreError | None = None
    newest: NewestCheckpoint | None = None
    output: PathFacts | None = None
    bound: int | None = None
    bound_before: int | None = None
    stored_policy: str | None = None
    began_with_initial_state: bool = False
    plan: RestorePlan | None = None
    is_plan_inside: bool = False
    states: Exception | None = None
    are_states_known: bool = False

    @property
    def has_epochs(self) -> bool:
        """Whether an epoch has begun, or is committed."""
        return self.begun is not None or self.committed is not None


def inspect(location: Storage, wanted: Wanted, draining: Draining, spark: SparkSession) -> Facts:
    """Return what is at a location, but for what takes a job of Spark (:func:`with_states`).

    Spark's state store is read if nothing else shows that the checkpoints directory is the
    location's. ``CkptError`` is raised if a file of this library, or what the query is restored
    from, cannot be read.
    """
    facts = Facts(location.url, swapping=_swapping_at(location), draining=draining)
    if facts.swapping is not Swapping.NONE:
        return facts
    log, is_half_seeded_ = SparkLog(location), is_half_seeded(location)
    facts = replace(facts, is_half_seeded=is_half_seeded_)
    if not is_half_seeded_:
        content, damage = content_of(location), _damage(location, wanted, draining)
        facts = replace(facts, content=content, damage=damage)
        if damage is not None:
            return facts
        facts = replace(facts, begun=log.begun_epoch(), committed=log.committed_epoch())
    facts = replace(facts, query_id=log.query_id())
    facts = _with_place(location, wanted, facts, spark)
    if facts.disowned is not None:
        return facts
    if wanted.restore is not None and facts.committed is None:
        return _with_plan(location, wanted, wanted.restore, facts)
    if facts.is_half_seeded:
        return facts
    checkpoints = None if facts.query_id is None else wanted.place.checkpoints(facts.query_id)
    if wanted.sink is not None:
        facts = replace(facts, output=path_facts(location, checkpoints, wanted.sink))
    if facts.begun is not None:
        entry = log.offsets_entry(facts.begun)
        facts = replace(
            facts,
            bound=entry.parallelism,
            bound_before=log.parallelism_before(facts.begun),
            stored_policy=entry.watermark_policy,
        )
        if facts.committed is None and checkpoints is not None:
            has_initial = newest_initial_time_ms(checkpoints) is not None
            facts = replace(facts, began_with_initial_state=has_initial)
    return facts


def content_of(location: Storage) -> Content | None:
    """Return the newest offsets of a location, ``None`` if no epoch has begun."""
    begun = SparkLog(location).begun_epoch()
    if begun is None:
        return None
    path = f"offsets/{begun}"
    return Content(path, location.fingerprint(path))


def bound_parallelism(location: Storage) -> int | None:
    """Return the parallelism of Spark's next epoch, ``None`` in a fresh location.

    Spark takes it from the newest offsets, also of an epoch that was never committed.
    """
    log = SparkLog(location)
    begun = None if is_half_seeded(location) else log.begun_epoch()
    return None if begun is None else log.offsets_entry(begun).parallelism


def _swapping_at(location: Storage) -> Swapping:
    try:
        begun = begun_swap(location)
    except CorruptFileError:  # somebody has to look at it
        return Swapping.ROLLBACK
    if begun is None:
        return Swapping.NONE
    return Swapping.RESTART if begun.restarts else Swapping.ROLLBACK


def _damage(location: Storage, wanted: Wanted, draining: Draining) -> CkptError | None:
    """Return the error of a damaged file that Spark reads before it begins an epoch.

    With another id, sinks would take the location's epochs for those of another query, and the
    query would replace the checkpoints inside, or not find those outside.
    """
    log = SparkLog(location)
    damage = damaged_metadata(log)
    if damage is None and log.query_id() is None:
        damage = lost_metadata(location)
    # At the end of a drain, files of the logs are replaced.
    if damage is None and draining is not Draining.AT_ITS_END:
        damage = damaged_log(log, wanted.sources)
    return None if damage is None else _damaged(location, wanted, damage)


def _damaged(location: Storage, wanted: Wanted, damage: Damage | str) -> CorruptFileError:
    """Return the error of a damaged file; the query's id may be lost, too."""
    checkpoints = None
    with suppress(CkptError, OSError):
        place = recorded_place(location) or wanted.place
        query_id = query_id_at(location, place.root)
        checkpoints = None if query_id is None else place.checkpoints(query_id)
    return damaged_location(location, checkpoints, damage)


def _with_place(location: Storage, wanted: Wanted, facts: Facts, spark: SparkSession) -> Facts:
    """Add where the checkpoints are, whose they are, and whether the location is behind them."""
    query_id = facts.query_id
    if query_id is None:
        return replace(facts, place_number=read_place(RetryingStorage(location))[0])
    checkpoints = wanted.place.checkpoints(query_id)
    try:
        needed = partial(_needed_files, location, wanted, facts.committed, spark)
        place = places.inspect(wanted.place, query_id, needed, has_epochs=facts.has_epochs)
        has_store_elsewhere = wanted.has_store_elsewhere
        if would_be_shared(wanted.place, checkpoints, has_store_elsewhere=has_store_elsewhere):
            check_owner(location, checkpoints)
    except RestoreError as exc:
        return replace(facts, disowned=exc)
    facts = replace(facts, place=place, place_number=place.record_number)
    is_elsewhere = wanted.place.root is not None
    if is_elsewhere or not (facts.has_epochs or facts.is_half_seeded):
        facts = replace(facts, newest=newest_checkpoint(location, checkpoints))
    return facts


def would_be_shared(
    place: CheckpointsPlace, checkpoints: Storage, *, has_store_elsewhere: bool
) -> bool:
    """Return whether copies of a location would share its checkpoints, or their store.

    Both are found by the query's id, which a copy has, too.
    """
    if place.root is not None or has_store_elsewhere:
        return True
    return Claims(RetryingStorage(checkpoints), store_note_path).newest() > 0


def _needed_files(
    location: Storage, wanted: Wanted, epoch: int | None, spark: SparkSession
) -> set[str]:
    """Return the files that the state of the newest committed epoch needs."""
    if epoch is None:
        return set()
    log = SparkLog(location)
    try:
        ours = [each for each in log.operator_ids() if each in wanted.operators.ours]
        _check_ours(location, wanted, ours)
        return {
            file.path
            for operator_id in ours
            for handle in read_handles(spark, log, epoch, operator_id, None)
            for file in handle.files()
        }
    except JOB_ERRORS as exc:
        if isinstance(exc, CkptError):
            raise
        raise _of_state(location, wanted, epoch, exc, spark) from None


def _check_ours(location: Storage, wanted: Wanted, operator_ids: list[int]) -> None:
    """Check that no operator of Spark's own has its state where one of this library has."""
    for operator_id in operator_ids:
        name = operator_name(location, operator_id)
        if name not in (OUR_NAME, None):
            raise IncompatibleStateError(
                f"{location.url} holds the state of Spark's own operator {name}, where the query "
                f"has {wanted.operators.ours[operator_id].uid!r} of this library: start it at a "
                "fresh checkpointLocation, and bring the state with "
                "pyspark_ckpt.location(path).import_checkpoint if it is needed"
            )


def _with_plan(location: Storage, wanted: Wanted, request: RestoreRequest, facts: Facts) -> Facts:
    """Add what the query is to be restored with, and what is at its output path."""
    plan = plan_of_request(request, wanted.operators)
    directory = resolved_path(open_storage(plan.path))
    is_inside = f"{directory}/".startswith(f"{resolved_path(location)}/")
    output = None
    if wanted.sink is not None and not plan.errors:
        output = restored_path_facts(location, plan.epoch, wanted.sink)
    policy = (plan.spark_operators.epoch_conf or {}).get(POLICY)
    return replace(
        facts,
        plan=plan,
        is_plan_inside=is_inside,
        output=output,
        stored_policy=None if policy is None else policy.lower(),
    )


def with_states(location: Storage, wanted: Wanted, facts: Facts, spark: SparkSession) -> Facts:
    """Add whether the state of the newest committed epoch fits; reads Spark's state store."""
    return replace(facts, states=_misfit(location, wanted, facts, spark), are_states_known=True)


def _misfit(
    location: Storage, wanted: Wanted, facts: Facts, spark: SparkSession
) -> Exception | None:
    epoch, query_id = facts.committed, facts.query_id
    if epoch is None or query_id is None:
        return None
    checkpoints = wanted.place.checkpoints(query_id)
    try:
        check_stored_operators(spark, SparkLog(location), epoch, wanted.operators, checkpoints)
    except IncompatibleStateError as exc:
        damage = lost_operator(location, checkpoints)
        return exc if damage is None else _damaged(location, wanted, damage)
    except (CorruptFileError, *JOB_ERRORS) as exc:
        if isinstance(exc, CkptError) and not isinstance(exc, CorruptFileError):
            return exc  # some are PySpark's errors too
        return _of_state(location, wanted, epoch, exc, spark)
    except CkptError as exc:
        return exc
    return None


def _of_state(
    location: Storage, wanted: Wanted, epoch: int, error: Exception, spark: SparkSession
) -> Exception:
    """Return the error of a file for which the state cannot be read, else the one that came."""
    log, parallelisms = SparkLog(location), wanted.operators.parallelisms
    found = damaged_file(log, wanted.sources, parallelisms)
    if found is None and isinstance(error, CorruptFileError):
        return _damaged(location, wanted, str(error))
    found = found or unread_state(spark, log, epoch, parallelisms)
    return error if found is None else _damaged(location, wanted, found)
