"""What a start does at a location: one of :class:`Fresh`, :class:`Continue`, ... by the facts.

:func:`decide` is pure. Nothing else asks again what it has decided; only a driver that takes a
right, such as to fill the location, looks whether the facts have changed since.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark_ckpt.errors import PlanError, RestoreError
from pyspark_ckpt.operator.plan.operator import MIN, POLICY
from pyspark_ckpt.restore.location.facts import Draining, Facts, Swapping, Wanted
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.settings import PARALLELISM
from pyspark_ckpt.stores import place as places
from pyspark_ckpt.stores.place import RUN_AGAIN, behind


@dataclass(frozen=True, slots=True)
class Fresh:
    """The query begins here: restored with a plan, or with its initial states, or empty."""

    plan: RestorePlan | None
    records_place: bool


@dataclass(frozen=True, slots=True)
class Continue:
    """The query continues from the newest committed epoch."""

    records_place: bool


class Half(Enum):
    """What was begun at the location and is finished by a start."""

    RESTART = "a restart in place"
    END_OF_DRAIN = "the end of a drain"
    DRAIN = "a drain"


@dataclass(frozen=True, slots=True)
class Finish:
    """Something was half done: it is finished, and the location is looked at again."""

    what: Half
    records_place: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """The query does not start; the error says why, and what to do. Nothing was changed."""

    error: Exception


Decision = Fresh | Continue | Finish | Refuse


def decide(facts: Facts, wanted: Wanted) -> Decision:
    """Return what a start does.

    The first fact that speaks against the start decides. What is half done is finished once nothing
    that is known by then refuses the start.
    """
    if facts.swapping is Swapping.RESTART:
        return Finish(Half.RESTART)
    error = _cut_short(facts) or facts.damage or facts.disowned
    if error is not None:
        return Refuse(error)
    place = _place(facts)
    error = _moved(place) or _behind(facts, wanted)
    if error is None and facts.plan is None:
        error = _output(facts)
    if error is not None:
        return Refuse(error)
    # A restore clears what is left of a drain, or refuses the location because of it.
    is_filled = facts.plan is None and not facts.is_half_seeded
    if is_filled and facts.draining is Draining.AT_ITS_END:
        return Finish(Half.END_OF_DRAIN, place.is_new)
    error = _parallelism(facts, wanted) or facts.states or _fills(facts, wanted)
    if error is not None:
        return Refuse(error)
    if is_filled and facts.draining is Draining.DUE:
        return Finish(Half.DRAIN, place.is_new)
    error = _policy(facts, wanted)
    if error is not None:
        return Refuse(error)
    if facts.committed is not None:
        return Continue(place.is_new)
    return Fresh(facts.plan, place.is_new)


def needs_states(decision: Decision, facts: Facts) -> bool:
    """Return whether a decision is open until the state of the newest epoch has been read.

    That takes a job of Spark, so it is read once nothing else refuses the start.
    """
    is_drain = isinstance(decision, Finish) and decision.what is Half.DRAIN
    goes_on = isinstance(decision, Continue) or is_drain
    return goes_on and facts.committed is not None and not facts.are_states_known


def _cut_short(facts: Facts) -> Exception | None:
    if facts.swapping is not Swapping.ROLLBACK:
        return None
    return RestoreError(
        f"{facts.location}: a rollback of this location was interrupted; call "
        "pyspark_ckpt.location(path).rollback again, which finishes it"
    )


def _place(facts: Facts) -> places.Decision:
    """Return whether the checkpoints directory is the location's; a new query has none yet."""
    return places.Decision(is_new=True) if facts.place is None else places.decide(facts.place)


def _moved(place: places.Decision) -> Exception | None:
    return None if place.refusal is None else RestoreError(place.refusal)


def _behind(facts: Facts, wanted: Wanted) -> Exception | None:
    """Refuse a location that lacks epochs of its checkpoints.

    Without an epoch, Spark would begin at epoch 0 without state, below the epochs of the
    checkpoints inside. The first two epochs may be missing, because a power loss may have taken
    them; they run again.
    """
    is_elsewhere = wanted.place.root is not None
    run_again = 0 if is_elsewhere else RUN_AGAIN
    return behind(facts.location, facts.committed, facts.newest, run_again)


def _output(facts: Facts) -> Exception | None:
    return None if facts.output is None else facts.output.refusal


