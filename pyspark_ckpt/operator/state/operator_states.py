"""Operator state: belongs to a subtask, not to a key. List, broadcast and raw, as in Flink."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO

from pyspark_ckpt.errors import StateUseError, StateValueError
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.table.stored_keys import OPERATOR_STATE, RAW_STATE
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.values.codec import Value

_STREAM_BYTES = 2
_CHUNK_BYTES = 4
RAW_CHUNK_BYTES = 1 << 20
MAX_STREAMS = 1 << 16


class OperatorListState(ListState):
    """A list of tuples per subtask, with the methods of :class:`ListState`, usable at any time.

    ``handle.getOperatorListState`` returns it in ``init``. A processor calls its methods on
    executors. Changes are durable when the epoch is committed.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    state_id : bytes
        Which state of the table this is.
    codec : Codec
        Encodes and decodes the list's tuples.
    aging : Aging, optional
        How entries grow old; without it they never expire.

    Examples
    --------
    >>> seen = handle.getOperatorListState("seen", "file string")
    >>> seen.appendValue(("a.json",))
    >>> list(seen.get())
    [('a.json',)]
    """

    def _prefix(self) -> bytes:
        return OPERATOR_STATE + self._state_id

    def _header(self) -> bytes | None:
        return self._table.get(self._prefix())

    def _chunk(self, number: bytes) -> bytes | None:
        return self._table.get(self._prefix() + number)


class BroadcastState(MapState):
    """A map that is the same in every subtask, with the methods of :class:`MapState`.

    ``handle.getBroadcastState`` returns it in ``init``. A processor changes it in
    ``handleBroadcastRows`` or ``init``, where every subtask sees the same rows, and reads it
    anywhere. Every subtask must write the same, because a restore takes one copy for all. Changes
    are durable when the epoch is committed.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    state_id : bytes
        Which state of the table this is.
    key_codec : Codec
        Encodes and decodes the map's keys.
    codec : Codec
        Encodes and decodes the map's values.
    aging : Aging, optional
        How entries grow old; without it they never expire.
    row_type : type of tuple
        Class of the values that :meth:`getValue` returns.

    Examples
    --------
    >>> rules = handle.getBroadcastState("rules", "name string", "limit long")
    >>> rules.updateValue(("calls",), (10,))
    >>> rules.getValue(("calls",))
    Row(limit=10)
    """

    def updateValue(self, key: Value, value: Value) -> None:
        """Set an entry.

        Parameters
        ----------
        key : tuple
            One value per field of the map's key schema.
        value : tuple
            One value per field of the value schema.

        Raises
        ------
        StateUseError
            If keys are handled; change broadcast state in ``handleBroadcastRows``.
        StateValueError
            If the key or value does not fit the schema.

        Examples
        --------
        >>> rules = handle.getBroadcastState("rules", "name string", "limit long")
        >>> rules.updateValue(("calls",), (10,))
        >>> rules.containsKey(("calls",))
        True
        """
        self._check_outside_keys("updateValue")
        super().updateValue(key, value)

    def removeKey(self, key: Value) -> None:
        """Remove an entry; has no effect if there is none.

        Parameters
        ----------
        key : tuple
            One value per field of the map's key schema.

        Raises
        ------
        StateUseError
            If keys are handled; change broadcast state in ``handleBroadcastRows``.

        Examples
        --------
        >>> rules = handle.getBroadcastState("rules", "name string", "limit long")
        >>> rules.updateValue(("calls",), (10,))
        >>> rules.removeKey(("calls",))
        >>> rules.exists()
        False
        """
        self._check_outside_keys("removeKey")
        super().removeKey(key)

    def clear(self) -> None:
        """Remove all entries.

        Raises
        ------
        StateUseError
            If keys are handled; change broadcast state in ``handleBroadcastRows``.

        Examples
        --------
        >>> rules = handle.getBroadcastState("rules", "name string", "limit long")
        >>> rules.updateValue(("calls",), (10,))
        >>> rules.clear()
        >>> rules.exists()
        False
        """
        self._check_outside_keys("clear")
        super().clear()

    def _check_outside_keys(self, method: str) -> None:
        if not self._table.current.is_outside:
            raise StateUseError(
                f"broadcast state was changed ({method}) while keys were handled: change it in "
                "handleBroadcastRows, where all subtasks see the same rows"
            )

    def _stored(self, below: bytes) -> bytes | None:
        return self._table.get(self._prefix() + below)

    def _prefix(self) -> bytes:
        return OPERATOR_STATE + self._state_id


class _RawOutput(io.BytesIO):
    def close(self) -> None:
        """Keep what was written: a processor may use the stream in a ``with`` block."""


class StateSnapshotContext:
    """What a processor's ``snapshotState`` gets at the barrier, on an executor.

    Parameters
    ----------
    epoch : int
        The epoch that ends.

    Examples
    --------
    >>> class Counter:
    ...     def snapshotState(self, context):
    ...         context.getRawOperatorStateOutput().write(b"3 files")
    >>> context = StateSnapshotContext(7)
    >>> Counter().snapshotState(context)
    >>> context.written
    b'3 files'
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._output: _RawOutput | None = None

    def getEpoch(self) -> int:
        """Return the epoch that ends.

        Returns
        -------
        int
            Spark's batch id.

        Examples
        --------
        >>> StateSnapshotContext(7).getEpoch()
        7
        """
        return self._epoch

    def getRawOperatorStateOutput(self) -> BinaryIO:
        """Return the stream whose whole content is the subtask's new raw state.

        Returns
        -------
        binary file
            The same in each call. Without a call the raw state stays as it is.

        Examples
        --------
        >>> context = StateSnapshotContext(7)
        >>> with context.getRawOperatorStateOutput() as stream:
        ...     stream.write(b"3 files")
        7
        """
        if self._output is None:
            self._output = _RawOutput()
        return self._output

    @property
    def written(self) -> bytes | None:
        """The new raw state, ``None`` if the processor did not ask for a stream."""
        return None if self._output is None else self._output.getvalue()


