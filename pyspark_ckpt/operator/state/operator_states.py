"""Operator state: belongs to a subtask, not to a key. List, broadcast and raw, as in Flink."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.table.stored_keys import OPERATOR_STATE, RAW_STATE
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.values.codec import Value

SPLIT = "split"
UNION = "union"
REDISTRIBUTIONS = (SPLIT, UNION)
"""What becomes of an operator list at another parallelism: dealt out, or whole to everyone."""

_STREAM_BYTES = 2
_CHUNK_BYTES = 4
RAW_CHUNK_BYTES = 1 << 20


class OperatorListState(ListState):
    """A list of tuples per subtask; the methods of :class:`ListState`, usable at any time."""

    def _prefix(self) -> bytes:
        return OPERATOR_STATE + self._state_id

    def _header(self) -> bytes | None:
        return self._table.get(self._prefix())

    def _chunk(self, number: bytes) -> bytes | None:
        return self._table.get(self._prefix() + number)


class BroadcastState(MapState):
    """A map that is the same in every subtask; the methods of :class:`MapState`.

    Written in ``handleBroadcastRows`` (or ``init``), where every subtask sees the same rows; read
    anywhere. Every subtask must write the same, since a restore takes one copy for all.
    """

    def updateValue(self, key: Value, value: Value) -> None:
        """Set an entry."""
        self._check_outside_keys("updateValue")
        super().updateValue(key, value)

    def removeKey(self, key: Value) -> None:
        """Remove an entry."""
        self._check_outside_keys("removeKey")
        super().removeKey(key)

    def clear(self) -> None:
        """Remove all entries."""
        self._check_outside_keys("clear")
        super().clear()

    def _check_outside_keys(self, method: str) -> None:
        if self._table.current.key_group is not None:
            raise StateUseError(
                f"broadcast state was changed ({method}) while a key was handled: change it in "
                "handleBroadcastRows, where all subtasks see the same rows"
            )

    def _prefix(self) -> bytes:
        return OPERATOR_STATE + self._state_id


class _RawOutput(io.BytesIO):
    def close(self) -> None:
        """Keep what was written: a processor may use the stream in a ``with`` block."""


class StateSnapshotContext:
    """What a processor's ``snapshotState`` gets at the barrier."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._output: _RawOutput | None = None

    def getEpoch(self) -> int:
        """Return the epoch that ends."""
        return self._epoch

    def getRawOperatorStateOutput(self) -> BinaryIO:
        """Return the stream whose whole content is the subtask's new raw state."""
        if self._output is None:
            self._output = _RawOutput()
        return self._output

    @property
    def written(self) -> bytes | None:
        """The new raw state, ``None`` if the processor asked for no stream."""
        return None if self._output is None else self._output.getvalue()


class StateInitializationContext:
    """What a processor's ``restoreState`` gets before the first row of an epoch."""

    def __init__(self, streams: list[bytes]) -> None:
        self._streams = streams

    def isRestored(self) -> bool:
        """Tell whether there is raw state."""
        return bool(self._streams)

    def getRawOperatorStateInputs(self) -> Iterator[BinaryIO]:
        """Return the stored streams: one, or after a change of parallelism any number."""
        return iter([io.BytesIO(stream) for stream in self._streams])


class RawState:
    """The subtask's raw state in the table."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def streams(self) -> list[bytes]:
        """Return the stored streams: none, one, or after a change of parallelism any number."""
        entries = self._table.scan(RAW_STATE)
        end = len(RAW_STATE) + _STREAM_BYTES
        return [
            b"".join(value for _, value in chunks)
            for _, chunks in groupby(entries, key=lambda entry: entry[0][:end])
        ]

    def restore_into(self, processor: Any) -> None:
        """Call the processor's ``restoreState``, if it has one."""
        if hasattr(processor, "restoreState"):
            processor.restoreState(StateInitializationContext(self.streams()))

    def snapshot_of(self, processor: Any, epoch: int) -> None:
        """Call the processor's ``snapshotState``, if it has one, and keep what it wrote."""
        if not hasattr(processor, "snapshotState"):
            return
        context = StateSnapshotContext(epoch)
        processor.snapshotState(context)
        written = context.written
        if written is not None and [written] != self.streams():
            self._replace(written)

    def _replace(self, content: bytes) -> None:
        for key, _ in list(self._table.scan(RAW_STATE)):
            self._table.write_below(RAW_STATE, key, None)
        stream = RAW_STATE + bytes(_STREAM_BYTES)
        for number, start in enumerate(range(0, max(len(content), 1), RAW_CHUNK_BYTES)):
            key = stream + number.to_bytes(_CHUNK_BYTES, "big")
            self._table.write_below(RAW_STATE, key, content[start : start + RAW_CHUNK_BYTES])
