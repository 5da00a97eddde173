"""The handle that a processor's ``init`` receives: gives out states and timers."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as T

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.state.key_timers import KeyTimers
from pyspark_ckpt.operator.state.registry import StateRegistry
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock


class ProcessorHandle(StateRegistry, KeyTimers):
    """The methods of ``pyspark.sql.streaming.StatefulProcessorHandle``, and Flink's states.

    A processor's ``init`` gets it: on the driver once when the query is built, then on executors
    in every epoch of every subtask. States are asked for in ``init`` only. Timers are set where
    a key is handled.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    clock : EpochClock
        The epoch's times.
    where : str
        The operator and subtask, for errors.
    stored : tuple of StateDescriptor
        The states that the subtask's handle already has; their order gives the state ids.
    schemas : Mapping of str to StructType
        The DDL texts that ``init`` uses, parsed on the driver: executors have no parser.
    migrations : Mapping of str to Migration, optional
        What the user gave to bring stored states to new schemas or names, by state.

    Examples
    --------
    >>> count = handle.getValueState("count", "n long")
    >>> count.update((1,))
    >>> handle.registerTimer(60_000)
    >>> list(handle.listTimers())
    [60000]
    """

    def __init__(
        self,
        table: StateTable,
        clock: EpochClock,
        where: str,
        stored: tuple[StateDescriptor, ...],
        schemas: Mapping[str, T.StructType],
        migrations: Mapping[str, Migration] | None = None,
    ) -> None:
        KeyTimers.__init__(self, table, clock, where)
        StateRegistry.__init__(self, table, clock, where, stored, schemas, migrations)
