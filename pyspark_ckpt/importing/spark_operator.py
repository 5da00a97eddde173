"""The stateful operator of a stopped query of Spark: its kind, its keys and its state variables."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.errors import CorruptFileError, NotBuiltYetError, RestoreError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.importing.stopped_query import (
    StoppedQuery,
    check_operators,
    check_partitions,
    reading,
)
from pyspark_ckpt.operator.state.kinds import StateKind
from pyspark_ckpt.spark.state_files import STATE

GROUP_STATE = "applyInPandasWithState"
"""Spark's name of an operator with one state per key and a timeout."""

_WITH_VARIABLES = (
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
    "transformWithStateExec",
)
_IMPORTED = {GROUP_STATE, *_WITH_VARIABLES}
_KINDS = {
    "ValueState": StateKind.VALUE,
    "ListState": StateKind.LIST,
    "MapState": StateKind.MAP,
}
_TIME_MODES = {
    "NoTime": TimeMode.NONE,
    "ProcessingTime": TimeMode.PROCESSING_TIME,
    "EventTime": TimeMode.EVENT_TIME,
}
_TIMERS = "TimerState"
_HANDLES = ["handle"]
"""The state's columns if the operator is one of this library."""


@dataclass(frozen=True, slots=True)
class StateVariable:
    """A state variable of Spark's operator."""

    name: str
    kind: StateKind
    has_ttl: bool


@dataclass(frozen=True, slots=True)
class SparkStatefulOperator:
    """A stateful operator of Spark, read with Spark's own data source for state.

    `time_mode` is ``None`` for a group state, because Spark does not keep its kind of timeout.
    `variables` is empty for a group state.
    """

    spark: SparkSession
    query: StoppedQuery
    operator_id: int
    name: str
    time_mode: TimeMode = TimeMode.NONE
    variables: tuple[StateVariable, ...] = ()

    @property
    def where(self) -> str:
        """The operator, for errors."""
        return f"{self.query.path}, operator {self.operator_id} ({self.name})"

    @property
    def summary(self) -> str:
        """The operator with its states, for errors that name several operators."""
        states = ", ".join(repr(each.name) for each in self.variables)
        return f"{self.operator_id} ({self.name}{f' with {states}' if states else ''})"

    @property
    def is_group_state(self) -> bool:
        """Whether the operator has one state per key and a timeout."""
        return self.name == GROUP_STATE

    def rows(self, **options: str) -> DataFrame:
        """Return what Spark's data source reads with some options, at the last committed epoch."""
        wanted = {
            "operatorId": str(self.operator_id),
            "batchId": str(self.query.epoch),
            **options,
        }
        with reading(self.where):
            rows = self.spark.read.format("statestore").options(**wanted).load(self.query.path)
            rows.schema  # noqa: B018  # over Spark Connect the read begins only here
            return rows

    def variable(self, variable: StateVariable) -> DataFrame:
        """Return a row per value, list element or map entry of a state variable."""
        return self.rows(stateVarName=variable.name, flattenCollectionTypes="true")

    def timers(self) -> DataFrame:
        """Return a row per timer."""
        return self.rows(readRegisteredTimers="true")

    def key_schema(self) -> T.StructType:
        """Return the schema of the key columns."""
        if self.is_group_state:
            rows = self.rows()
        elif self.variables:
            rows = self.variable(self.variables[0])
        else:
            raise RestoreError(
                f"{self.where} has no state variable, from which its keys could be read: start the "
                "query without a savepoint; timers that it has are lost"
            )
        return struct_of(rows.schema["key"])


def spark_operators(
    spark: SparkSession, query: StoppedQuery, known: Mapping[str, Collection[int]]
) -> list[SparkStatefulOperator]:
    """Return the stateful operators of a stopped query in the order of their ids."""
    with reading(query.path, "which state it has"):
        rows = spark.read.format("state-metadata").load(query.path).collect()
    found: dict[int, Any] = {int(row["operatorId"]): row for row in rows}
    stored = {
        f"the directory {query.log.storage.url_of(STATE)}": query.log.operator_ids(),
        f"the commit of epoch {query.epoch}": query.log.committed_operator_ids(query.epoch),
    }
    if not found and not any(stored.values()):
        raise RestoreError(
            f"{query.path}: the query has no stateful operator, so there is nothing to import"
        )
    unknown = sorted({str(row["operatorName"]) for row in found.values()} - _IMPORTED)
    if unknown:
        raise NotBuiltYetError(
            f"{query.path}: the state of {', '.join(unknown)} cannot be imported; only the state "
            "of transformWithState, transformWithStateInPandas and applyInPandasWithState can: "
            "keep the others in a separate query of Spark"
        )
    check_operators(query.path, set(found), {**stored, **known})
    for row in rows:  # one for each state store
        operator_id = int(row["operatorId"])
        where = f"{query.path}, operator {operator_id} ({row['operatorName']})"
        check_partitions(query.log.storage, where, operator_id, int(row["numPartitions"]))
    return [_operator(spark, query, operator_id, row) for operator_id, row in sorted(found.items())]


def _operator(
    spark: SparkSession, query: StoppedQuery, operator_id: int, row: Any
) -> SparkStatefulOperator:
    name = str(row["operatorName"])
    if name != GROUP_STATE:
        time_mode, variables = _variables(query, row)
        return SparkStatefulOperator(spark, query, operator_id, name, time_mode, variables)
    operator = SparkStatefulOperator(spark, query, operator_id, name)
    state = operator.rows().schema["value"].dataType
    if isinstance(state, T.StructType) and _group_state(state).names == _HANDLES:
        raise RestoreError(
            f"{query.path} is the location of a query of this library: restart the query "
            "there, or restore it from a checkpoint or savepoint"
        )
    return operator


def struct_of(field: T.StructField) -> T.StructType:
    """Return the columns of a field, which is a struct in all that the data source reads."""
    assert isinstance(field.dataType, T.StructType)
    return field.dataType


def _group_state(value: T.StructType) -> T.StructType:
    return struct_of(value["groupState"]) if "groupState" in value.names else value


def _variables(query: StoppedQuery, row: Any) -> tuple[TimeMode, tuple[StateVariable, ...]]:
    """Return time mode and state variables, which Spark keeps as JSON."""
    try:
        properties = json.loads(row["operatorProperties"])
        stored = properties["stateVariables"]
        variables = tuple(
            StateVariable(
                str(each["stateName"]), _KINDS[each["stateVariableType"]], bool(each["ttlEnabled"])
            )
            for each in stored
            if each["stateVariableType"] != _TIMERS
        )
        return _TIME_MODES[properties["timeMode"]], variables
    except (ValueError, KeyError, TypeError) as exc:
        raise CorruptFileError(
            f"{query.path}: Spark's description of the operator's state is not one that this "
            f"version knows ({type(exc).__name__}: {exc}): use a version of PySpark that this "
            "library supports"
        ) from exc
