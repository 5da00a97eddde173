"""What differs between a captured epoch and its replay, by key, with old and new values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.capture.capture_file import CapturedEpoch
from pyspark_ckpt.operator.capture.described import columns_of
from pyspark_ckpt.operator.capture.recording import KEY_COLUMN, STEP_COLUMN
from pyspark_ckpt.operator.quarantine.quarantined_keys import KEYS_STATE, comparable
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.state.kinds import Movement, StateKind, kind_of
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.operator.table.stored_keys import KEY_GROUP_BYTES
from pyspark_ckpt.snapshot.changed_entries import RAW, TIMERS, Place, place_of
from pyspark_ckpt.snapshot.difference import ADDED, as_rows, changed_rows, changed_timers
from pyspark_ckpt.stored.comparison import Change
from pyspark_ckpt.testing.replaying.subtask import ReplayedEpoch, Side

_OUTPUT, _RAW_STATE, _TIMERS = "output", "raw state", "timers"
_MATCHED_ROWS = 2_000
"""Rows of a key up to which equal rows are found at other places too."""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of output, or one entry of state, that differs.

    Parameters
    ----------
    epoch : int
        The epoch.
    subtask : int
        The subtask.
    key : tuple or None
        The key; ``None`` if the processor got many keys in one call, and for state of no key.
    where : str
        ``output``, ``timers``, ``raw state``, or ``state`` and a name.
    old : dict or None
        The captured values by column; ``None`` if there is no such row or entry.
    new : dict or None
        The values of the replay.
    place : dict
        The key of a map, or the position in a list.

    Examples
    --------
    >>> from pyspark_ckpt.testing import Difference
    >>> Difference(3, 0, ("ada",), "state count", {"n": 2}, {"n": 3}).columns
    ('n',)
    """

    epoch: int
    subtask: int
    key: tuple[Any, ...] | None
    where: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    place: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that differ."""
        names = dict.fromkeys([*(self.old or ()), *(self.new or ())])
        if self.old is None or self.new is None:
            return tuple(names)
        return tuple(name for name in names if not _is_same(self.old.get(name), self.new.get(name)))

    def __str__(self) -> str:
        place = "".join(f"[{value!r}]" for value in self.place.values())
        head = f"epoch {self.epoch}, key {self.key}, {self.where}{place}: "
        if self.old is None:
            return f"{head}new {dict(self.new or {})}"
        if self.new is None:
            return f"{head}missing {dict(self.old)}"
        changes = (f"{n} {self.old.get(n)!r} -> {self.new.get(n)!r}" for n in self.columns)
        return head + ", ".join(changes)


def differences_of(replayed: ReplayedEpoch) -> Iterator[Difference]:
    """Yield what differs in an epoch of a subtask: output first, then states."""
    epoch, old, new = replayed.epoch, replayed.captured, replayed.replayed
    if old is None:
        return
    columns = columns_of(epoch.program.columns)
    schema = struct_type(epoch.program.output_schema)
    yield from _OutputDifferences(epoch, schema, columns.decode_key).between(old.output, new.output)
    if (old.entries, old.states) != (new.entries, new.states):
        yield from _StateDifferences(epoch, columns.key_schema).between(old, new)


class _OutputDifferences:
    """Compares the output of an epoch key by key."""

    def __init__(self, epoch: CapturedEpoch, schema: T.StructType, decode_key: Any) -> None:
        self._epoch = epoch
        self._names = schema.names
        self._schema = schema
        self._decode_key = decode_key

    def between(self, old: SentRows, new: SentRows) -> Iterator[Difference]:
        first, second = _by_key(old), _by_key(new)
        if first == second:
            return
        shown = shown_rows(old, self._schema), shown_rows(new, self._schema)
        for key in dict.fromkeys([*first, *second]):
            before, after = first.get(key, _Rows()), second.get(key, _Rows())
            for pair in _pairs(before.values, after.values):
                old_row, new_row = (
                    None if place is None else dict(zip(self._names, rows[each], strict=True))
                    for place, rows, each in (
                        (pair[0], shown[0], before.place(pair[0])),
                        (pair[1], shown[1], after.place(pair[1])),
                    )
                )
                yield Difference(
                    self._epoch.epoch,
                    self._epoch.subtask,
                    None if key is None else tuple(self._decode_key(key[KEY_GROUP_BYTES:])),
                    _OUTPUT,
                    old_row,
                    new_row,
                )


@dataclass(slots=True)
class _Rows:
    """The rows of a key, in a form that compares bit for bit, and where they are."""

    values: list[Row] = field(default_factory=list)
    places: list[int] = field(default_factory=list, compare=False)

    def place(self, number: int | None) -> int:
        return -1 if number is None else self.places[number]


def _by_key(batches: SentRows) -> dict[bytes | None, _Rows]:
    found: dict[bytes | None, _Rows] = defaultdict(_Rows)
    place = 0
    for batch in batches:
        keys = batch.column(KEY_COLUMN).to_pylist()
        names = [name for name in batch.schema.names if name not in (KEY_COLUMN, STEP_COLUMN)]
        columns = [_comparable(batch.column(name)) for name in names]
        rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
        for key, row in zip(keys, rows, strict=True):
            found[key].values.append(row)
            found[key].places.append(place)
            place += 1
    return dict(found)


def _comparable(column: pa.Array) -> list[Any]:
    """Return values that are equal if their bits are: all NaNs of the same bits, and not 0 and -0.

    Python's own comparison would find a NaN unlike itself.
    """
    if pa.types.is_float64(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_float32(column.type):
        column = column.view(pa.int32())
    values: list[Any] = column.to_pylist()
    return values


def _pairs(old: Sequence[Row], new: Sequence[Row]) -> Iterator[tuple[int | None, int | None]]:
    """Yield the places of rows that differ; a place is ``None`` where a side has no row."""
    if old == new:
        return
    if len(old) == len(new):
        yield from ((n, n) for n in range(len(old)) if old[n] != new[n])
        return
    if max(len(old), len(new)) > _MATCHED_ROWS:
        yield from _side_by_side(range(len(old)), range(len(new)))
        return
    numbers: dict[bytes, int] = {}
    first, second = (
        [numbers.setdefault(repr(row).encode(), len(numbers)) for row in rows]
        for rows in (old, new)
    )
    for what, *bounds in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if what != "equal":
            yield from _side_by_side(range(bounds[0], bounds[1]), range(bounds[2], bounds[3]))


def _side_by_side(old: range, new: range) -> Iterator[tuple[int | None, int | None]]:
    for n in range(max(len(old), len(new))):
        yield (old[n] if n < len(old) else None), (new[n] if n < len(new) else None)


def shown_rows(batches: SentRows, schema: T.StructType) -> list[Row]:
    """Return output as Python values of its schema."""
    columns = shown_output(batches, schema).to_pydict().values()
    return list(zip(*columns, strict=True))


def shown_output(batches: SentRows, schema: T.StructType) -> pa.Table:
    """Return output under the names of its schema."""
    if not batches:
        return pa.table({name: pa.array([], pa.null()) for name in schema.names})
    table = pa.Table.from_batches(batches)
    return pa.table(table.columns[: len(schema.fields)], names=schema.names)


class _Entries:
    """One run's entries by their places."""

    def __init__(self, side: Side, subtask: int) -> None:
        names = {n: state.name for n, state in enumerate(side.states) if state.sweeps is None}
        placed = ((place_of(key, subtask, names), key) for key in side.entries)
        self.by_place = {place: side.entries[key] for place, key in placed if place is not None}

    def entries(self) -> Iterable[tuple[Place, bytes]]:
        """Return all entries, as :class:`pyspark_ckpt.snapshot.changed_entries.Side` does."""
        return self.by_place.items()


