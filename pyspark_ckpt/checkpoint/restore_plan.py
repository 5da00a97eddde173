"""The plan of a restore: what becomes of every operator and state, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.checkpoint.native_restore import NativeChange, native_changes
from pyspark_ckpt.checkpoint.redistributing import check_move, has_to_move
from pyspark_ckpt.checkpoint.restore_source import RestoreSource
from pyspark_ckpt.checkpoint.state_check import compare_states
from pyspark_ckpt.checkpoint.stateful_operators import StatefulOperators
from pyspark_ckpt.errors import (
    CkptError,
    IncompatibleStateError,
    PlanError,
    RestoreError,
)
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.on_disk.metadata import OperatorMetadata
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OperatorDescriptor
from pyspark_ckpt.operator.evolution_report import EvolutionReport
from pyspark_ckpt.operator.state_catalog import schema_text
from pyspark_ckpt.operator.state_verdict import Outcome
from pyspark_ckpt.operator.text_table import text_table

RestoreMigrations = Mapping[str, Mapping[str, Migration]]
"""Migrations by the uid of their operator and the name of their state."""

_OPERATOR = "(operator)"
"""Stands in the plan for the operator itself."""

_QUERY = "(query)"
_UNCHANGED = "nothing changes"
_CELL_WIDTH = 60
_HEADER = ("operator", "state", "outcome", "why")
_RESTORED, _NEW, _DROPPED, _REFUSED = "restored", "new", "dropped", "refused"
_OUTCOMES = {
    Outcome.RESTORED: _RESTORED,
    Outcome.EVOLVED: "migrated",
    Outcome.MIGRATED: "migrated",
    Outcome.NEW: _NEW,
    Outcome.KEPT: _RESTORED,
    Outcome.REFUSED: _REFUSED,
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


@dataclass(frozen=True, slots=True, repr=False)
class RestorePlan:
    """What a restore would do; prints as a table.

    Parameters
    ----------
    path
        The checkpoint or savepoint.
    epoch
        Its epoch.
    states
        A row for each operator and each of its states.
    errors
        What :meth:`check` raises; empty if the query can start.
    """

    path: str
    epoch: int
    states: tuple[PlannedState, ...]
    errors: tuple[CkptError, ...] = ()

    @property
    def refused(self) -> tuple[PlannedState, ...]:
        """The rows that keep the query from starting."""
        return tuple(row for row in self.states if row.outcome == _REFUSED)

    def check(self) -> None:
        """Raise what keeps the query from starting.

        Raises
        ------
        RestoreError, IncompatibleStateError, PlanError
            The first of them.
        """
        if self.errors:
            raise self.errors[0]

    def __repr__(self) -> str:
        rows = [(row.operator, row.state, row.outcome, row.why) for row in self.states]
        verdict = f"refused: {len(self.refused)} rows" if self.errors else "can start"
        return (
            f"restore from {self.path}, epoch {self.epoch}: {verdict}\n"
            f"{text_table(_HEADER, rows, _CELL_WIDTH)}"
        )


def plan_of(
    source: RestoreSource,
    query_operators: StatefulOperators,
    *,
    allow_non_restored_state: bool,
    migrations: RestoreMigrations | None = None,
    backend_type: str | None = None,
    source_ids: tuple[int, ...] | None = None,
) -> RestorePlan:
    """Plan the restore of a query with these operators; on the driver, starts nothing.

    Parameters
    ----------
    source
        The checkpoint or savepoint.
    query_operators
        The query's.
    allow_non_restored_state
        Whether operators that the query no longer has are dropped rather than refused.
    migrations
        Those that are done while state is restored, by uid and state.
    backend_type
        The query's backend, ``None`` if it is not known yet.
    source_ids
        Which source the query reads at each place, ``None`` if that is not to be checked.
    """
    stored = {operator.uid: operator for operator in source.metadata.operators}
    operators = query_operators.descriptors
    wanted = [operator.uid for operator in operators]
    rows: list[PlannedState] = []
    errors: list[CkptError] = []
    for operator in operators:
        if operator.uid in stored:
            planned = _Planned(
                source.path,
                stored[operator.uid],
                operator,
                (migrations or {}).get(operator.uid, {}),
                backend_type,
            )
            rows += planned.rows
            errors += planned.errors
        else:
            why = "nothing is stored under this uid: starts empty"
            rows.append(PlannedState(operator.uid, _OPERATOR, _NEW, why))
    missing = [each for uid, each in stored.items() if uid not in wanted]
    for each in missing:
        rows += _not_restored(each, allowed=allow_non_restored_state)
    if missing and not allow_non_restored_state:
        errors.append(
            RestoreError(
                f"{source.path} holds state of {sorted(stored)}, the query has "
                f"{sorted(wanted)}: give the query's operator the uid that its state has, rename "
                "that with pyspark_ckpt.rename_uid, or leave it behind with "
                "restoreFrom(..., allowNonRestoredState=True)"
            )
        )
    for change in native_changes(
        source, query_operators, allow_non_restored_state=allow_non_restored_state
    ):
        rows.append(_native_row(change))
        errors += [] if change.error is None else [change.error]
    unknown = sorted(set(migrations or {}) - set(wanted))
    if unknown:
        names = ", ".join(map(repr, unknown))
        errors.append(PlanError(f"migrations are given for operator {names}: the query has none"))
        rows += [PlannedState(uid, _OPERATOR, _REFUSED, str(errors[-1])) for uid in unknown]
    before = len(source.offsets)
    if source_ids is not None and len(set(source_ids)) != before:
        errors.append(
            RestoreError(
                f"{source.path} has the offsets of {before} sources, the query reads "
                f"{len(set(source_ids))}: give it the sources that it had, in their order"
            )
        )
        rows.append(PlannedState(_QUERY, "(sources)", _REFUSED, str(errors[-1])))
    return RestorePlan(source.path, source.metadata.epoch, tuple(rows), tuple(errors))


def _native_row(change: NativeChange) -> PlannedState:
    outcome = _RESTORED if change.is_restored else _DROPPED
    return PlannedState(
        f"Spark's {change.name}",
        _OPERATOR,
        outcome if change.error is None else _REFUSED,
        change.why,
    )


def _not_restored(operator: OperatorMetadata, *, allowed: bool) -> list[PlannedState]:
    outcome = _DROPPED if allowed else _REFUSED
    why = (
        "the query has no operator of this uid"
        if allowed
        else "the query has no operator of this uid: rename it with rename_uid, or set "
        "allowNonRestoredState"
    )
    names = dict.fromkeys(
        state.name for handle in operator.handles for state in handle.states if state.sweeps is None
    )
    return [
        PlannedState(operator.uid, _OPERATOR, outcome, why),
        *(PlannedState(operator.uid, name, outcome, "with its operator") for name in names),
    ]


class _Planned:
    """The rows of one operator that is stored and wanted."""

    def __init__(
        self,
        path: str,
        stored: OperatorMetadata,
        wanted: OperatorDescriptor,
        migrations: Mapping[str, Migration],
        backend_type: str | None,
    ) -> None:
        self._migrations = migrations
        self._where = f"{path}, operator {wanted.uid!r}"
        self.rows: list[PlannedState] = []
        self.errors: list[CkptError] = []
        self._operator_row(stored, wanted, backend_type)
        self._state_rows(stored, wanted)

    def _operator_row(
        self, stored: OperatorMetadata, wanted: OperatorDescriptor, backend_type: str | None
    ) -> None:
        changes = [
            f"{what} {before} -> {after}"
            for what, before, after in (
                ("parallelism", stored.parallelism, wanted.parallelism),
                ("maxParallelism", stored.max_parallelism, wanted.max_parallelism),
                ("backend", stored.backend, backend_type or stored.backend),
            )
            if before != after
        ]
        keys = schema_text(stored.key_schema), schema_text(wanted.key_schema)
        if keys[0] != keys[1]:
            self._refuse(
                wanted.uid,
                RestoreError(
                    f"{self._where}: the state is keyed by {keys[0]}, the query by {keys[1]}: "
                    "key_by the same columns"
                ),
            )
            return
        why = ", ".join(changes) or _UNCHANGED
        self.rows.append(PlannedState(wanted.uid, _OPERATOR, _RESTORED, why))

    def _state_rows(self, stored: OperatorMetadata, wanted: OperatorDescriptor) -> None:
        try:
            report = compare_states(_with(wanted, self._migrations), stored.handles)
        except PlanError as exc:
            self._refuse(wanted.uid, exc)
            return
        for verdict in report.verdicts:
            why = verdict.what_to_do.removeprefix("nothing: ")
            why = _UNCHANGED if why == "nothing" else why
            outcome = _OUTCOMES[verdict.verdict]
            self.rows.append(PlannedState(wanted.uid, verdict.state, outcome, why))
        if report.refused:
            self.errors.append(_incompatible(self._where, report))
        elif has_to_move(stored, wanted, self._migrations):
            self._check_move(stored, wanted)

    def _check_move(self, stored: OperatorMetadata, wanted: OperatorDescriptor) -> None:
        try:
            check_move(stored, wanted, self._migrations)
        except (IncompatibleStateError, PlanError) as exc:
            self._refuse(wanted.uid, exc)

    def _refuse(self, uid: str, error: CkptError) -> None:
        self.errors.append(error)
        self.rows.append(PlannedState(uid, _OPERATOR, _REFUSED, str(error)))


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
