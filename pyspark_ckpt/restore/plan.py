"""The plan of a restore: what becomes of every operator and source, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.html_form import html_table
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.verdict import StateOutcome
from pyspark_ckpt.restore.missing_input import PlannedInput, plan_input
from pyspark_ckpt.restore.offsets import plan_sources
from pyspark_ckpt.restore.operators import (
    OperatorTerms,
    plan_operators,
    unknown_migrations,
)
from pyspark_ckpt.restore.planned import (
    CopiedOperator,
    MovedOperator,
    NewOperator,
    PlannedOperator,
    PlannedPart,
    PlannedSources,
    PlannedSparkOperators,
    PlannedState,
)
from pyspark_ckpt.restore.source import RestoreSource, open_source
from pyspark_ckpt.restore.spark_operators import plan_spark_operators
from pyspark_ckpt.settings import ClaimMode
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.text_table import text_table

RestoreMigrations = Mapping[str, Mapping[str, Migration]]
"""Migrations by the uid of their operator and the name of their state."""

_CELL_WIDTH = 60
_HEADER = ("operator", "state", "outcome", "why")


@dataclass(frozen=True, slots=True, repr=False)
class RestorePlan:
    """What a restore does with every operator and source; prints as a table.

    ``start`` carries out the plan that ``Location.plan`` returns. Seeding decides nothing.

    Parameters
    ----------
    source : RestoreSource
        The checkpoint or savepoint.
    operators : tuple of PlannedOperator
        What becomes of each operator of this library: those of the query first, in the order of
        their ids.
    spark_operators : PlannedSparkOperators
        What becomes of Spark's own operators.
    migrations : PlannedPart
        Refuses the migrations of operators that the query does not have.
    sources : PlannedSources
        Where the query's sources continue.
    input : PlannedInput
        Whether all input is there that later epochs have read, and that would be read again.
    origin : Origin
        What the new query's directory says about this restore.

    Examples
    --------
    >>> plan = ckpt.location(savepoint.path).plan(counts)
    >>> print(plan)
    restore from ..., epoch 0: can start
    ...
    """

    source: RestoreSource
    operators: tuple[PlannedOperator, ...]
    spark_operators: PlannedSparkOperators
    migrations: PlannedPart
    sources: PlannedSources
    input: PlannedInput
    origin: Origin

    @property
    def path(self) -> str:
        """The checkpoint or savepoint."""
        return self.source.path

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return self.source.metadata.epoch

    @property
    def watermark_ms(self) -> int:
        """The watermark that follows the epoch."""
        return self.source.metadata.watermark_ms

    @property
    def started(self) -> tuple[NewOperator | CopiedOperator | MovedOperator, ...]:
        """The operators that the query starts with, in the order of their ids."""
        return tuple(
            operator
            for operator in self.operators
            if isinstance(operator, NewOperator | CopiedOperator | MovedOperator)
        )

    @property
    def states(self) -> tuple[PlannedState, ...]:
        """A row for each operator and each of its states."""
        return tuple(row for part in self._parts for row in part.rows)

    @property
    def errors(self) -> tuple[CkptError, ...]:
        """What :meth:`check` raises; empty if the query can start."""
        return tuple(error for part in self._parts for error in part.errors)

    @property
    def missing_input(self) -> tuple[str, ...]:
        """The URLs of the input files that are gone, and whose rows the query would lack.

        These are files that epochs after this one have read, as far as the location of those epochs
        is within reach.
        """
        return self.input.files

    @property
    def refused(self) -> tuple[PlannedState, ...]:
        """The rows that keep the query from starting."""
        return tuple(row for row in self.states if row.outcome == StateOutcome.REFUSED.value)

    def check(self) -> None:
        """Raise what keeps the query from starting; has no effect if it can start.

        Raises
        ------
        RestoreError, IncompatibleStateError, PlanError
            The first of them.

        Examples
        --------
        >>> ckpt.location(savepoint.path).plan(counts).check()
        """
        if self.errors:
            raise self.errors[0]

    def check_operators_and_sources(self) -> None:
        """Raise what keeps this library's operators, or the sources, from continuing.

        A refused operator is not in :attr:`started`, and refused sources have no offsets. Without
        this check, state and offsets would be lost.
        """
        for part in (*self.operators, self.sources):
            if part.errors:
                raise part.errors[0]

    @property
    def _parts(self) -> tuple[PlannedPart, ...]:
        return (
            *self.operators,
            *self.spark_operators.operators,
            self.migrations,
            self.sources,
            self.input,
        )

    def __repr__(self) -> str:
        return f"{self._title}\n{text_table(_HEADER, self._rows, _CELL_WIDTH)}"

    def _repr_html_(self) -> str:
        return html_table(self._title, _HEADER, self._rows)

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [(row.operator, row.state, row.outcome, row.why) for row in self.states]

    @property
    def _title(self) -> str:
        rows = "1 row" if len(self.refused) == 1 else f"{len(self.refused)} rows"
        verdict = f"refused: {rows}" if self.errors else "can start"
        return f"restore from {self.path}, epoch {self.epoch}: {verdict}"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A restore as the user and the settings want it; see ``restoreFrom``.

    ``None`` for `source_ids` or `source_names` leaves out that check, and ``None`` for `spark`
    means that missing input is not looked for. `backend_type` is ``None`` if it is not known yet,
    and `given_names` is empty if Spark uses none. With `falls_back`, a corrupt ``chk-N`` is
    replaced by the newest whole one before it.
    """

    path: str
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False
    falls_back: bool = False
    migrations: RestoreMigrations = field(default_factory=dict)
    backend_type: str | None = None
    source_ids: tuple[int, ...] | None = None
    source_names: tuple[str, ...] | None = None
    given_names: tuple[str, ...] = ()
    allow_missing_input: bool = False
    spark: SparkSession | None = field(default=None, compare=False)


def plan_of_request(request: RestoreRequest, operators: StatefulOperators) -> RestorePlan:
    """Open what a query is to be restored from and plan the restore; starts nothing."""
    return plan_of(open_source(request.path, falls_back=request.falls_back), operators, request)


def plan_of(
    source: RestoreSource, operators: StatefulOperators, request: RestoreRequest
) -> RestorePlan:
    """Plan the restore of a query with these operators; on the driver, starts nothing."""
    metadata = source.metadata
    uids = [operator.uid for operator in operators.descriptors]
    stored = {operator.uid for operator in metadata.operators}
    terms = OperatorTerms(
        path=source.path,
        migrations=request.migrations,
        backend_type=request.backend_type,
        allow_non_restored_state=request.allow_non_restored_state,
    )
    return RestorePlan(
        source=source,
        operators=plan_operators(metadata.operators, operators, terms),
        spark_operators=plan_spark_operators(
            source, operators, allow_non_restored_state=request.allow_non_restored_state
        ),
        migrations=unknown_migrations(request.migrations, uids),
        sources=plan_sources(source, request.source_ids, request.source_names, request.given_names),
        input=plan_input(source, request.spark, allows=request.allow_missing_input),
        origin=Origin(
            path=source.path,
            kind=metadata.kind,
            checkpoint_id=metadata.checkpoint_id,
            query_id=metadata.query_id,
            epoch=metadata.epoch,
            operators=tuple(uid for uid in uids if uid in stored),
            sha256=source.sha256,
            claim_mode=request.claim_mode,
            skipped=source.skipped,
        ),
    )
