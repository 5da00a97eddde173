"""Whether the states that a processor declares are those that Spark's operator has."""

from __future__ import annotations

from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.importing.spark_operator import (
    SparkStatefulOperator,
    StateVariable,
    struct_of,
)
from pyspark_ckpt.importing.state_rows import VALUE_COLUMNS, is_stamped
from pyspark_ckpt.operator.schema.evolution import same_type
from pyspark_ckpt.operator.state.kinds import kind_of
from pyspark_ckpt.operator.table.catalog import struct_type

_ADVICE = (
    "import with the processor as the query of Spark ran it; change it once the query is restored"
)


def check_states(
    operator: SparkStatefulOperator, declared: dict[str, StateDescriptor], uid: str
) -> None:
    """Check that a processor declares exactly the state variables that Spark has."""
    where = f"{operator.where}, as operator {uid!r}"
    stored = {variable.name: variable for variable in operator.variables}
    unknown = sorted(set(declared) - set(stored))
    missing = sorted(set(stored) - set(declared))
    if unknown or missing:
        raise IncompatibleStateError(
            f"{where}: Spark has the states {_listed(stored)}, the processor declares "
            f"{_listed(declared)}: {_ADVICE}"
        )
    for name, variable in stored.items():
        why = _difference(operator, variable, declared[name])
        if why is not None:
            raise IncompatibleStateError(f"{where}: state {name!r} {why}: {_ADVICE}")


def _difference(
    operator: SparkStatefulOperator, variable: StateVariable, state: StateDescriptor
) -> str | None:
    """Return how a declared state differs from Spark's, ``None`` if it does not."""
    if kind_of(state) is not variable.kind:
        return f"is {variable.kind.stored_name} state in Spark, and {state.kind} state here"
    if (state.ttl is not None) != variable.has_ttl:
        here = _ttl(has_ttl=state.ttl is not None)
        return f"{_ttl(has_ttl=variable.has_ttl)} in Spark, and {here} here"
    if state.ttl is not None and state.ttl.time is not TtlTime.PROCESSING_TIME:
        return "expires in processing time in Spark, and in event time here"
    schema = operator.variable(variable).schema
    values = struct_of(schema[VALUE_COLUMNS[variable.kind]])
    if is_stamped(values, variable):
        values = struct_of(values["value"])
    pairs = [("values", values, struct_type(state.value_schema))]
    if state.map_key_schema is not None:
        pairs.append(
            ("map keys", struct_of(schema["user_map_key"]), struct_type(state.map_key_schema))
        )
    for what, stored, wanted in pairs:
        if not same_type(stored, wanted, nullability=False):
            return f"has {what} of {_text(stored)} in Spark, and of {_text(wanted)} here"
    return None


def _text(schema: T.StructType) -> str:
    return schema.simpleString()


def _ttl(*, has_ttl: bool) -> str:
    return "has a time to live" if has_ttl else "has no time to live"


def _listed(names: dict[str, StateDescriptor] | dict[str, StateVariable]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