def _parallelism(facts: Facts, wanted: Wanted) -> Exception | None:
    """Refuse another parallelism than that of the session, or of the location.

    The writer's option has no effect on a query that is built. Spark may have distributed its state
    to another number of partitions by itself: it moves the rows of its state store by their hash,
    and the handles in them are of subtasks of the old parallelism.
    """
    if facts.bound_before is not None and facts.bound_before != facts.bound:
        return PlanError(
            f"{facts.location}: epoch {facts.begun} is a repartitioning of Spark's state from "
            f"{facts.bound_before} to {facts.bound} partitions, which does not move the state of "
            f"this library. To change the parallelism, {_way_to_another_parallelism(facts)}"
        )
    operators, key, option = wanted.operators.descriptors, wanted.parallelism_key, wanted.option
    session = option or wanted.set_parallelism
    if session is None:  # the number of cores may have changed
        session = operators[0].parallelism
    for operator in operators:
        if operator.parallelism != session:
            if option is not None:
                by = "by default" if wanted.set_parallelism is None else key
                return PlanError(
                    f"operator {operator.uid!r} was built with parallelism {operator.parallelism} "
                    f"({by}): the writer's option {PARALLELISM} = {option} comes too late. Set it "
                    "in the session before key_by"
                )
            return PlanError(
                f"operator {operator.uid!r} was built with {key} = {operator.parallelism}, it "
                f"is {session} now: set it in the session and build the query again"
            )
        if facts.bound is not None and operator.parallelism != facts.bound:
            return PlanError(
                f"operator {operator.uid!r} has parallelism {operator.parallelism} "
                f"({_origin_of_parallelism(wanted)}), the location {facts.location} has "
                f"{facts.bound} since its first epoch or a rescale: set {key} to {facts.bound} "
                "before building the query; or give write_stream a function that builds it, which "
                "is called with the location's parallelism, and call query.rescale(n) once it "
                f"runs; or {_way_to_another_parallelism(facts)}"
            )
    return None


def _origin_of_parallelism(wanted: Wanted) -> str:
    """Return what gave the operators of a program their parallelism."""
    if wanted.set_parallelism is None:
        return f"chosen after the cores, because {wanted.parallelism_key} is not set"
    return wanted.parallelism_key


def _way_to_another_parallelism(facts: Facts) -> str:
    if facts.committed is None:
        return "start it at a fresh checkpointLocation (no epoch is committed here)"
    return (
        "start it at a fresh checkpointLocation with restoreFrom(the newest savepoint or "
        "chk-N of this query), which moves the state to the new parallelism"
    )


def _fills(facts: Facts, wanted: Wanted) -> Exception | None:
    """Refuse to fill a location with something else than what its first epoch needs."""
    if facts.plan is not None:
        return _restores(facts, facts.plan)
    if facts.is_half_seeded:
        return RestoreError(
            f"{facts.location}: a restore into this location has not ended. If no driver is "
            "doing it, start the query with restoreFrom again; to begin without it, give a "
            "fresh checkpointLocation"
        )
    has_initial_state = any(each.initial_state for each in wanted.operators.descriptors)
    if facts.began_with_initial_state and not has_initial_state:
        return RestoreError(
            f"{facts.location}: epoch 0 began with an initialState and is not committed; "
            "build the query with initialState again, or give it a fresh checkpointLocation"
        )
    return None


def _restores(facts: Facts, plan: RestorePlan) -> Exception | None:
    if plan.errors:
        return plan.errors[0]
    if facts.is_plan_inside:
        return RestoreError(
            f"{plan.path} is inside the location {facts.location}, which a restore clears and "
            "fills: move it elsewhere, or give the query a fresh checkpointLocation"
        )
    return _output(facts)


def _policy(facts: Facts, wanted: Wanted) -> Exception | None:
    """Refuse another watermark policy than the one for which the operators were built.

    With the policy ``max`` every row would be late. That of the session counts only if no epoch
    has begun.
    """
    passing = [each.uid for each in wanted.operators.descriptors if each.passes_watermark]
    policy = facts.stored_policy or wanted.policy
    if not passing or policy == MIN:
        return None
    return PlanError(
        f"operator {passing[0]!r} was built with {POLICY}={MIN}, the query would run with "
        f"{policy} at {facts.location}: set it to {policy} and build the query again"
    )
