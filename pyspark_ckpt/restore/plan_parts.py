"""What a restore makes of each operator and state: the rows of its plan, and what it refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pyspark_ckpt.errors import CkptError, IncompatibleStateError, PlanError, RestoreError
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OperatorDescriptor
from pyspark_ckpt.operator.schema.report import EvolutionReport
from pyspark_ckpt.operator.schema.verdict import Outcome
from pyspark_ckpt.operator.table.catalog import schema_text
from pyspark_ckpt.restore.rescale import check_move, has_to_move
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_operators import NativeChange
from pyspark_ckpt.restore.states import compare_states
from pyspark_ckpt.spark.source_kinds import fits, kind_of_offset

REFUSED = "refused"
_RESTORED, _NEW, _DROPPED = "restored", "new", "dropped"
_OPERATOR = "(operator)"
"""Stands in the plan for the operator itself."""

_QUERY = "(query)"
_SOURCES = "(sources)"
_UNCHANGED = "nothing changes"
_OUTCOMES = {
    Outcome.RESTORED: _RESTORED,
    Outcome.EVOLVED: "migrated",
    Outcome.MIGRATED: "migrated",
    Outcome.NEW: _NEW,
    Outcome.KEPT: _RESTORED,
    Outcome.REFUSED: REFUSED,
}


@dataclass(frozen=True, slots=True)
class PlannedState:
    """What becomes of one state, or of the operator as a whole.

    `outcome` is ``restored``, ``migrated``, ``dropped``, ``new`` or ``refused``; `why` says what
    changes, or what to do.
    """

    operator: str
    state: str
    outcome: str
    why: str


@dataclass(slots=True)
class PlannedPart:
    """The rows of a part of the plan, and why the query cannot start with it."""

    rows: list[PlannedState] = field(default_factory=list)
    errors: list[CkptError] = field(default_factory=list)

    def refuse(self, operator: str, error: CkptError, state: str = _OPERATOR) -> None:
        """Add what keeps the query from starting."""
        self.errors.append(error)
        self.rows.append(PlannedState(operator, state, REFUSED, str(error)))


def planned_operator(
    path: str,
    stored: OperatorMetadata | None,
    wanted: OperatorDescriptor,
    migrations: Mapping[str, Migration],
    backend_type: str | None,
) -> PlannedPart:
    """Plan what an operator of the query gets.

    Parameters
    ----------
    path
        The checkpoint or savepoint.
    stored
        What it has under the operator's uid, ``None`` for nothing.
    wanted
        The query's operator.
    migrations
        Those of its states that are done while state is restored.
    backend_type
        The query's backend, ``None`` if it is not known yet.
    """
    part = PlannedPart()
    if stored is None:
        why = "nothing is stored under this uid: starts empty"
        part.rows.append(PlannedState(wanted.uid, _OPERATOR, _NEW, why))
        return part
    where = f"{path}, operator {wanted.uid!r}"
    _plan_shape(part, where, stored, wanted, backend_type)
    _plan_states(part, where, stored, wanted, migrations)
    return part


def _plan_shape(
    part: PlannedPart,
    where: str,
    stored: OperatorMetadata,
    wanted: OperatorDescriptor,
    backend_type: str | None,
) -> None:
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
    keys = schema_text(stored.key_schema), schema_text(wanted.key_schema)
    if keys[0] != keys[1]:
        error = RestoreError(
            f"{where}: the state is keyed by {keys[0]}, the query by {keys[1]}: "
            "key_by the same columns"
        )
        part.refuse(wanted.uid, error)
        return
    with_timers = _with_timers_of_another_clock(stored, wanted)
    if with_timers:
        part.refuse(
            wanted.uid,
            RestoreError(
                f"{where}: timeMode {stored.time_mode} -> {wanted.time_mode}, and {with_timers} "
                f"of its subtasks have timers. Their times mean nothing to another clock. Keep "
                f"timeMode={stored.time_mode!r}, or restore a savepoint that has no timers: one "
                "taken after they fired or were deleted, or by stopWithSavepoint(drain=True)"
            ),
        )
        return
    why = ", ".join(changes) or _UNCHANGED
    part.rows.append(PlannedState(wanted.uid, _OPERATOR, _RESTORED, why))


def _with_timers_of_another_clock(stored: OperatorMetadata, wanted: OperatorDescriptor) -> int:
    """Return how many subtasks have timers that would follow another time than they did."""
    return sum(
        handle.timeout_ms is not None and handle.time_mode != wanted.time_mode
        for handle in stored.handles
    )


def _plan_states(
    part: PlannedPart,
    where: str,
    stored: OperatorMetadata,
    wanted: OperatorDescriptor,
    migrations: Mapping[str, Migration],
) -> None:
    try:
        report = compare_states(_with(wanted, migrations), stored.handles)
    except PlanError as exc:
        part.refuse(wanted.uid, exc)
        return
    for verdict in report.verdicts:
        why = verdict.refusal or "; ".join(verdict.changes) or _UNCHANGED
        outcome = _OUTCOMES[verdict.verdict]
        part.rows.append(PlannedState(wanted.uid, verdict.state, outcome, why))
    if report.refused:
        part.errors.append(_incompatible(where, report))
    elif has_to_move(stored, wanted, migrations):
        try:
            check_move(stored, wanted, migrations)
        except (IncompatibleStateError, PlanError) as exc:
            part.refuse(wanted.uid, exc)


def planned_unwanted(
    source: RestoreSource, wanted: Collection[str], *, may_be_dropped: bool
) -> PlannedPart:
    """Plan what becomes of the stored operators that the query has not.

    Parameters
    ----------
    source
        The checkpoint or savepoint.
    wanted
        The uids of the query's operators.
    may_be_dropped
        Whether the others may be left behind.
    """
    part = PlannedPart()
    stored = source.metadata.operators
    missing = [operator for operator in stored if operator.uid not in wanted]
    for operator in missing:
        part.rows += _unwanted_rows(operator, may_be_dropped=may_be_dropped)
    if missing and not may_be_dropped:
        part.errors.append(
            RestoreError(
                f"{source.path} holds state of {sorted(each.uid for each in stored)}, the query "
                f"has {sorted(wanted)}: give the query's operator the uid that its state has, "
                "rename that with pyspark_ckpt.rename_uid, or leave it behind with "
                "restoreFrom(..., allowNonRestoredState=True)"
            )
        )
    return part


def _unwanted_rows(operator: OperatorMetadata, *, may_be_dropped: bool) -> list[PlannedState]:
    outcome = _DROPPED if may_be_dropped else REFUSED
    why = "the query has no operator of this uid"
    if not may_be_dropped:
        why += ": rename it with rename_uid, or set allowNonRestoredState"
    names = dict.fromkeys(
        state.name for handle in operator.handles for state in handle.states if state.sweeps is None
    )
    return [
        PlannedState(operator.uid, _OPERATOR, outcome, why),
        *(PlannedState(operator.uid, name, outcome, "with its operator") for name in names),
    ]


def planned_native(change: NativeChange) -> PlannedPart:
    """Plan what becomes of a stateful operator of Spark's own, stored, in the query, or both."""
    outcome = _RESTORED if change.is_restored else _DROPPED
    if change.error is not None:
        outcome = REFUSED
    row = PlannedState(f"Spark's {change.name}", _OPERATOR, outcome, change.why)
    return PlannedPart([row], [] if change.error is None else [change.error])


