"""Decides what a restore does with each operator of this library, and whether its states fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.errors import CkptError, IncompatibleStateError, PlanError, RestoreError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor, not_woken, subtasks_not_woken
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OperatorDescriptor
from pyspark_ckpt.operator.schema.report import EvolutionReport, OperatorSchema, compare_operator
from pyspark_ckpt.operator.schema.verdict import StateOutcome, StateSchema
from pyspark_ckpt.operator.table.catalog import KEY_SCHEMA, fixed_parts, schema_text, struct_type
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
    planned_state,
)
from pyspark_ckpt.spark.damage import Damage, unread_file
from pyspark_ckpt.spark.jobs import JOB_ERRORS
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.state_files import OUR_NAME, SCHEMA, STATE, operator_name
from pyspark_ckpt.spark.state_reader import encoded_handles
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.stored.division import shares_of
from pyspark_ckpt.stored.unify import UnifiedStates

_Rule = Callable[[OperatorMetadata, OperatorDescriptor], str | None]
logger = library_logger(__name__)

_NO_SCHEMA = "STDS_FAILED_TO_READ_STATE_SCHEMA"
"""What Spark says if it cannot read the file with the schema of a state."""


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

    def say_of_operator(self, why: str) -> None:
        """Add words to the first row, which is the operator's."""
        self.rows[0] = replace(self.rows[0], why=f"{self.rows[0].why}, {why}")

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
    if found.errors:
        return RefusedOperator(uid=uid, rows=tuple(found.rows), errors=tuple(found.errors))
    if states is None:
        return CopiedOperator(
            uid=uid,
            rows=tuple(found.rows),
            operator_id=operator_id,
            wanted=wanted,
            handles=stored.handles,
        )
    shares = shares_of(stored.handles, wanted, states)
    found.say_of_operator("with a shuffle" if shares is None else "without a shuffle")
    return MovedOperator(
        uid=uid,
        rows=tuple(found.rows),
        operator_id=operator_id,
        wanted=wanted,
        stored=stored,
        states=states,
        shares=shares,
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
            ("max_parallelism", stored.max_parallelism, wanted.max_parallelism),
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
        "after they fired or were deleted, or by stopWithSavepoint(drain=True). Timers of "
        "quarantined keys fire only after their release"
    )


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
        report = compare_states(_with_migrations(wanted, migrations), stored.handles)
    except PlanError as exc:
        found.refuse(exc)
        return None
    for verdict in report.verdicts:
        why = verdict.why or UNCHANGED
        found.add(verdict.state, verdict.verdict, why, verdict.removed_fields)
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
        "rename the stored uid with location(path).rename_uid, or drop that state with "
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


def _with_migrations(
    operator: OperatorDescriptor, migrations: Mapping[str, Migration]
) -> OperatorDescriptor:
    """Return an operator with the migrations of a restore in addition to its own."""
    described = {name: MigrationDescriptor.of(one) for name, one in migrations.items()}
    return msgspec.structs.replace(operator, migrations={**operator.migrations, **described})


def check_states(operator: OperatorDescriptor, handles: Iterable[Handle]) -> EvolutionReport:
    """Check one operator against the handles of its subtasks; on the driver.

    States that are not simply restored are logged.
    """
    report = compare_states(operator, handles)
    report.check()
    if any(row.verdict not in (StateOutcome.RESTORED, StateOutcome.NEW) for row in report.verdicts):
        logger.warning("operator %r starts with changed states\n%s", operator.uid, report.render())
    return report


def compare_states(operator: OperatorDescriptor, handles: Iterable[Handle]) -> EvolutionReport:
    """Return what becomes of each state in the handles of an operator's subtasks; on the driver."""
    stored = {
        OperatorSchema(struct_type(handle.key_schema), _state_schemas(handle.states))
        for handle in handles
    }
    wanted = OperatorSchema(struct_type(operator.key_schema), _state_schemas(operator.states))
    return compare_operator(operator.uid, stored, wanted, _migrations(operator.migrations))


def with_other_keys(uid: str) -> str:
    """Return in words how the state of an operator gets other keys, which no restore gives it."""
    return f"make a savepoint with other keys with ckpt.edit_state(path).rekey({uid!r}, ...)"


def _state_schemas(states: Iterable[StateDescriptor]) -> tuple[StateSchema, ...]:
    return tuple(
        StateSchema(
            name=state.name,
            kind=state.kind,
            value_schema=struct_type(state.value_schema),
            map_key_schema=(
                None if state.map_key_schema is None else struct_type(state.map_key_schema)
            ),
            ttl=None if state.ttl is None else f"{state.ttl.duration_ms} ms {state.ttl.time} time",
            earlier=tuple(map(struct_type, state.earlier_schemas)),
        )
        for state in states
        if state.sweeps is None
    )


