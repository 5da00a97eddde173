"""An operator as Spark ships it to its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.capture.capture_file import CapturedProgram
from pyspark_ckpt.operator.capture.described import described
from pyspark_ckpt.operator.capture.recording import SeenInput
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, QuarantineLimits
from pyspark_ckpt.operator.modes.calls import Calls
from pyspark_ckpt.operator.quarantine.quarantine import Quarantine, Releases
from pyspark_ckpt.operator.quarantine.quarantined_keys import KEYS_STATE
from pyspark_ckpt.operator.quarantine.releases import NO_RELEASES
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keys import key_groups_of
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows
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
from pyspark_ckpt.operator.table.undo import UndoableWrites
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.time import EpochClock

_INPUT_SHARE = 2
WRITES_SHARE = 4
"""Parts of the memory limit: half for rows, a quarter for writes, the rest for what they become."""


@dataclass(frozen=True, slots=True)
class OperatorFunction:
    """An operator on the executor.

    Spark ships a fresh copy of `processor` to every task. `schemas` has the DDL schemas that
    ``init`` uses, already parsed. `sources` is the text of the user's code of which executors have
    no file.
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
    keeping: QuarantinedRows | None = None

    def writes(self, memory_limit_bytes: int, directory: Path) -> EpochWrites:
        """Return an empty buffer for the writes of an epoch, which get a share of the memory."""
        kind = EpochWrites if self.keeping is None else UndoableWrites
        return kind(memory_limit_bytes // WRITES_SHARE, directory)

    def processing(
        self,
        handle: Handle,
        table: StateTable,
        clock: EpochClock,
        epoch: int,
        releases: Releases = NO_RELEASES,
        limits: QuarantineLimits = QuarantineLimits(),  # noqa: B008  # immutable
    ) -> EpochProcessing:
        """Return what runs the processor over an epoch that starts from a handle."""
        where = f"operator {handle.uid!r}, subtask {handle.subtask}"
        states = ProcessorHandle(table, clock, where, handle.states, self.schemas, self.migrations)
        quarantine: Callable[[], Quarantine] | None = None
        # A key may be quarantined, or a run before this one has quarantined one.
        if self.keeping is not None or any(state.name == KEYS_STATE for state in handle.states):
            key_groups = key_groups_of(handle.subtask, handle.parallelism, handle.max_parallelism)
            quarantine = partial(
                Quarantine, states, self.keeping, key_groups, limits, releases, epoch, where
            )
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
            quarantine,
        )

    def program(self) -> CapturedProgram:
        """Return how the operator was built, for captures."""
        operator = self.descriptor
        return described(
            cast("Calls", self.mode),  # of a query
            self.columns,
            None if self.broadcast is None else self.broadcast.columns,
            self.schemas,
            (operator.processor, operator.code_sha256),
            quarantines=self.keeping is not None,
        )

    def read_stream(
        self,
        batches: Iterable[pa.RecordBatch],
        subtask: int,
        memory_limit_bytes: int,
        scratch: Path,
        seen: SeenInput | None = None,
    ) -> EpochInput:
        """Read all input of an epoch of a query; its initial state was made before.

        The rows get a share of `memory_limit_bytes`, and `scratch` takes the rows that do not fit
        into the share.
        """
        sides = [] if self.wake is None else [self.wake.side]
        return self._read(batches, sides, self._parts(subtask, memory_limit_bytes, scratch), seen)

    def read_batch(
        self,
        batches: Iterable[pa.RecordBatch],
        subtask: int,
        memory_limit_bytes: int,
        scratch: Path,
    ) -> EpochInput:
        """Read all input of a run without a query, which begins with the initial state."""
        sides = [] if self.initial is None else [self.initial.side]
        return self._read(batches, sides, self._parts(subtask, memory_limit_bytes, scratch))

    def initial_parts(
        self,
        batches: Iterator[pa.RecordBatch],
        subtask: int,
        memory_limit_bytes: int,
        scratch: Path,
    ) -> Iterator[SentRows]:
        """Return an initial state that comes alone, in parts that fit into memory."""
        assert self.initial is not None  # it has rows
        arriving = map(self.initial.columns.arriving, batches)
        return self._parts(subtask, memory_limit_bytes, scratch).split(arriving)

    def _read(
        self,
        batches: Iterable[pa.RecordBatch],
        sides: list[SideRows],
        parts: InputParts,
        seen: SeenInput | None = None,
    ) -> EpochInput:
        broadcast = self.broadcast
        if broadcast is not None:
            sides = [*sides, broadcast.side]
        keyed, found = read_divided(batches, self.columns, sides, parts)
        if seen is not None:
            keyed = seen.parts(keyed)
            if broadcast is not None:
                seen.broadcast(found[broadcast.side.name])
        return EpochInput(
            keyed,
            None if broadcast is None else broadcast.received(found[broadcast.side.name]),
            None if self.initial is None else found.get(self.initial.side.name),
        )

    def _parts(self, subtask: int, memory_limit_bytes: int, scratch: Path) -> InputParts:
        operator = self.descriptor
        return InputParts(
            key_groups_of(subtask, operator.parallelism, operator.max_parallelism),
            memory_limit_bytes // _INPUT_SHARE,
            scratch,
        )
