"""Changed entries, timers and raw state as rows with old and new values, in their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Entries, Movement, StateKind, kind_of
from pyspark_ckpt.operator.state.list import decode_chunk
from pyspark_ckpt.operator.table.catalog import same_schema
from pyspark_ckpt.operator.table.time_to_live import STAMP_BYTES, STAMP_MARKS
from pyspark_ckpt.operator.values.message_pack import end_of_value
from pyspark_ckpt.snapshot.binary_columns import BinaryColumn
from pyspark_ckpt.snapshot.changed_entries import (
    HEAD_BYTES,
    RAW,
    TIMERS,
    Change,
    Place,
    Side,
    are_related,
)
from pyspark_ckpt.snapshot.columns import ColumnNames, python_rows
from pyspark_ckpt.snapshot.entries import StoredEntries, stored_entries
from pyspark_ckpt.snapshot.tables import RawTable, TimersTable, state_table

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_POSITION = T.StructType([T.StructField("position", T.LongType())])
_pack = msgspec.msgpack.Encoder().encode

_Stream = tuple[int, int]
"""Subtask and number of a stream of raw state."""

_Row = dict[str, Any]

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The rows of one state, of timers or of raw state that two sides have otherwise.

    `kinds` has ``added``, ``removed`` or ``changed`` for each row. `named` begins with the key
    columns of the operator, and `key_columns` is their number, 0 if the state is not of a key.
    `old` and `new` have nulls where a side has no such row.
    """

    kinds: pa.Array
    named: pa.Table
    key_columns: int
    old: pa.Table
    new: pa.Table

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.kinds)

    def rows(self) -> Iterator[tuple[str, _Row, _Row | None, _Row | None]]:
        """Yield the kind of each row, what names it, and its values on both sides."""
        for start in range(0, len(self), _ROWS_AT_ONCE):
            kinds = self.kinds.slice(start, _ROWS_AT_ONCE).to_pylist()
            no_columns: list[_Row] = [{} for _ in kinds]
            sides = [
                python_rows(table.slice(start, _ROWS_AT_ONCE)) if table.column_names else no_columns
                for table in (self.named, self.old, self.new)
            ]
            for kind, named, old, new in zip(kinds, *sides, strict=True):
                yield kind, named, None if kind == ADDED else old, None if kind == REMOVED else new

    def table(self) -> pa.Table:
        """Return one table: ``change``, what names a row, and values with ``old_`` and ``new_``."""
        names = ColumnNames()
        columns = {names.name("change", "_change"): self.kinds}
        for prefix, otherwise, table in (
            ("", "key_", self.named),
            ("old_", "old_value_", self.old),
            ("new_", "new_value_", self.new),
        ):
            for name in table.column_names:
                columns[names.name(prefix + name, otherwise + name)] = table[name]
        return pa.table(columns)


def as_rows(
    changes: Mapping[Place, Change], state: StateDescriptor, old: Side, new: Side
) -> dict[Place, Change]:
    """Return the changes of one state by the rows of its table: a list has a row per item."""
    if kind_of(state).entries is not Entries.CHUNKS:
        return dict(changes)
    is_keyed = kind_of(state).movement is Movement.WITH_KEY
    lists = {(place.subtask, _list_key(place.key, is_keyed=is_keyed)) for place in changes}
    before, after = (_items(side, state.name, lists, is_keyed=is_keyed) for side in (old, new))
    return {
        place: Change(before.get(place), after.get(place))
        for place in before.keys() | after.keys()
        if before.get(place) != after.get(place)
    }


def _list_key(key: bytes, *, is_keyed: bool) -> bytes:
    return key[: end_of_value(key, 0)] if is_keyed else b""


def _items(
    side: Side, name: str, lists: set[tuple[int | None, bytes]], *, is_keyed: bool
) -> dict[Place, bytes]:
    """Return the items of some lists, each with the time of its chunk, by list and position."""
    if not lists:
        return {}
    chunks: dict[tuple[int | None, bytes], list[tuple[bytes, bytes]]] = {}
    for place, value in side.entries():
        if place.state == name:
            of_list = place.subtask, _list_key(place.key, is_keyed=is_keyed)
            if of_list in lists and len(place.key) > len(of_list[1]):
                chunks.setdefault(of_list, []).append((place.key, value))
    items: dict[Place, bytes] = {}
    for (subtask, key), found in chunks.items():
        position = 0
        for _, value in sorted(found):
            stamp = value[:STAMP_BYTES] if value[0] in STAMP_MARKS else b""
            for item in decode_chunk(value[len(stamp) :]):
                items[Place(name, subtask, key + _pack((position,)))] = stamp + item
                position += 1
    return items


