"""What views of an open snapshot read from: its operators, and the entries of their subtasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import types as T

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.pin import Pin, ReaderPin
from pyspark_ckpt.stored.state import StoredRange, StoredState
from pyspark_ckpt.stored.unify import UnifiedStates


class SnapshotReader:
    """Reads the stored entries of a checkpoint or savepoint until it is closed."""

    def __init__(self, source: RestoreSource, pin: Pin | None = None) -> None:
        self.source = source
        self._is_open = True
        self._pin: Pin = ReaderPin(source) if pin is None else pin

    def close(self) -> None:
        """Read no more, and let the files be deleted."""
        self._is_open = False
        self._pin.close()

    def entries(
        self, handle: Handle, stored: StoredRange, on_step: Callable[[], None] = lambda: None
    ) -> Iterator[ArrowEntries]:
        """Yield the stored entries of a subtask in a range; `on_step` may raise to end it.

        ``CheckpointNotFoundError`` is raised if the snapshot was deleted while nothing was read for
        long, as on a suspended machine.
        """
        if not self._is_open:
            raise StateUseError(
                f"{self.source.path} is closed: open it again with location(path).state()"
            )
        self._pin.check()
        with self.source.reading():
            yield from StoredState(self.source.storage, handle).scan(stored, on_step)

    def now_ms(self, time: TtlTime) -> int:
        """Return the time of the snapshot's epoch in which entries age."""
        if time is TtlTime.EVENT_TIME:
            return self.source.metadata.watermark_ms
        return self.source.times_ms["batchTimestampMs"]

    def operator(self, uid: str) -> StoredOperator:
        """Return one operator."""
        operators = {each.uid: each for each in self.source.metadata.operators}
        if uid not in operators:
            raise StateUseError(
                f"{self.source.path} has no operator {uid!r}: it has "
                f"{', '.join(map(repr, operators)) or 'none'}"
            )
        return StoredOperator(operators[uid], f"{self.source.path}, operator {uid!r}")


@dataclass(frozen=True)
class StoredOperator:
    """One operator of a snapshot."""

    metadata: OperatorMetadata
    what: str

    @cached_property
    def key_schema(self) -> T.StructType:
        """The schema of its key columns."""
        return struct_type(self.metadata.key_schema)

    @cached_property
    def handles(self) -> Sequence[Handle]:
        """The handles of its subtasks, in their order."""
        return sorted(self.metadata.handles, key=lambda handle: handle.subtask)

    @cached_property
    def states(self) -> UnifiedStates:
        """Its states as the newest subtask has them."""
        return UnifiedStates(self.metadata.uid, self.handles)

    def ids_of(self, name: str) -> Mapping[int, int]:
        """Return the id that a state has in each subtask that has it."""
        return {
            handle.subtask: state_id
            for handle in self.handles
            for state_id, state in enumerate(handle.states)
            if state.name == name and state.sweeps is None
        }
