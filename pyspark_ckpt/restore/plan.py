"""The plan of a restore: what becomes of every operator and state, before anything starts.

What a query is to be restored from, and on which terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.restore.plan_parts import (
    REFUSED,
    PlannedState,
    planned_native,
    planned_operator,
    planned_sources,
    planned_unknown_migrations,
    planned_unwanted,
)
from pyspark_ckpt.restore.source import RestoreSource, open_source
from pyspark_ckpt.restore.spark_operators import native_changes
from pyspark_ckpt.settings import NO_CLAIM
from pyspark_ckpt.spark.operators import StatefulOperators
from pyspark_ckpt.text_table import text_table

RestoreMigrations = Mapping[str, Mapping[str, Migration]]
"""Migrations by the uid of their operator and the name of their state."""

_CELL_WIDTH = 60
_HEADER = ("operator", "state", "outcome", "why")


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
        return tuple(row for row in self.states if row.outcome == REFUSED)

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
        verdict = _refusal(len(self.refused)) if self.errors else "can start"
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
    source_names: tuple[str, ...] | None = None,
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
    source_names
        What Spark calls each of these sources, by id; ``None`` if that is not to be checked.
    """
    stored = {operator.uid: operator for operator in source.metadata.operators}
    operators = query_operators.descriptors
    wanted = [operator.uid for operator in operators]
    given = migrations or {}
    changes = native_changes(
        source, query_operators, allow_non_restored_state=allow_non_restored_state
    )
    parts = [
        *(
            planned_operator(
                source.path,
                stored.get(operator.uid),
                operator,
                given.get(operator.uid, {}),
                backend_type,
            )
            for operator in operators
        ),
        planned_unwanted(source, wanted, may_be_dropped=allow_non_restored_state),
        *map(planned_native, changes),
        planned_unknown_migrations(given, wanted),
        planned_sources(source, source_ids, source_names),
    ]
    rows = tuple(row for part in parts for row in part.rows)
    errors = tuple(error for part in parts for error in part.errors)
    return RestorePlan(source.path, source.metadata.epoch, rows, errors)


def _refusal(rows: int) -> str:
    return "refused: 1 row" if rows == 1 else f"refused: {rows} rows"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A restore as the user and the settings want it; see ``restoreFrom``.

    `backend_type`, `source_ids` and `source_names` are those of the query.
    """

    path: str
    claim_mode: str = NO_CLAIM
    allow_non_restored_state: bool = False
    falls_back: bool = False
    migrations: RestoreMigrations = field(default_factory=dict)
    backend_type: str | None = None
    source_ids: tuple[int, ...] | None = None
    source_names: tuple[str, ...] | None = None

    def plan(self, source: RestoreSource, operators: StatefulOperators) -> RestorePlan:
        """Plan the restore from a source that was opened; starts nothing."""
        return plan_of(
            source,
            operators,
            allow_non_restored_state=self.allow_non_restored_state,
            migrations=self.migrations,
            backend_type=self.backend_type,
            source_ids=self.source_ids,
            source_names=self.source_names,
        )


def plan_of_request(request: RestoreRequest, operators: StatefulOperators) -> RestorePlan:
    """Open the source of a request and plan the restore; starts nothing.

    Raises
    ------
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If there is none that can be trusted.
    """
    return request.plan(open_source(request.path, falls_back=request.falls_back), operators)