class StateInitializationContext:
    """What a processor's ``restoreState`` gets on an executor, before the first row of an epoch.

    Parameters
    ----------
    streams : list of bytes
        The stored streams of raw state.

    Examples
    --------
    >>> class Counter:
    ...     def restoreState(self, context):
    ...         self.streams = [stream.read() for stream in context.getRawOperatorStateInputs()]
    >>> counter = Counter()
    >>> counter.restoreState(StateInitializationContext([b"3 files"]))
    >>> counter.streams
    [b'3 files']
    """

    def __init__(self, streams: list[bytes]) -> None:
        self._streams = streams

    def isRestored(self) -> bool:
        """Return whether there is raw state.

        Returns
        -------
        bool
            False in the first epoch, and if no ``snapshotState`` ever asked for a stream.

        Examples
        --------
        >>> StateInitializationContext([]).isRestored()
        False
        """
        return bool(self._streams)

    def getRawOperatorStateInputs(self) -> Iterator[BinaryIO]:
        """Return the stored streams.

        Returns
        -------
        iterator of binary file
            One stream; any number after a change of parallelism.

        Examples
        --------
        >>> context = StateInitializationContext([b"3 files"])
        >>> [stream.read() for stream in context.getRawOperatorStateInputs()]
        [b'3 files']
        """
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
        if written is None or [written] == self.streams():
            return
        for key in [key for key, _ in self._table.scan(RAW_STATE)]:
            self._table.write_below(RAW_STATE, key, None)
        for key, chunk in zip(*raw_entries(0, written), strict=True):
            self._table.write_below(RAW_STATE, key, chunk)


def raw_entries(stream: int, content: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the stored keys and the chunks of one stream of raw state."""
    if not 0 <= stream < MAX_STREAMS:
        raise StateValueError(f"stream is {stream}: give a number from 0 to {MAX_STREAMS - 1}")
    head = RAW_STATE + stream.to_bytes(_STREAM_BYTES, "big")
    starts = range(0, max(len(content), 1), RAW_CHUNK_BYTES)
    keys = [head + number.to_bytes(_CHUNK_BYTES, "big") for number in range(len(starts))]
    return keys, [content[start : start + RAW_CHUNK_BYTES] for start in starts]
