"""Decides what a restore does with each operator of this library: copy, move, new, drop, refuse."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from pyspark_ckpt.errors import CkptError, IncompatibleStateError, PlanError, RestoreError
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OperatorDescriptor
from pyspark_ckpt.operator.rescale.unify import UnifiedStates
from pyspark_ckpt.operator.schema.report import EvolutionReport
from pyspark_ckpt.operator.schema.verdict import Outcome
from pyspark_ckpt.operator.table.catalog import schema_text
from pyspark_ckpt.restore.planned import (
    UNCHANGED,
    WHOLE_OPERATOR,
    CopiedOperator,
    DroppedOperator,
    MovedOperator,
    NewOperator,
    PlannedOperator,
    PlannedPart,
    PlannedState,
    RefusedOperator,
    StateOutcome,
    planned_state,
)
from pyspark_ckpt.restore.states import compare_states, with_other_keys
from pyspark_ckpt.spark.operators import StatefulOperators

_OUTCOMES = {
    Outcome.RESTORED: StateOutcome.RESTORED,
    Outcome.EVOLVED: StateOutcome.MIGRATED,
    Outcome.MIGRATED: StateOutcome.MIGRATED,
    Outcome.NEW: StateOutcome.NEW,
    Outcome.KEPT: StateOutcome.KEPT,
    Outcome.REFUSED: StateOutcome.REFUSED,
}


@dataclass(frozen=True, slots=True)
class OperatorTerms:
    """On which terms operators are restored."""

    path: str
    migrations: Mapping[str, Mapping[str, Migration]]
    backend_type: str | None
    allow_non_restored_state: bool


def plan_operators(
    stored: Collection[OperatorMetadata], query_operators: StatefulOperators, terms: OperatorTerms
) -> tuple[PlannedOperator, ...]:
    """Decide what becomes of each operator: first the query's, then those that it lacks."""
    by_uid = {operator.uid: operator for operator in stored}
    wanted = query_operators.ours
    uids = [operator.uid for operator in wanted.values()]
    found = [
        _planned(by_uid.get(operator.uid), operator_id, operator, terms)
        for operator_id, operator in wanted.items()
    ]
    return (*found, *_unwanted(stored, uids, terms))


def unknown_migrations(uids: Collection[str], wanted: Collection[str]) -> PlannedPart:
    """Refuse migrations of operators that the query does not have."""
    unknown = sorted(set(uids) - set(wanted))
    if not unknown:
        return PlannedPart()
    names = ", ".join(map(repr, unknown))
    error = PlanError(f"migrations are given for operator {names}: the query has none")
    rows = (planned_state(uid, WHOLE_OPERATOR, StateOutcome.REFUSED, str(error)) for uid in unknown)
    return PlannedPart(rows=tuple(rows), errors=(error,))


@dataclass(slots=True)
class _Findings:
    """Rows and errors of one operator, while they are found."""

    uid: str
    rows: list[PlannedState] = field(default_factory=list)
    errors: list[CkptError] = field(default_factory=list)

    def add(
        self,
        state: str,
        outcome: StateOutcome,
        why: str,
        removed_fields: tuple[str, ...] = (),
    ) -> None:
        self.rows.append(planned_state(self.uid, state, outcome, why, removed_fields))

    def refuse(self, error: CkptError) -> None:
        self.add(WHOLE_OPERATOR, StateOutcome.REFUSED, str(error))
        self.errors.append(error)


def _planned(
    stored: OperatorMetadata | None,
    operator_id: int,
    wanted: OperatorDescriptor,
    terms: OperatorTerms,
) -> PlannedOperator:
    """Decide what an operator of the query gets; `stored` has its uid."""
    uid, found = wanted.uid, _Findings(wanted.uid)
    if stored is None:
        why = "nothing is stored under this uid: starts empty"
        if wanted.initial_state is not None:
            why += ", without its initialState, which is for a start without a savepoint"
        found.add(WHOLE_OPERATOR, StateOutcome.NEW, why)
        return NewOperator(uid=uid, rows=tuple(found.rows), operator_id=operator_id, wanted=wanted)
    where = f"{terms.path}, operator {uid!r}"
    migrations = terms.migrations.get(uid, {})
    _find_changes_of_operator(found, where, stored, wanted, terms.backend_type)
    states = _find_changes_of_states(found, where, stored, wanted, migrations)
    rows = tuple(found.rows)
    if found.errors:
        return RefusedOperator(uid=uid, rows=rows, errors=tuple(found.errors))
    if states is None:
        return CopiedOperator(
            uid=uid, rows=rows, operator_id=operator_id, wanted=wanted, handles=stored.handles
        )
    return MovedOperator(
        uid=uid, rows=rows, operator_id=operator_id, wanted=wanted, stored=stored, states=states
    )


def _find_changes_of_operator(
    found: _Findings,
    where: str,
    stored: OperatorMetadata,
    wanted: OperatorDescriptor,
    backend_type: str | None,
) -> None:
    for rule in _RULES:
        why = rule(stored, wanted)
        if why is not None:
            found.refuse(RestoreError(f"{where}: {why}"))
            return
    changes = [
        f"{what} {before} -> {after}"
        for what, before, after in (
            ("parallelism", stored.parallelism, wanted.parallelism),
            ("maxParallelism", stored.max_parallelism, wanted.max_parallelism),
            ("backend", stored.backend, backend_type or stored.backend),
            ("timeMode", stored.time_mode, wanted.time_mode),
        )
        if before != after
    ]
    found.add(WHOLE_OPERATOR, StateOutcome.RESTORED, ", ".join(changes) or UNCHANGED)


