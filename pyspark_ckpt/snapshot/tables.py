"""The typed tables of an operator: of each kind of state, of timers, of raw state."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, StateKind, kind_of
from pyspark_ckpt.operator.state.list import decode_chunk
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_START,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
)
from pyspark_ckpt.snapshot.columns import (
    TIME,
    ColumnNames,
    Numbers,
    StateValues,
    StoredKeys,
    Tuples,
    decoded,
    decoder_of,
    expiry_array,
    not_decoded,
)
from pyspark_ckpt.stored.binary_column import BinaryColumn
from pyspark_ckpt.stored.state import StoredRange
from pyspark_ckpt.values.message_pack import end_of_value

_NUMBER_BYTES = 4
_STREAM = struct.Struct(">H")
_PAIR = 0x92
"""The head of a MessagePack array of two."""


class _Columns(NamedTuple):
    """Entries in key order, as columns of bytes."""

    keys: BinaryColumn
    values: BinaryColumn

    @classmethod
    def of(cls, entries: ArrowEntries) -> _Columns:
        return cls(BinaryColumn.of(entries.keys), BinaryColumn.of(entries.values))


class Table(ABC):
    """A typed table over the entries of one subtask.

    Attributes
    ----------
    schema
        The Arrow schema of the table.
    stored
        Where its entries are.
    """

    schema: pa.Schema
    stored: StoredRange
    _what: str

    def batches(
        self, parts: Iterable[ArrowEntries], now_ms: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a subtask's entries.

        Parameters
        ----------
        parts
            Its entries in the range `stored`, in key order.
        now_ms
            The time at which expired entries are left out, ``None`` to keep them.

        Raises
        ------
        CorruptFileError
            If an entry does not fit its schema.
        """
        try:
            yield from self._batches(map(_Columns.of, parts), now_ms)
        except CkptError:
            raise
        except (ValueError, IndexError, TypeError, OverflowError, pa.ArrowException) as exc:
            raise not_decoded(self._what, exc) from exc

    @abstractmethod
    def _batches(self, parts: Iterable[_Columns], now_ms: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows; an error of any kind says that stored bytes are not of this library."""

    def _batch(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def state_table(
    key_schema: T.StructType, state: StateDescriptor, state_id: int, subtask: int, what: str
) -> Table:
    """Return the table of a state.

    The table has the `value_schema` of `state`, also for entries of earlier schemas.
    """
    kind = kind_of(state)
    if kind is StateKind.OPERATOR_LIST:
        return _OperatorListTable(state, state_id, subtask, what)
    if kind is StateKind.BROADCAST:
        return _BroadcastTable(state, state_id, what)
    if kind.entries is Entries.CHUNKS:
        return _ListTable(key_schema, state, state_id, what)
    if kind.entries is Entries.BY_MAP_KEY:
        return _MapTable(key_schema, state, state_id, what)
    return _ValueTable(key_schema, state, state_id, what)


class _StateTable(Table):
    """A table with the values of a state."""

    def __init__(self, state: StateDescriptor, what: str) -> None:
        self._what = what
        self._values = StateValues(state, what)
        self._is_stamped = state.is_stamped

    def _value_fields(self, names: ColumnNames) -> list[pa.Field]:
        fields = names.fields(self._values.schema, "value")
        return [*fields, names.own("expires_at", TIME)] if self._is_stamped else fields

    def _value_arrays(self, column: BinaryColumn, expires_ms: Numbers | None) -> list[pa.Array]:
        arrays = self._values.tuples.arrays(self._values.plain(column))
        return arrays if expires_ms is None else [*arrays, expiry_array(expires_ms)]

    def _visible(
        self, part: _Columns, now_ms: int | None
    ) -> tuple[BinaryColumn, BinaryColumn, Numbers | None]:
        """Return keys, values and times of expiry without the entries that are expired."""
        aged = self._values.aged(part.values)
        hidden = self._values.hidden(aged, now_ms)
        if hidden is None or aged.expires_ms is None:
            return part.keys, aged.values, aged.expires_ms
        return part.keys.take(~hidden), aged.values.take(~hidden), aged.expires_ms[~hidden]


class _ValueTable(_StateTable):
    """Value, reducing and aggregating state: one row per key."""

    def __init__(
        self, key_schema: T.StructType, state: StateDescriptor, state_id: int, what: str
    ) -> None:
        super().__init__(state, what)
        names = ColumnNames()
        self._keys = StoredKeys(key_schema, what)
        self.schema = pa.schema([*names.fields(key_schema, "key"), *self._value_fields(names)])
        self.stored = StoredRange.of_keyed_state(state_id)

    def _batches(self, parts: Iterable[_Columns], now_ms: int | None) -> Iterator[pa.RecordBatch]:
        for part in parts:
            keys, values, expires_ms = self._visible(part, now_ms)
            key_arrays = self._keys.arrays(self._keys.plain(keys.cut(KEY_START)))
            yield self._batch([*key_arrays, *self._value_arrays(values, expires_ms)])


class _MapTable(_StateTable):
    """Map state: one row per map entry."""

    def __init__(
        self, key_schema: T.StructType, state: StateDescriptor, state_id: int, what: str
    ) -> None:
        super().__init__(state, what)
        names = ColumnNames()
        map_key_schema = struct_type(state.map_key_schema or "")
        self._keys = StoredKeys(key_schema, what)
        self._map_keys = Tuples(map_key_schema, what)
        map_key = tuple.__class_getitem__(self._map_keys.types)
        self._decoder = decoder_of(tuple.__class_getitem__((self._keys.type, map_key)))
        self.schema = pa.schema(
            [
                *names.fields(key_schema, "key"),
                *names.fields(map_key_schema, "map_key"),
                *self._value_fields(names),
            ]
        )
        self.stored = StoredRange.of_keyed_state(state_id)

    def _batches(self, parts: Iterable[_Columns], now_ms: int | None) -> Iterator[pa.RecordBatch]:
        for part in parts:
            keys, values, expires_ms = self._visible(part, now_ms)
            pairs = decoded(self._decoder, keys.cut(KEY_START, mark=_PAIR), self._what)
            yield self._batch(
                [
                    *self._keys.arrays([key for key, _ in pairs]),
                    *self._map_keys.arrays([map_key for _, map_key in pairs]),
                    *self._value_arrays(values, expires_ms),
                ]
            )


class _Items:
    """The items of lists, as they are gathered from chunks."""

    def __init__(self) -> None:
        self.lists: list[bytes] = []
        self.positions: list[int] = []
        self.values: list[bytes] = []
        self.expires_ms: list[int] = []

    def add(self, of_list: bytes, first: int, items: list[bytes], expires_ms: int | None) -> None:
        self.lists += [of_list] * len(items)
        self.positions += range(first, first + len(items))
        self.values += items
        if expires_ms is not None:
            self.expires_ms += [expires_ms] * len(items)


class _ChunksTable(_StateTable):
    """State in chunks of many values: one row per item of a list.

    The entry at a list's own key counts its chunks, and comes before them.
    """

    def _items(
        self, parts: Iterable[_Columns], now_ms: int | None
    ) -> Iterator[tuple[_Items, Numbers | None]]:
        of_list: bytes | None = None
        position = 0
        for part in parts:
            keys, values, expires_ms = self._visible(part, now_ms)
            times = None if expires_ms is None else expires_ms.tolist()
            items = _Items()
            for row, (key, data) in enumerate(
                zip(keys.array().to_pylist(), values.array().to_pylist(), strict=True)
            ):
                is_chunk = self._is_chunk(key, of_list)
                list_key = key[:-_NUMBER_BYTES] if is_chunk else key
                if list_key != of_list:
                    of_list, position = list_key, 0
                if not is_chunk:
                    continue
                chunk = self._chunk(data)
                items.add(list_key, position, chunk, None if times is None else times[row])
                position += len(chunk)
            if items.values:
                yield items, None if times is None else np.array(items.expires_ms, np.int64)

    @abstractmethod
    def _is_chunk(self, key: bytes, of_list: bytes | None) -> bool:
        """Return whether an entry is a chunk, not the number of chunks."""

    def _chunk(self, data: bytes) -> list[bytes]:
        try:
            return decode_chunk(data)
        except msgspec.MsgspecError as exc:
            raise not_decoded(self._what, exc) from exc

    def _item_arrays(self, items: _Items, expires_ms: Numbers | None) -> list[pa.Array]:
        values = BinaryColumn.of(pa.array(items.values, pa.binary()))
        return [pa.array(items.positions, pa.int64()), *self._value_arrays(values, expires_ms)]


class _ListTable(_ChunksTable):
    def __init__(
        self, key_schema: T.StructType, state: StateDescriptor, state_id: int, what: str
    ) -> None:
        super().__init__(state, what)
        names = ColumnNames()
        self._keys = StoredKeys(key_schema, what)
        fields = names.fields(key_schema, "key")
        values = names.fields(self._values.schema, "value")
        position = names.own("position", pa.int64())
        own = [names.own("expires_at", TIME)] if self._is_stamped else []
        self.schema = pa.schema([*fields, position, *values, *own])
        self.stored = StoredRange.of_keyed_state(state_id)

    def _batches(self, parts: Iterable[_Columns], now_ms: int | None) -> Iterator[pa.RecordBatch]:
        for items, expires_ms in self._items(parts, now_ms):
            keys = BinaryColumn.of(pa.array(items.lists, pa.binary())).cut(KEY_START)
            key_arrays = self._keys.arrays(self._keys.plain(keys))
            yield self._batch([*key_arrays, *self._item_arrays(items, expires_ms)])

    def _is_chunk(self, key: bytes, of_list: bytes | None) -> bool:
        if of_list is not None and key.startswith(of_list):
            return True
        try:  # the number of a list's chunks may have expired before its last chunk
            return end_of_value(key, KEY_START) != len(key)
        except ValueError as exc:
            raise not_decoded(self._what, exc) from exc


class _OperatorListTable(_ChunksTable):
    def __init__(self, state: StateDescriptor, state_id: int, subtask: int, what: str) -> None:
        super().__init__(state, what)
        self._subtask = subtask
        names = ColumnNames()
        values = names.fields(self._values.schema, "value")
        own = [names.own("subtask", pa.int32()), names.own("position", pa.int64())]
        last = [names.own("expires_at", TIME)] if self._is_stamped else []
        self.schema = pa.schema([*own, *values, *last])
        self.stored = StoredRange.of_operator_state(state_id)

    def _batches(self, parts: Iterable[_Columns], now_ms: int | None) -> Iterator[pa.RecordBatch]:
        for items, expires_ms in self._items(parts, now_ms):
            subtasks = pa.array([self._subtask] * len(items.values), pa.int32())
            yield self._batch([subtasks, *self._item_arrays(items, expires_ms)])

    def _is_chunk(self, key: bytes, of_list: bytes | None) -> bool:  # noqa: ARG002
        return len(key) > len(OPERATOR_STATE) + 1


class _BroadcastTable(_StateTable):
    """Broadcast state: one row per entry of the map."""

    def __init__(self, state: StateDescriptor, state_id: int, what: str) -> None:
        super().__init__(state, what)
        names = ColumnNames()
        map_key_schema = struct_type(state.map_key_schema or "")
        self._map_keys = Tuples(map_key_schema, what)
        self.schema = pa.schema(
            [*names.fields(map_key_schema, "map_key"), *self._value_fields(names)]
        )
        self.stored = StoredRange.of_operator_state(state_id)

    def _batches(self, parts: Iterable[_Columns], now_ms: int | None) -> Iterator[pa.RecordBatch]:
        for part in parts:
            keys, values, expires_ms = self._visible(part, now_ms)
            map_keys = self._map_keys.plain(keys.cut(KEY_START))
            yield self._batch(
                [*self._map_keys.arrays(map_keys), *self._value_arrays(values, expires_ms)]
            )


class TimersTable(Table):
    """The timers of an operator: one row per timer."""

    def __init__(self, key_schema: T.StructType, time_mode: str, what: str) -> None:
        names = ColumnNames()
        self._what = what
        self._keys = StoredKeys(key_schema, what)
        fields = [*names.fields(key_schema, "key"), names.own("fires_at", TIME)]
        self.schema = pa.schema(fields, {"time_mode": time_mode})
        self.stored = StoredRange.of_timers()

    def _batches(
        self,
        parts: Iterable[_Columns],
        now_ms: int | None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        for part in parts:
            keys = self._keys.plain(part.keys.cut(KEY_START, TIME_BYTES))
            stored = part.keys.numbers(TIME_BYTES).astype(np.uint64)
            fires_ms = (stored ^ np.uint64(1 << 63)).view(np.int64)
            times = pa.array(fires_ms, pa.int64()).cast(TIME)
            yield self._batch([*self._keys.arrays(keys), times])


class RawTable(Table):
    """The raw state of an operator: one row per stream."""

    def __init__(self, subtask: int, what: str) -> None:
        self._subtask = subtask
        self._what = what
        fields = [("subtask", pa.int32()), ("stream", pa.int32()), ("data", pa.binary())]
        self.schema = pa.schema(fields)
        self.stored = StoredRange.of_raw_state()

    def _batches(
        self,
        parts: Iterable[_Columns],
        now_ms: int | None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        entries = (
            entry
            for part in parts
            for entry in zip(
                part.keys.array().to_pylist(), part.values.array().to_pylist(), strict=True
            )
        )
        for stream, chunks in groupby(entries, key=self._stream_of):
            data = b"".join(value for _, value in chunks)
            yield self._batch(
                [
                    pa.array([self._subtask], pa.int32()),
                    pa.array([stream], pa.int32()),
                    pa.array([data], pa.binary()),
                ]
            )

    def _stream_of(self, entry: tuple[Any, ...]) -> int:
        key = entry[0]
        if len(key) < len(RAW_STATE) + _STREAM.size:
            raise CorruptFileError(f"{self._what}: raw state has the stored key {key.hex()}")
        number: int = _STREAM.unpack_from(key, len(RAW_STATE))[0]
        return number
