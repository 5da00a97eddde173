"""Records an epoch of a subtask: its rows, the state that it works on, its writes and output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.capture.capture_file import SectionName
from pyspark_ckpt.operator.quarantine.quarantine import OnError, Quarantine
from pyspark_ckpt.operator.rows.mode import Part
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import FREE
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    KEY_START,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
    TIME_INDEX,
    TIMERS_ID,
    is_keyed,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import EpochWrites, in_frames
from pyspark_ckpt.values.message_pack import end_of_value
from state_backends import StateBackend

STEP_COLUMN = "__ckpt_step"

KEY_COLUMN = "__ckpt_key"
"""Columns of captured output: the method that yielded a row, and the stored key it was for."""

_CODEC = "zstd"
_NO_LIMIT = 1 << 62
_AT_ONCE = 10_000
Entry = tuple[bytes, bytes | None]


class Origins(Protocol):
    """The calls that the output comes from."""

    step: str

    def stored_key_of(self, row: int) -> StoredKey | None:
        """Return the stored key of the call that a row is of."""

    def place_of(self, row: int) -> int:
        """Return the place among the keys of the call that a row is of."""


class Processing(Protocol):
    """What runs the processor over an epoch."""

    states: ProcessorHandle
    output: Any
    quarantine: Quarantine | None
    on_quarantining: OnError | None
    part_under_way: Part | None
    timers_under_way: Sequence[StoredKey]
    completed_checkpoint_id: int | None


class SeenInput(Protocol):
    """Sees the input of an epoch while it is read."""

    def parts(self, keyed: Iterator[SentRows]) -> Iterator[SentRows]:
        """Yield the parts of the keyed rows as they are."""

    def broadcast(self, sent: SentRows) -> None:
        """See the broadcast rows."""


class Recording(Protocol):
    """Sees an epoch of a subtask, and perhaps records it."""

    @property
    def seen(self) -> SeenInput | None:
        """What sees the input."""

    def table(self, backend: StateBackend, writes: EpochWrites) -> StateTable:
        """Return the epoch's view of the state."""

    def watched(
        self, processing: Processing, output: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output of an epoch as it is, and record the epoch."""


class NotRecorded:
    """Records nothing."""

    seen = None

    def table(self, backend: StateBackend, writes: EpochWrites) -> StateTable:
        """Return the epoch's view of the state."""
        return StateTable(backend, writes=writes)

    def watched(
        self,
        processing: Processing,  # noqa: ARG002
        output: Iterator[pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        """Return the output of an epoch as it is."""
        return output


NOT_RECORDED = NotRecorded()


class EpochRecorder:
    """Records all of an epoch, in memory.

    Nothing is kept once the epoch exceeds `limit_bytes`, and `left_out` says so. Once all output
    has left, `touched` has the keys that were worked on, `before` and `writes` their entries, and
    `states_after` the states.
    """

    def __init__(
        self,
        states: Sequence[StateDescriptor],
        names: Sequence[str],
        limit_bytes: int = _NO_LIMIT,
    ) -> None:
        self._states = states
        self._names = list(names)
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._backend: StateBackend | None = None
        self._table: NotingTable | None = None
        self.left_out: str | None = None
        self.rows: list[SentRows] = []
        self.broadcast_rows: SentRows = []
        self.output: SentRows = []
        self.before: dict[bytes, bytes] = {}
        self.writes: dict[bytes, bytes | None] = {}
        self.touched: dict[StoredKey, None] = {}
        self.states_after: tuple[StateDescriptor, ...] = ()

    @property
    def seen(self) -> SeenInput:
        """What sees the input: this object."""
        return self

    def parts(self, keyed: Iterator[SentRows]) -> Iterator[SentRows]:
        """Yield the parts of the keyed rows as they are, and keep them."""
        for batches in keyed:
            kept = [batch.select(self._names) for batch in batches]
            self._count(sum(batch.nbytes for batch in kept), "rows")
            if self.left_out is None:
                self.rows.append(kept)
            yield batches

    def broadcast(self, sent: SentRows) -> None:
        """Keep the broadcast rows."""
        self._count(sum(batch.nbytes for batch in sent), "broadcast rows")
        if self.left_out is None:
            self.broadcast_rows = list(sent)

    def table(self, backend: StateBackend, writes: EpochWrites) -> StateTable:
        """Return a view of the state that notes the keys that are worked on."""
        self._backend = backend
        self._table = NotingTable(backend, writes)
        return self._table

    def watched(
        self, processing: Processing, output: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output of an epoch as it is, and keep it."""
        for batch in output:
            if self.left_out is None:
                kept = with_origins(batch, processing.output.origins)
                self._count(kept.nbytes, "output")
                self.output.append(kept)
            yield batch
        self.end(processing)

    def end(self, processing: Processing, *, writes: bool = True) -> None:
        """Keep the state of the keys that were worked on; with `writes`, what the epoch wrote."""
        assert self._table is not None
        assert self._backend is not None
        self.states_after = processing.states.descriptors
        self.touched = dict(self._table.touched)
        if processing.quarantine is not None:
            self.touched.update(dict.fromkeys(processing.quarantine.quarantined))
        for key, value in stored_entries(self._backend, self._states, self.touched):
            self.before[key] = value
            if self._count(len(key) + len(value), "state") is not None:
                break
        if writes and self.left_out is None:
            for part in self._table.changes():
                for key, write in zip(part.keys, part.values, strict=True):
                    if is_of(key, self.touched):
                        self.writes[key] = write
                        self._count(len(key) + len(write or b""), "writes")
        if self.left_out is not None:
            self._clear()

    def sections(self) -> dict[SectionName, bytes]:
        """Return what was kept, as the sections of a capture."""
        rows = [batch for batches in self.rows for batch in batches]
        contents = {
            SectionName.KEYS: in_changes((b"".join(key), b"") for key in self.touched),
            SectionName.ROWS: in_arrow(rows),
            SectionName.BROADCAST: in_arrow(self.broadcast_rows),
            SectionName.BEFORE: in_changes(self.before.items()),
            SectionName.AFTER: in_changes(self.writes.items()),
            SectionName.OUTPUT: in_arrow(self.output),
        }
        return {name: data for name, data in contents.items() if data}

    def _count(self, size_bytes: int, what: str) -> str | None:
        """Count bytes; return why the epoch is left out, if there are too many."""
        self._size_bytes += size_bytes
        if self._size_bytes > self._limit_bytes and self.left_out is None:
            self.left_out = (
                f"with its {what} it has more than {self._limit_bytes} bytes: capture an epoch "
                "that has less"
            )
            self._clear()
        return self.left_out

    def _clear(self) -> None:
        self.rows, self.broadcast_rows, self.output = [], [], []
        self.touched.clear()
        self.before.clear()
        self.writes.clear()


def with_origins(batch: pa.RecordBatch, origins: Origins) -> pa.RecordBatch:
    """Return output with the method and the stored key of the call that yielded each row."""
    keys = [origins.stored_key_of(row) for row in range(batch.num_rows)]
    stored = [None if key is None else b"".join(key) for key in keys]
    return pa.RecordBatch.from_arrays(
        [
            *batch.columns,
            pa.array([origins.step] * batch.num_rows, pa.string()),
            pa.array(stored, pa.binary()),
        ],
        names=[*batch.schema.names, STEP_COLUMN, KEY_COLUMN],
    )


def in_arrow(batches: SentRows) -> bytes:
    """Return record batches as an Arrow IPC stream; nothing without a batch."""
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    codec = _CODEC if pa.Codec.is_available(_CODEC) else None
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def in_changes(entries: Iterable[Entry]) -> bytes:
    """Return entries as a change file; nothing without an entry."""
    ordered = sorted(entries, key=lambda entry: entry[0])
    return b"".join(encode_changes(in_frames(iter(ordered)))) if ordered else b""


class NotingTable(StateTable):
    """A table that notes the keys that the epoch works on, in :attr:`touched`."""

    def __init__(self, backend: StateBackend, writes: EpochWrites) -> None:
        self.touched: dict[StoredKey, None] = {}
        super().__init__(backend, writes=writes)

    def begin_part(self, keys: Sequence[StoredKey]) -> None:
        """Continue with another part of the epoch's keys."""
        self.touched.update(dict.fromkeys(keys))
        super().begin_part(keys)


def stored_entries(
    backend: StateBackend, states: Sequence[StateDescriptor], touched: Iterable[StoredKey]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the stored entries of some keys, and all entries that belong to no key.

    The timers in the order of their time are left out, see :func:`times_of`.
    """
    for prefix in (OPERATOR_STATE, RAW_STATE):
        yield from backend.scan(prefix)
    keys = list(touched)
    for number, state in enumerate(states):
        if state.kind == FREE or state.sweeps is not None:
            continue
        kind = kind_of(state)
        if kind.movement is Movement.WITH_KEY:
            state_id = bytes([number])
            is_one = kind.entries is Entries.ONE
            yield from (_single if is_one else _below)(backend, state_id, keys)
    yield from _below(backend, TIMERS_ID, keys)


def _single(
    backend: StateBackend, state_id: bytes, keys: Sequence[StoredKey]
) -> Iterator[tuple[bytes, bytes]]:
    for start in range(0, len(keys), _AT_ONCE):
        stored = [group + state_id + key for group, key in keys[start : start + _AT_ONCE]]
        for each, value in zip(stored, backend.get_many(stored), strict=True):
            if value is not None:
                yield each, value


def _below(
    backend: StateBackend, state_id: bytes, keys: Sequence[StoredKey]
) -> Iterator[tuple[bytes, bytes]]:
    for group, key in keys:
        yield from backend.scan(group + state_id + key)


def is_of(stored_key: bytes, touched: dict[StoredKey, None]) -> bool:
    """Return whether an entry is of one of some keys, or of no key; never of the times index."""
    if is_keyed(stored_key):
        return key_of(stored_key) in touched
    return not stored_key.startswith(TIME_INDEX)


def key_of(stored_key: bytes) -> StoredKey:
    """Return the key of a keyed entry."""
    end = end_of_value(stored_key, KEY_START)
    return stored_key[:KEY_GROUP_BYTES], stored_key[KEY_START:end]


def times_of(stored_keys: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the timers among some entries as the index by time has them."""
    for stored in stored_keys:
        if is_keyed(stored) and stored[KEY_GROUP_BYTES:KEY_START] == TIMERS_ID:
            time, key = stored[-TIME_BYTES:], stored[KEY_START:-TIME_BYTES]
            yield TIME_INDEX + time + stored[:KEY_GROUP_BYTES] + key
