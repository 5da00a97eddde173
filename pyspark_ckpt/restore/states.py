"""Checks, before a query starts, that stored states and operators fit the query's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.errors import IncompatibleStateError, RestoreError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.initial_handles import not_woken, subtasks_not_woken
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import (
    MigrationDescriptor,
    OperatorDescriptor,
)
from pyspark_ckpt.operator.schema.report import EvolutionReport, OperatorSchema, compare_operator
from pyspark_ckpt.operator.schema.verdict import Outcome, StateSchema
from pyspark_ckpt.operator.table.catalog import KEY_SCHEMA, fixed_parts, struct_type
from pyspark_ckpt.spark.damage import Damage, unread_file
from pyspark_ckpt.spark.jobs import JOB_ERRORS
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.operators import StatefulOperators
from pyspark_ckpt.spark.state_files import OUR_NAME, SCHEMA, STATE, operator_name
from pyspark_ckpt.spark.state_reader import encoded_handle
from pyspark_ckpt.storage.base import CoordinatorStorage

logger = library_logger(__name__)


_NO_SCHEMA = "STDS_FAILED_TO_READ_STATE_SCHEMA"
"""What Spark says if it cannot read the file with the schema of a state."""


def check_states(operator: OperatorDescriptor, handles: Iterable[Handle]) -> EvolutionReport:
    """Check one operator against the handles of its subtasks; on the driver.

    States that are not simply restored are logged.
    """
    report = compare_states(operator, handles)
    report.check()
    if any(row.verdict not in (Outcome.RESTORED, Outcome.NEW) for row in report.verdicts):
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
                encoded_handle(spark, location, epoch, operator_id, partition)
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
            f"{log.storage.url} holds the state of the operators {_listed(names)}, the query has "
            f"{_listed(wanted)}: give it the operators that it had, in their order, or restore a "
            "checkpoint into a new checkpointLocation"
        )


def _listed(names: dict[int, str | None] | dict[int, str]) -> str:
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
