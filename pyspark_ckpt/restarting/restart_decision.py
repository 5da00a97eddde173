"""What a restart in place does with a running query: refuses it, changes its state, or neither.

:func:`decide_restart` and :func:`decide_change` are pure. The first one is asked before anything is
stopped, with the newest checkpoint; the second one once more with the last epoch, which may have
other state.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    ConfigurationError,
    NotBuiltYetError,
)
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.restore.planned import CopiedOperator

_TO_DO = "take a savepoint with stopWithSavepoint, and restore it into a fresh checkpointLocation"


@dataclass(frozen=True, slots=True)
class RestartFacts:
    """What is known of a query before it is stopped for a restart in place.

    `runs` says whether Spark runs it. `wanted_location` is where its next run would start, and
    `plan` what becomes of the newest checkpoint's state there; both are ``None`` as long as the
    program has not been built, and the plan also if there is no checkpoint to plan with.
    """

    query_id: str
    location: str
    is_temporary: bool = False
    runs: bool = True
    committed: int | None = None
    wanted_location: str | None = None
    plan: RestorePlan | None = None


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The state stays as it is, and the query is only started again."""


@dataclass(frozen=True, slots=True)
class ChangeState:
    """The location gets other state stores, by the plan."""

    plan: RestorePlan


@dataclass(frozen=True, slots=True)
class RefuseRestart:
    """The query runs as before; the error says why, and what to do."""

    error: CkptError


RestartDecision = StartAgain | ChangeState | RefuseRestart


def decide_restart(facts: RestartFacts) -> RestartDecision:
    """Return what a restart does as far as that is known; the first fact against it decides."""
    if facts.is_temporary:
        return RefuseRestart(
            ConfigurationError(
                f"query {facts.query_id} has a temporary location, which is deleted when the query "
                "ends: start it with .option('checkpointLocation', path)"
            )
        )
    if not facts.runs:
        return RefuseRestart(
            CheckpointAbortedError(
                f"query {facts.query_id} has ended: start it again with what the restart was to "
                "change",
                AbortReason.QUERY_ENDED,
            )
        )
    if facts.committed is None:
        return RefuseRestart(
            CheckpointAbortedError(
                f"query {facts.query_id} has no committed epoch yet: restart it after its first one"
            )
        )
    if facts.wanted_location not in (None, facts.location):
        return RefuseRestart(
            ConfigurationError(
                f"the query runs at {facts.location}, not at {facts.wanted_location}: a restart in "
                "place keeps the checkpointLocation"
            )
        )
    return StartAgain() if facts.plan is None else decide_change(facts.plan)


def decide_change(plan: RestorePlan) -> RestartDecision:
    """Return what a plan does with the location of a query that is stopped."""
    if plan.errors:
        return RefuseRestart(plan.errors[0])
    changes = _changes_state(plan)
    if changes and plan.spark_operators.operators:
        return RefuseRestart(
            NotBuiltYetError(
                "a query with Spark's own stateful operators cannot get other subtasks or "
                f"operators in place: {_TO_DO}"
            )
        )
    if _reads_elsewhere(plan):
        return RefuseRestart(
            NotBuiltYetError(
                "a program that reads its sources at other places, or names them otherwise, cannot "
                f"take over in place, because Spark keeps offsets by places or names: {_TO_DO}"
            )
        )
    return ChangeState(plan) if changes else StartAgain()


def _changes_state(plan: RestorePlan) -> bool:
    """Return whether a query with the plan's operators needs other state stores than it has."""
    before = {each.uid: each for each in plan.source.metadata.operators}
    return not all(
        isinstance(each, CopiedOperator) and _is_at(before[each.uid], each)
        for each in plan.operators
    )


def _is_at(stored: OperatorMetadata, planned: CopiedOperator) -> bool:
    """Return whether the location's state stores are what a copied operator needs.

    An operator without handles is always copied, and so is one that gets timers.
    """
    wanted = planned.wanted
    return (
        stored.operator_id == planned.operator_id
        and stored.parallelism == wanted.parallelism
        and stored.time_mode == wanted.time_mode
    )


def _reads_elsewhere(plan: RestorePlan) -> bool:
    """Return whether Spark would take the location's offsets for those of other sources."""
    metadata, sources = plan.source.metadata, plan.sources.sources
    if metadata.source_names or sources.names:
        return {*metadata.source_names} != {*sources.names}
    stored = metadata.source_ids or tuple(range(len(plan.source.offsets)))
    return bool(stored) and stored != sources.ids
