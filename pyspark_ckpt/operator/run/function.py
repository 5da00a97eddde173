"""An operator as Spark ships it to its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.key_groups import key_groups_of
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.rows.parts import Frames, InputParts
from pyspark_ckpt.operator.rows.sides import (
    BroadcastRows,
    EpochInput,
    InitialRows,
    SideRows,
    read_divided,
)
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
        The migrations of stored states to new schemas or names, by state.
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
            None if self.initial is None else self.initial.mode,
            self.sources,
        )

    def read_stream(
        self, frames: Iterable[pd.DataFrame], subtask: int, memory_limit_bytes: int, scratch: Path
    ) -> EpochInput:
        """Read all input of an epoch of a query; its initial state was made before.

        Parameters
        ----------
        frames
            The input as Spark hands it over.
        subtask
            The subtask.
        memory_limit_bytes
            The memory that the subtask may take; the rows get a share of it.
        scratch
            A directory for rows that do not fit into the share.
        """
        sides = [] if self.wake is None else [self.wake.side]
        return self._read(frames, sides, self._parts(subtask, memory_limit_bytes, scratch))

    def read_batch(
        self, frames: Iterable[pd.DataFrame], subtask: int, memory_limit_bytes: int, scratch: Path
    ) -> EpochInput:
        """Read all input of a run without a query, which begins with the initial state.

        Parameters
        ----------
        frames, subtask, memory_limit_bytes, scratch
            As in :meth:`read_stream`.
        """
        sides = [] if self.initial is None else [self.initial.side]
        return self._read(frames, sides, self._parts(subtask, memory_limit_bytes, scratch))

    def initial_parts(
        self, frames: Iterator[pd.DataFrame], subtask: int, memory_limit_bytes: int, scratch: Path
    ) -> Iterator[Frames]:
        """Return an initial state that comes alone, in parts that fit into memory.

        Parameters
        ----------
        frames, subtask, memory_limit_bytes, scratch
            As in :meth:`read_stream`.
        """
        assert self.initial is not None  # the driver starts this for an initial state only
        return self._parts(
            subtask, memory_limit_bytes, scratch, self.initial.columns.sent_schema
        ).split(frames)

    def _read(
        self, frames: Iterable[pd.DataFrame], sides: list[SideRows], parts: InputParts
    ) -> EpochInput:
        broadcast = self.broadcast
        if broadcast is not None:
            sides = [*sides, broadcast.side]
        keyed, found = read_divided(frames, sides, parts)
        return EpochInput(
            keyed,
            None if broadcast is None else broadcast.received(found[broadcast.side.name]),
            None if self.initial is None else found.get(self.initial.side.name),
        )

    def _parts(
        self,
        subtask: int,
        memory_limit_bytes: int,
        scratch: Path,
        schema: pa.Schema | None = None,
    ) -> InputParts:
        operator = self.descriptor
        return InputParts(
            schema or self.columns.sent_schema,
            key_groups_of(subtask, operator.parallelism, operator.max_parallelism),
            memory_limit_bytes // _INPUT_SHARE,
            scratch,
        )