def _migrations(described: Mapping[str, MigrationDescriptor]) -> dict[str, Migration]:
    """Return migrations for the report, which looks only at whether there are functions."""
    return {
        name: Migration(
            value=tuple if one.value else None,
            key=tuple if one.key else None,
            renamed_from=one.renamed_from,
        )
        for name, one in described.items()
    }


def check_stored_operators(
    spark: SparkSession,
    log: SparkLog,
    epoch: int,
    operators: StatefulOperators,
    checkpoints: CoordinatorStorage,
) -> None:
    """Check the query's operators and their states against a location that has committed epochs."""

    def parallelism_of(operator_id: int) -> int | None:
        operator = operators.ours.get(operator_id)
        return None if operator is None else operator.parallelism

    _check_names(log, operators)
    root = log.storage.hadoop_url
    stored = {
        operator_id: read_handles(spark, log, epoch, operator_id, parallelism_of(operator_id))
        for operator_id in log.operator_ids()
        if operator_id not in operators.spark_operators
    }
    for operator_id, operator in operators.ours.items():
        handles = stored.pop(operator_id, None)
        _check_handles(root, operator, handles)
        found = checkpoints, operator.uid, operator.parallelism, handles or []
        if missing := subtasks_not_woken(*found):
            raise RestoreError(f"{root}: {not_woken(operator.uid, missing)}")
    if stored:
        uids = sorted({handle.uid for handles in stored.values() for handle in handles})
        wanted = [operator.uid for operator in operators.descriptors]
        raise IncompatibleStateError(
            f"{root} holds the state of operator {', '.join(map(repr, uids))}, which the query "
            f"does not have (its uids are {', '.join(map(repr, wanted))}): add it again, or start "
            "the query at a new checkpointLocation"
        )


def unread_state(
    spark: SparkSession, log: SparkLog, epoch: int, parallelisms: Mapping[int, int | None]
) -> Damage | None:
    """Return the partition whose state Spark cannot read, ``None`` if its storage may be away.

    `parallelisms` has ``None`` for Spark's own operators, which are not read.
    """
    location = log.storage.hadoop_url
    for operator_id, partitions in parallelisms.items():
        for partition in range(partitions or 0):
            path = f"{STATE}/{operator_id}/{partition}"
            try:
                encoded_handles(spark, location, epoch, operator_id, None, partition)
            except JOB_ERRORS as exc:
                if _NO_SCHEMA in str(exc):
                    path = f"{STATE}/{operator_id}/{SCHEMA}"
                return unread_file(exc, f"{location}/{STATE}", log.storage.url_of(path))
    return None


def _check_names(log: SparkLog, operators: StatefulOperators) -> None:
    """Check that Spark's own operators have the ids that they had."""
    names = {each: operator_name(log.storage, each) for each in log.operator_ids()}
    in_query = {each: operator.name for each, operator in operators.spark_operators.items()}
    wanted = {**dict.fromkeys(operators.ours, OUR_NAME), **in_query}
    stored = {name for name in names.values() if name not in (OUR_NAME, None)}
    if (in_query or stored) and names != wanted:
        raise IncompatibleStateError(
            f"{log.storage.url} holds the state of the operators {_in_order(names)}, the query has "
            f"{_in_order(wanted)}: give it the operators that it had, in their order, or restore a "
            "checkpoint into a new checkpointLocation"
        )


def _in_order(names: dict[int, str | None] | dict[int, str]) -> str:
    """Name operators in the order of their ids."""
    return ", ".join(str(name) for _, name in sorted(names.items()))


def _check_handles(root: str, operator: OperatorDescriptor, handles: list[Handle] | None) -> None:
    """Check an operator against the handles under its id, ``None`` if nothing is stored there."""
    if handles is None:
        raise IncompatibleStateError(
            f"{root} has no place for operator {operator.uid!r}: the query had fewer operators; "
            "give it the operators that it had, by their uids, or start it at a new "
            "checkpointLocation"
        )
    stored_uids = {handle.uid for handle in handles}
    if stored_uids - {operator.uid}:
        raise IncompatibleStateError(
            f"{root} holds the state of operator {', '.join(map(repr, sorted(stored_uids)))} where "
            f"the query has {operator.uid!r}: give the operator its old uid back, or start the "
            "query at a new checkpointLocation"
        )
    for handle in handles:
        for what, stored, wanted in fixed_parts(handle, operator):
            if stored != wanted:
                place = "a new checkpointLocation"
                other = f"restore a checkpoint into {place}"
                if what == KEY_SCHEMA:  # the only part that a restore refuses, too
                    other = f"{with_other_keys(operator.uid)} and restore that at {place}"
                raise IncompatibleStateError(
                    f"operator {operator.uid!r}: the state at {root} was stored with {what} "
                    f"'{stored}', the query has '{wanted}': give it its old {what} back, or {other}"
                )
    check_states(operator, handles)
