"""Initial states on the driver, kept between the call that builds an operator and the start.

A plan carries only texts. So the operator's descriptor carries a name, and this session keeps the
initial state under the name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from pyspark.sql import DataFrame, Row

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.handle import Handle, decode_handle
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, Runtime
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.run.function import OperatorFunction
from pyspark_ckpt.operator.run.without_query import HANDLES_SCHEMA, InitialStateFunction


@dataclass(frozen=True, slots=True)
class InitialState:
    """The initial state of one operator: its rows as they travel, and the operator."""

    rows: DataFrame
    function: OperatorFunction

    def job(self, runtime: Runtime, time_ms: int) -> DataFrame:
        """Return the job that makes the state; its rows are for :func:`handles_of`."""
        function = InitialStateFunction(self.function, runtime, time_ms)
        parallelism = self.function.descriptor.parallelism
        return self.rows.repartition(parallelism, TOKEN).mapInArrow(function, HANDLES_SCHEMA)


def handles_of(rows: Iterable[Row]) -> list[Handle]:
    """Return the handles that a job made, which refer to durable files."""
    return [decode_handle(bytes(row["handle"])) for row in rows]


_remembered: dict[str, InitialState] = {}


def remember_initial_state(
    descriptor: OperatorDescriptor, initial: InitialState
) -> OperatorDescriptor:
    """Keep an initial state for this session; return the descriptor that names it."""
    name = uuid.uuid4().hex
    _remembered[name] = initial
    return msgspec.structs.replace(descriptor, initial_state=name)


def initial_state_of(operator: OperatorDescriptor) -> InitialState | None:
    """Return the initial state that an operator was built with, ``None`` if it has none."""
    if operator.initial_state is None:
        return None
    try:
        return _remembered[operator.initial_state]
    except KeyError:
        raise PlanError(
            f"operator {operator.uid!r} was built with an initialState in another process: build "
            "the query where it is started"
        ) from None