def planned_unknown_migrations(uids: Collection[str], wanted: Collection[str]) -> PlannedPart:
    """Refuse migrations of operators that the query has not.

    Parameters
    ----------
    uids
        Of the operators for which migrations are given.
    wanted
        Of those that the query has.
    """
    part = PlannedPart()
    unknown = sorted(set(uids) - set(wanted))
    if unknown:
        names = ", ".join(map(repr, unknown))
        error = PlanError(f"migrations are given for operator {names}: the query has none")
        part.errors.append(error)
        part.rows += [PlannedState(uid, _OPERATOR, REFUSED, str(error)) for uid in unknown]
    return part


def planned_sources(
    source: RestoreSource,
    source_ids: Collection[int] | None,
    source_names: Sequence[str] | None = None,
) -> PlannedPart:
    """Refuse other sources than there are offsets of: in number, and in kind where that shows.

    Parameters
    ----------
    source
        The checkpoint or savepoint.
    source_ids
        Which source the query reads at each place, ``None`` if that is not to be checked.
    source_names
        What Spark calls each of these sources, by id; ``None`` if that is not to be checked.
    """
    part = PlannedPart()
    before = len(source.offsets)
    now = before if source_ids is None else len(set(source_ids))
    if now != before:
        error = RestoreError(
            f"{source.path} has the offsets of {before} sources, the query reads "
            f"{now}: give it the sources that it had, in their order"
        )
        part.refuse(_QUERY, error, state=_SOURCES)
        return part
    for number, (offset, name) in enumerate(
        zip(source.offsets.values(), source_names or (), strict=False)
    ):
        stored = kind_of_offset(offset)
        if not fits(offset, name):
            error = RestoreError(
                f"{source.path}: source {number} of the query is {name}, its offset is "
                f"{'of ' + stored if stored else 'of another source'}: {offset[:120]}. Give the "
                "query the sources that it had, in their order"
            )
            part.refuse(_QUERY, error, state=_SOURCES)
    return part


def _incompatible(where: str, report: EvolutionReport) -> IncompatibleStateError:
    try:
        report.check()
    except IncompatibleStateError as exc:
        return IncompatibleStateError(f"{where}: {exc}")
    raise AssertionError(report)  # called for one that is refused


def _with(operator: OperatorDescriptor, migrations: Mapping[str, Migration]) -> OperatorDescriptor:
    """Return an operator with the migrations of a restore besides its own."""
    described = {name: MigrationDescriptor.of(one) for name, one in migrations.items()}
    return msgspec.structs.replace(operator, migrations={**operator.migrations, **described})
