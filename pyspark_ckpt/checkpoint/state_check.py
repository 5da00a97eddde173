"""Checks, before a query starts, that stored states fit what its processors ask for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OperatorDescriptor
from pyspark_ckpt.operator.schema.report import EvolutionReport, OperatorSchema, compare_operator
from pyspark_ckpt.operator.schema.verdict import Outcome, StateSchema
from pyspark_ckpt.operator.table.catalog import struct_type

logger = logging.getLogger(__name__)


def check_states(operator: OperatorDescriptor, handles: Iterable[Handle]) -> EvolutionReport:
    """Check one operator against the handles of its subtasks; on the driver.

    What is not simply restored is logged.

    Raises
    ------
    IncompatibleStateError
        If a state cannot be read as what the processor asks for; the message has a report of all.
    PlanError
        If a migration does not fit what the processor asks for.
    """
    report = compare_states(operator, handles)
    report.check()
    if any(row.verdict not in (Outcome.RESTORED, Outcome.NEW) for row in report.verdicts):
        logger.warning("operator %r starts with changed states\n%s", operator.uid, report.render())
    return report


def compare_states(operator: OperatorDescriptor, handles: Iterable[Handle]) -> EvolutionReport:
    """Compare one operator with the handles of its subtasks; on the driver.

    Raises
    ------
    PlanError
        If a migration does not fit what the processor asks for.
    """
    stored = {
        OperatorSchema(struct_type(handle.key_schema), _state_schemas(handle.states))
        for handle in handles
    }
    wanted = OperatorSchema(struct_type(operator.key_schema), _state_schemas(operator.states))
    return compare_operator(operator.uid, stored, wanted, _migrations(operator.migrations))


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
        )
        for state in states
        if state.sweeps is None
    )


def _migrations(described: Mapping[str, MigrationDescriptor]) -> dict[str, Migration]:
    """Return migrations for the report, which asks whether there are functions, not for them."""
    return {
        name: Migration(
            value=tuple if one.value else None,
            key=tuple if one.key else None,
            renamed_from=one.renamed_from,
        )
        for name, one in described.items()
    }
