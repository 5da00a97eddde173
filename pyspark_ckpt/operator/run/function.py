"""All that an operator's tasks need, in whichever way Spark runs them; Spark ships it to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.key_groups import key_groups_of
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.rows.sides import BroadcastRows, InitialRows
from pyspark_ckpt.operator.run.processing import EpochProcessing
from pyspark_ckpt.operator.run.user_sources import NO_SOURCES, UserSources
from pyspark_ckpt.operator.run.wake_rows import WakeRows
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock

_INPUT_SHARE = 2
WRITES_SHARE = 4
"""Parts of the memory limit: half for rows, a quarter for writes, the rest for what they become."""


@dataclass(frozen=True, slots=True)
class OperatorFunction:
    """An operator on the executor.

    Parameters
    ----------
    processor
        The user's processor; Spark ships a fresh copy to every task.
    descriptor, columns, mode
        The operator as the query was built, and how its processor receives rows.
    schemas
        The DDL schemas that the processor's ``init`` uses, parsed.
    migrations
        What brings stored states to new schemas or names, by state.
    broadcast, initial
        The other sides of the input, if there are any.
    sources
        The text of the user's code where executors have no file of it.
    wake
        The rows that have every subtask called in epoch 0, for an operator with an initial state.
    """

    processor: StatefulProcessor
    descriptor: OperatorDescriptor
    columns: InputColumns
    mode: InputMode
    schemas: Mapping[str, T.StructType]
    migrations: Mapping[str, Migration]
    broadcast: BroadcastRows | None
    initial: InitialRows | None
    sources: UserSources = NO_SOURCES
    wake: WakeRows | None = None

    def processing(
        self, handle: Handle, table: StateTable, clock: EpochClock, epoch: int
    ) -> EpochProcessing:
        """Return what runs the processor over an epoch that starts from a handle."""
        where = f"operator {handle.uid!r}, subtask {handle.subtask}"
        states = ProcessorHandle(table, clock, where, handle.states, self.schemas, self.migrations)
        return EpochProcessing(
            self.processor,
            table,
            states,
            clock,
            self.mode,
            self.columns.decode_key,
            f"{where}, epoch {epoch}",
            self.broadcast,
            self.sources,
        )

    def parts(
        self,
        frames: Iterator[pd.DataFrame],
        subtask: int,
        memory_limit_bytes: int,
        scratch: Path,
        columns: InputColumns | None = None,
    ) -> Iterator[list[pd.DataFrame]]:
        """Return rows in parts that fit into memory; by default the keyed rows."""
        operator = self.descriptor
        parts = InputParts(
            (columns or self.columns).sent_schema,
            key_groups_of(subtask, operator.parallelism, operator.max_parallelism),
            memory_limit_bytes // _INPUT_SHARE,
            scratch,
        )
        return parts.split(frame for frame in frames if len(frame))