class _StateDifferences:
    """Compares the state that two runs left, entry by entry."""

    def __init__(self, epoch: CapturedEpoch, key_schema: T.StructType) -> None:
        self._epoch = epoch
        self._key_schema = key_schema

    def between(self, old: Side, new: Side) -> Iterator[Difference]:
        subtask = self._epoch.subtask
        sides: tuple[Any, Any] = _Entries(old, subtask), _Entries(new, subtask)
        first, second = sides[0].by_place, sides[1].by_place
        changes = {
            place: Change(first.get(place), second.get(place))
            for place in first.keys() | second.keys()
            if first.get(place) != second.get(place)
        }
        before, after = (
            {state.name: state for state in side.states if state.sweeps is None}
            for side in (old, new)
        )
        for name in dict.fromkeys([*before, *after]):
            states = before.get(name), after.get(name)
            state = states[1] or states[0]
            assert state is not None  # one of the two has it
            of_state = {place: each for place, each in changes.items() if place.state == name}
            if kind_of(state).movement is Movement.COPIED:
                of_state = {place._replace(subtask=None): of_state[place] for place in of_state}
            rows = as_rows(of_state, state, *sides)
            yield from self._of_state(rows, state, states)
        yield from self._of_timers(changes)
        for place, change in changes.items():
            if place.state == RAW:
                old_data, new_data = _data(change.old), _data(change.new)
                yield self._difference(None, _RAW_STATE, old_data, new_data, {})

    def _of_state(
        self,
        rows: Mapping[Place, Change],
        state: StateDescriptor,
        states: tuple[StateDescriptor | None, StateDescriptor | None],
    ) -> Iterator[Difference]:
        what = f"{self._epoch.what}, state {state.name!r}"
        changed = changed_rows(rows, self._key_schema, states, what)
        place_from = changed.key_columns + (kind_of(state) is StateKind.OPERATOR_LIST)
        for _, named, old, new in changed.rows():
            if state.name == KEYS_STATE and old and new and comparable(old) == comparable(new):
                continue
            key = tuple(named.values())[: changed.key_columns]
            place = dict(list(named.items())[place_from:])  # the subtask is the epoch's
            yield self._difference(key or None, f"state {state.name!r}", old, new, place)

    def _of_timers(self, changes: Mapping[Place, Change]) -> Iterator[Difference]:
        timers = {place: change for place, change in changes.items() if place.state == TIMERS}
        if not timers:
            return
        mode = str(self._epoch.clock.mode)
        changed = changed_timers(timers, self._key_schema, mode, self._epoch.what)
        for kind, named, _, _ in changed.rows():
            key = tuple(named.values())[: changed.key_columns]
            values = dict(list(named.items())[changed.key_columns :])
            old, new = (None, values) if kind == ADDED else (values, None)
            yield self._difference(key, _TIMERS, old, new, {})

    def _difference(
        self,
        key: tuple[Any, ...] | None,
        where: str,
        old: Mapping[str, Any] | None,
        new: Mapping[str, Any] | None,
        place: Mapping[str, Any],
    ) -> Difference:
        return Difference(self._epoch.epoch, self._epoch.subtask, key, where, old, new, place)


def _data(value: bytes | None) -> Mapping[str, Any] | None:
    return None if value is None else {"data": value}


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        encode = msgspec.msgpack.encode
        return encode(old) == encode(new)
    return bool(old == new)