def _other_keys(stored: OperatorMetadata, wanted: OperatorDescriptor) -> str | None:
    before, now = schema_text(stored.key_schema), schema_text(wanted.key_schema)
    if before == now:
        return None
    return (
        f"the state is keyed by {before}, the query by {now}: key_by the same columns, or "
        f"{with_other_keys(wanted.uid)} and restore that"
    )


def _timers_of_another_clock(stored: OperatorMetadata, wanted: OperatorDescriptor) -> str | None:
    with_timers = sum(
        handle.timeout_ms is not None and handle.time_mode != wanted.time_mode
        for handle in stored.handles
    )
    if not with_timers:
        return None
    return (
        f"timeMode {stored.time_mode} -> {wanted.time_mode}, and {with_timers} of its subtasks "
        "have timers. Their times mean nothing to another clock. Keep "
        f"timeMode='{stored.time_mode}', or restore a savepoint that has no timers: one taken "
        "after they fired or were deleted, or by stopWithSavepoint(drain=True). Timers of parked "
        "keys fire behind their release only"
    )


_Rule = Callable[[OperatorMetadata, OperatorDescriptor], str | None]
_RULES: tuple[_Rule, ...] = (_other_keys, _timers_of_another_clock)
"""The rules for an operator as a whole; each returns why the restore is refused, or ``None``.

They get the operator as it is stored and as the query has it. The first refusal counts.
"""


def _find_changes_of_states(
    found: _Findings,
    where: str,
    stored: OperatorMetadata,
    wanted: OperatorDescriptor,
    migrations: Mapping[str, Migration],
) -> UnifiedStates | None:
    """Return the states of all new subtasks if the state has to move, ``None`` if it is copied."""
    try:
        report = compare_states(_with(wanted, migrations), stored.handles)
    except PlanError as exc:
        found.refuse(exc)
        return None
    for verdict in report.verdicts:
        why = verdict.why or UNCHANGED
        found.add(verdict.state, _OUTCOMES[verdict.verdict], why, verdict.removed_fields)
    if report.refused:
        found.errors.append(_incompatible(where, report))
    elif _has_to_move(stored, wanted, migrations):
        try:
            return UnifiedStates(wanted.uid, stored.handles, wanted.states, migrations)
        except (IncompatibleStateError, PlanError) as exc:
            found.refuse(exc)
    return None


def _has_to_move(
    stored: OperatorMetadata, wanted: OperatorDescriptor, migrations: Mapping[str, Migration]
) -> bool:
    """Return whether an operator's state needs more than a copy."""
    before = stored.parallelism, stored.max_parallelism
    after = wanted.parallelism, wanted.max_parallelism
    return bool(stored.handles) and (before != after or bool(migrations))


def _unwanted(
    stored: Collection[OperatorMetadata], wanted: Collection[str], terms: OperatorTerms
) -> list[PlannedOperator]:
    """Decide what becomes of the stored operators that the query does not have."""
    unwanted = [operator for operator in stored if operator.uid not in wanted]
    if terms.allow_non_restored_state:
        why = "the query has no operator of this uid"
        return [
            DroppedOperator(uid=each.uid, rows=_unwanted_rows(each, StateOutcome.DROPPED, why))
            for each in unwanted
        ]
    why = (
        "the query has no operator of this uid: rename it with rename_uid, or set "
        "allowNonRestoredState"
    )
    error = RestoreError(
        f"{terms.path} holds state of {sorted(each.uid for each in stored)}, but the query "
        f"has {sorted(wanted)}: give the query's operator the uid that its state has, "
        "rename the stored uid with pyspark_ckpt.rename_uid, or drop that state with "
        "restoreFrom(..., allowNonRestoredState=True)"
    )
    return [
        RefusedOperator(
            uid=each.uid,
            rows=_unwanted_rows(each, StateOutcome.REFUSED, why),
            errors=() if number else (error,),  # it names them all
        )
        for number, each in enumerate(unwanted)
    ]


def _unwanted_rows(
    operator: OperatorMetadata, outcome: StateOutcome, why: str
) -> tuple[PlannedState, ...]:
    names = dict.fromkeys(
        state.name for handle in operator.handles for state in handle.states if state.sweeps is None
    )
    return (
        planned_state(operator.uid, WHOLE_OPERATOR, outcome, why),
        *(planned_state(operator.uid, name, outcome, "with its operator") for name in names),
    )


def _incompatible(where: str, report: EvolutionReport) -> IncompatibleStateError:
    try:
        report.check()
    except IncompatibleStateError as exc:
        return IncompatibleStateError(f"{where}: {exc}")
    raise AssertionError(report)  # called for a report that refuses something


def _with(operator: OperatorDescriptor, migrations: Mapping[str, Migration]) -> OperatorDescriptor:
    """Return an operator with the migrations of a restore besides its own."""
    described = {name: MigrationDescriptor.of(one) for name, one in migrations.items()}
    return msgspec.structs.replace(operator, migrations={**operator.migrations, **described})
