"""The restore plan of a query's operators against a checkpoint or savepoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.operator.schema.verdict import StateOutcome
from pyspark_ckpt.restore.plan import RestorePlan, RestoreRequest, plan_of
from pyspark_ckpt.restore.planned import PlannedState
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.stored.unify import UnifiedStates

_LOST = (StateOutcome.REFUSED.value, StateOutcome.DROPPED.value)
_COUNTED = {
    StateOutcome.REFUSED: "refused",
    StateOutcome.DROPPED: "dropped",
    StateOutcome.EVOLVED: "evolved",
    StateOutcome.MIGRATED: "migrated",
    StateOutcome.KEPT: "kept but not in the program",
}


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A row of a plan; `is_loss` says whether data would be lost, or the query cannot start."""

    planned: PlannedState
    is_loss: bool

    @property
    def outcome(self) -> str:
        """The outcome, as a page says it."""
        if self.planned.outcome == StateOutcome.KEPT.value:
            return "kept, not in the program"
        return self.planned.outcome


def plan_rows(plan: RestorePlan) -> tuple[PlanRow, ...]:
    """Return the rows of a plan."""
    return tuple(
        PlanRow(each, each.outcome in _LOST or bool(each.removed_fields)) for each in plan.states
    )


def plan_summary(rows: Sequence[PlanRow]) -> str:
    """Return a plan in one line: how many rows have which outcome."""
    outcomes = Counter(row.planned.outcome for row in rows)
    parts = [f"{outcomes[each.value]} {text}" for each, text in _COUNTED.items()]
    fields = sum(row.is_loss and row.planned.outcome not in _LOST for row in rows)
    if fields:
        parts.append(f"{fields} with fields that are dropped")
    return ", ".join(parts)


def plan_against(
    wanted: CheckpointMetadata, path: str, *, drops: bool, has_data: bool = True
) -> RestorePlan:
    """Return what a restore from a snapshot would do for the operators of a query.

    `wanted` is a checkpoint of the query, and stands for the operators, states and sources that its
    program had then. If `drops` is false, operators that the query does not have are refused. The
    data files of the snapshot are checked only with `has_data`.
    """
    request = RestoreRequest(
        path=path,
        allow_non_restored_state=drops,
        source_ids=wanted.source_ids or None,
        given_names=wanted.source_names or (),
    )
    return plan_of(
        RestoreSource(path, check_files=has_data),
        StatefulOperators.of_metadata(wanted, _states_of),
        request,
    )


def _states_of(operator: OperatorMetadata) -> tuple[StateDescriptor, ...]:
    return UnifiedStates(operator.uid, operator.handles).states