def changed_rows(
    changes: Mapping[Place, Change],
    key_schema: T.StructType,
    states: tuple[StateDescriptor | None, StateDescriptor | None],
    what: str,
) -> ChangedRows:
    """Return changed rows with their values.

    `changes` comes from ``as_rows``. At least one of the two `states` is not ``None``.
    """
    old, new = states
    if old is not None and new is not None:
        _check_related(old, new, what)
    first = old or new
    assert first is not None  # one of them has the state
    places = sorted(changes, key=lambda place: (place.key, place.subtask or 0))
    before = [changes[place].old for place in places]
    after = [changes[place].new for place in places]
    keys, old_values = _decoded(places, before, key_schema, old or first, what)
    later_keys, new_values = _decoded(places, after, key_schema, new or first, what)
    is_new = pa.array([value is None for value in before], pa.bool_())
    # Each row has its key on one of the two sides.
    named = pa.table(
        {name: _either(is_new, later_keys[name], keys[name]) for name in keys.column_names}
    )
    key_columns = len(key_schema.fields) if kind_of(first).movement is Movement.WITH_KEY else 0
    if kind_of(first) is StateKind.OPERATOR_LIST:
        subtasks = pa.array([place.subtask for place in places], pa.int32())
        named = named.add_column(0, "subtask", subtasks)
    kinds = pa.array(map(kind_of_change, before, after), pa.string())
    changed = ChangedRows(kinds, named, key_columns, old_values, new_values)
    if old is None or new is None or not places:
        return changed
    if not old.earlier_schemas and not new.earlier_schemas:
        return changed
    return _without_equal(changed)


def kind_of_change(before: bytes | None, after: bytes | None) -> str:
    """Return whether an entry was added, removed or changed."""
    return ADDED if before is None else REMOVED if after is None else CHANGED


def _either(
    condition: pa.Array, when_true: pa.ChunkedArray, otherwise: pa.ChunkedArray
) -> pa.Array:
    """Return a value of one of two columns per row; also for nested types."""
    rows = len(condition)
    both = pa.chunked_array([*when_true.chunks, *otherwise.chunks], when_true.type)
    places = [row if each else rows + row for row, each in enumerate(condition.to_pylist())]
    return both.take(pa.array(places, pa.int64()))


def _decoded(
    places: Sequence[Place],
    values: Sequence[bytes | None],
    key_schema: T.StructType,
    state: StateDescriptor,
    what: str,
) -> tuple[pa.Table, pa.Table]:
    """Return the key and value columns of rows, nulls where there is no value."""
    if kind_of(state).entries is Entries.CHUNKS:  # its rows are like those of a map by position
        is_keyed = kind_of(state).movement is Movement.WITH_KEY
        kind = StateKind.MAP if is_keyed else StateKind.BROADCAST
        state = msgspec.structs.replace(
            state, kind=kind.stored_name, map_key_schema=_POSITION.json()
        )
    table = state_table(key_schema, state, 0, 0, what)
    there = [row for row, value in enumerate(values) if value is not None]
    entries = StoredEntries(
        _column([bytes(HEAD_BYTES) + places[row].key for row in there]),
        _column([values[row] for row in there]),
    )
    batches = table.batches([entries], None) if there else ()
    rows = pa.Table.from_batches(batches, table.schema)
    number = {row: place for place, row in enumerate(there)}
    spread = pa.array([number.get(row) for row in range(len(values))], pa.int64())
    whole = rows.take(spread) if there else _nulls(table.schema, len(values))
    key_columns = 0 if kind_of(state) is StateKind.BROADCAST else len(key_schema.fields)
    if state.map_key_schema is not None:
        key_columns += len(msgspec.json.decode(state.map_key_schema)["fields"])
    names = whole.column_names
    return whole.select(names[:key_columns]), whole.select(names[key_columns:])


def _nulls(schema: pa.Schema, rows: int) -> pa.Table:
    return pa.table([pa.nulls(rows, field.type) for field in schema], names=schema.names)


def _column(values: Sequence[bytes | None]) -> BinaryColumn:
    return BinaryColumn.of(pa.array(values, pa.binary()))


def _without_equal(changed: ChangedRows) -> ChangedRows:
    """Leave out entries that were only written again with another schema."""
    if {*changed.old.column_names} != {*changed.new.column_names}:
        return changed
    differs = pa.array(
        # By their texts, because NaN is equal to NaN here.
        (old != new and repr(old) != repr(new) for _, _, old, new in changed.rows()),
        pa.bool_(),
    )
    named, old, new = (
        table.filter(differs) if table.column_names else table
        for table in (changed.named, changed.old, changed.new)
    )
    return ChangedRows(changed.kinds.filter(differs), named, changed.key_columns, old, new)


def _check_related(old: StateDescriptor, new: StateDescriptor, what: str) -> None:
    """Raise if equal stored bytes could mean different values."""
    if (
        old.kind != new.kind
        or not same_schema(old.map_key_schema, new.map_key_schema)
        or not are_related(old, new)
    ):
        raise IncompatibleStateError(
            f"{what}: the two snapshots store the state in forms that have nothing in common "
            f"({old.kind} {old.value_schema} and {new.kind} {new.value_schema}): read each of them "
            "with open_state"
        )


def changed_timers(
    changes: Mapping[Place, Change], key_schema: T.StructType, time_mode: str, what: str
) -> ChangedRows:
    """Return the timers that only one of two snapshots has.

    The rows are ``added`` or ``removed``, and have no values, because a key and a time name a
    timer.
    """
    places = sorted(place for place in changes if place.state == TIMERS)
    # A timer has no value, so it never changes.
    kinds = [ADDED if changes[place].old is None else REMOVED for place in places]
    table = TimersTable(key_schema, time_mode, what)
    keys = pa.array([bytes(HEAD_BYTES) + place.key for place in places], pa.binary())
    nothing = pa.array([b""] * len(places), pa.binary())
    entries = [StoredEntries(BinaryColumn.of(keys), BinaryColumn.of(nothing))] if places else []
    rows = pa.Table.from_batches(table.batches(entries, None), table.schema)
    nothing_else = pa.table({})
    return ChangedRows(
        pa.array(kinds, pa.string()), rows, len(key_schema.fields), nothing_else, nothing_else
    )


def changed_raw_state(
    changes: Mapping[Place, Change], old: Side, new: Side, what: str
) -> ChangedRows:
    """Return the streams of raw state that differ.

    The subtask and the number of a stream name a row, whose value is in ``data``.
    """
    subtasks = {place.subtask for place in changes if place.state == RAW}
    before, after = (_streams(side, subtasks, what) for side in (old, new))
    streams = sorted(
        stream for stream in before.keys() | after.keys() if before.get(stream) != after.get(stream)
    )
    kinds = [kind_of_change(before.get(stream), after.get(stream)) for stream in streams]
    named = {
        "subtask": pa.array([subtask for subtask, _ in streams], pa.int32()),
        "stream": pa.array([number for _, number in streams], pa.int32()),
    }
    data = [pa.table({"data": _data(found, streams)}) for found in (before, after)]
    return ChangedRows(pa.array(kinds, pa.string()), pa.table(named), 0, *data)


def _streams(side: Side, subtasks: Iterable[int | None], what: str) -> dict[_Stream, bytes]:
    found: dict[_Stream, bytes] = {}
    for subtask, handle in side.handles.items():
        if subtask in subtasks:
            table = RawTable(subtask, what)
            entries = stored_entries(side.storage, handle, table.stored)
            for batch in table.batches(entries, None):
                for row in batch.to_pylist():
                    found[row["subtask"], row["stream"]] = row["data"]
    return found


def _data(found: Mapping[_Stream, bytes], streams: Sequence[_Stream]) -> pa.Array:
    return pa.array([found.get(stream) for stream in streams], pa.binary())
