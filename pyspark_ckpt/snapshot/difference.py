"""The difference of two snapshots: counts first, then rows with old and new values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, StateUseError
from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.html_form import html_table
from pyspark_ckpt.operator.state.kinds import Entries, Movement, StateKind, kind_of
from pyspark_ckpt.operator.state.list import decode_chunk
from pyspark_ckpt.operator.table.catalog import same_schema
from pyspark_ckpt.operator.table.time_to_live import STAMP_BYTES, STAMP_MARKS
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.changed_entries import (
    HEAD_BYTES,
    RAW,
    TIMERS,
    Place,
    Side,
    are_related,
    changed_entries,
)
from pyspark_ckpt.snapshot.columns import ColumnNames, pandas_frame, python_rows
from pyspark_ckpt.snapshot.reader import SnapshotReader, StoredOperator
from pyspark_ckpt.snapshot.snapshot import open_state
from pyspark_ckpt.snapshot.tables import RawTable, TimersTable, state_table
from pyspark_ckpt.stored.comparison import Change
from pyspark_ckpt.stored.state import StoredState
from pyspark_ckpt.values.message_pack import end_of_value

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_POSITION = T.StructType([T.StructField("position", T.LongType())])
_pack = msgspec.msgpack.Encoder().encode

_Stream = tuple[int, int]
"""Subtask and number of a stream of raw state."""

_Row = dict[str, Any]
_ROWS_AT_ONCE = 10_000
_COLUMNS = ("operator", "state", "kind", ADDED, REMOVED, CHANGED)
_SAMPLES = 5
_TIMERS, _RAW = "timers", "raw"


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
    keys, old_values = _decode(places, before, key_schema, old or first, what)
    later_keys, new_values = _decode(places, after, key_schema, new or first, what)
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


def _decode(
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
    entries = ArrowEntries(
        pa.array([bytes(HEAD_BYTES) + places[row].key for row in there], pa.binary()),
        pa.array([values[row] for row in there], pa.binary()),
    )
    batches = table.batches([entries], None) if there else ()
    rows = pa.Table.from_batches(batches, table.schema)
    number = {row: place for place, row in enumerate(there)}
    spread = pa.array([number.get(row) for row in range(len(values))], pa.int64())
    if there:
        whole = rows.take(spread)
    else:
        nulls = [pa.nulls(len(values), field.type) for field in table.schema]
        whole = pa.table(nulls, names=table.schema.names)
    key_columns = 0 if kind_of(state) is StateKind.BROADCAST else len(key_schema.fields)
    if state.map_key_schema is not None:
        key_columns += len(msgspec.json.decode(state.map_key_schema)["fields"])
    names = whole.column_names
    return whole.select(names[:key_columns]), whole.select(names[key_columns:])


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
            "with location(path).state()"
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
    entries = [ArrowEntries(keys, nothing)] if places else []
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
    data = [
        pa.table({"data": pa.array([found.get(stream) for stream in streams], pa.binary())})
        for found in (before, after)
    ]
    return ChangedRows(pa.array(kinds, pa.string()), pa.table(named), 0, *data)


def _streams(side: Side, subtasks: Iterable[int | None], what: str) -> dict[_Stream, bytes]:
    found: dict[_Stream, bytes] = {}
    for subtask, handle in side.handles.items():
        if subtask in subtasks:
            table = RawTable(subtask, what)
            entries = StoredState(side.storage, handle).scan(table.stored)
            for batch in table.batches(entries, None):
                for row in batch.to_pylist():
                    found[row["subtask"], row["stream"]] = row["data"]
    return found


def diff_state(old: str, new: str) -> StateDifference:
    """Compare the states of two savepoints or checkpoints."""
    with open_state(old) as first, open_state(new) as second:
        before, after = RestoreSource(first.path), RestoreSource(second.path)
        with before.reading(), after.reading():
            return StateDifference(before.path, after.path, _tables(before, after))


def _tables(old: RestoreSource, new: RestoreSource) -> dict[tuple[str, str], _Compared]:
    found: dict[tuple[str, str], _Compared] = {}
    with closing(SnapshotReader(old)) as before, closing(SnapshotReader(new)) as after:
        for uid, sides in sides_of_operators(before, after):
            found |= {(uid, name): each for name, each in _of_operator(uid, *sides).items()}
    return found


def sides_of_operators(
    old: SnapshotReader, new: SnapshotReader
) -> Iterator[tuple[str, tuple[Side, Side]]]:
    """Yield the uid of each operator of two snapshots, and the operator in both."""
    uids = [[each.uid for each in reader.source.metadata.operators] for reader in (old, new)]
    for uid in dict.fromkeys(uids[0] + uids[1]):
        first, second = (
            Side(reader.source.storage, reader.operator(uid) if uid in known else None)
            for reader, known in zip((old, new), uids, strict=True)
        )
        yield uid, (first, second)


class _Compared:
    """A state of both snapshots, and the table of its changes."""

    def __init__(self, kind: str, table: pa.Table) -> None:
        self.kind = kind
        self.table = table

    def count(self, change: str) -> int:
        """Return the number of rows with a kind of change."""
        return int(pc.sum(pc.equal(self.table["change"], change)).as_py() or 0)


def _of_operator(uid: str, old: Side, new: Side) -> dict[str, _Compared]:
    before, after = states_of(old.operator), states_of(new.operator)
    key_schema = key_schema_of(uid, old.operator, new.operator)
    changes = changed_entries(old, new)
    found = {}
    for name in dict.fromkeys([*before, *after]):
        states = before.get(name), after.get(name)
        rows = changed_rows_of_state(changes, uid, states, (old, new), key_schema)
        found[name] = _Compared((after.get(name) or before[name]).kind, rows.table())
    return found | {
        name: _Compared(kind, rows.table())
        for name, (kind, rows) in changed_rows_beside_states(
            changes, key_schema, old, new, set(found)
        ).items()
    }


def changed_rows_of_state(
    changes: Mapping[Place, Change],
    uid: str,
    states: tuple[StateDescriptor | None, StateDescriptor | None],
    sides: tuple[Side, Side],
    key_schema: T.StructType,
) -> ChangedRows:
    """Return the rows of one state that differ."""
    state = states[1] or states[0]
    assert state is not None  # one of the snapshots has it
    of_state = {place: change for place, change in changes.items() if place.state == state.name}
    rows = as_rows(of_state, state, *sides)
    return changed_rows(rows, key_schema, states, f"operator {uid!r}, state {state.name!r}")


def changed_rows_beside_states(
    changes: Mapping[Place, Change],
    key_schema: T.StructType,
    old: Side,
    new: Side,
    names: set[str],
) -> dict[str, tuple[str, ChangedRows]]:
    """Return the kinds and rows of timers and raw state that differ, by names of no state."""
    operator = new.operator or old.operator
    assert operator is not None  # one of the snapshots has it
    time_mode = str(operator.metadata.time_mode)
    found = {
        _TIMERS: changed_timers(changes, key_schema, time_mode, operator.what),
        _RAW: changed_raw_state(changes, old, new, operator.what),
    }
    return {
        f"_{name}" if name in names else name: (name, rows) for name, rows in found.items() if rows
    }


def states_of(operator: StoredOperator | None) -> dict[str, StateDescriptor]:
    """Return the states of an operator by name."""
    return {} if operator is None else {state.name: state for state in operator.states.states}


def key_schema_of(uid: str, old: StoredOperator | None, new: StoredOperator | None) -> T.StructType:
    """Return the schema of an operator's key columns."""
    schemas = [each.key_schema for each in (old, new) if each is not None]
    types = [[field.dataType for field in schema.fields] for schema in schemas]
    if types[0] != types[-1]:
        raise IncompatibleStateError(
            f"operator {uid!r}: its key columns are {schemas[0].simpleString()} and "
            f"{schemas[-1].simpleString()}: only states with keys of the same types are compared"
        )
    return schemas[-1]


class StateDifference:
    """What differs between two snapshots; :meth:`Location.diff` returns it.

    An entry counts as it is stored: also if its time to live is over, until it is cleaned up. An
    entry that was written again with the same value and time is equal. Each item of a list is a row
    with its position. Timers and raw state that differ are like states that are called ``timers``
    and ``raw``, or ``_timers`` and ``_raw`` if the operator has states of these names.

    Parameters
    ----------
    old : str
        The path of the first snapshot.
    new : str
        The path of the second snapshot.
    compared : dict
        The changes of each state, by the operator's uid and the name of the state.

    Examples
    --------
    >>> difference = ckpt.location(savepoint.path).diff(savepoint.path)
    >>> difference.counts[["state", "added", "removed", "changed"]].values.tolist()
    [['count', 0, 0, 0]]
    """

    def __init__(self, old: str, new: str, compared: dict[tuple[str, str], _Compared]) -> None:
        self.old = old
        self.new = new
        self._compared = compared

    @property
    def is_equal(self) -> bool:
        """Whether no entry differs."""
        return all(each.table.num_rows == 0 for each in self._compared.values())

    @property
    def counts(self) -> pd.DataFrame:
        """A row per operator and state: its kind, and how many rows were changed in which way."""
        rows: list[dict[str, Any]] = [
            {
                "operator": uid,
                "state": name,
                "kind": each.kind,
                **{change: each.count(change) for change in (ADDED, REMOVED, CHANGED)},
            }
            for (uid, name), each in self._compared.items()
        ]
        return pd.DataFrame(rows, columns=list(_COLUMNS))

    def _repr_html_(self) -> str:
        title = "No entry differs" if self.is_equal else "Entries that differ"
        rows = self.counts.itertuples(index=False)
        return html_table(f"{title}: {self.old} → {self.new}", _COLUMNS, rows)

    def to_arrow(self, operator: str, state: str) -> pa.Table:
        """Return the changes of one state as an Arrow table.

        Parameters
        ----------
        operator : str
            The operator's uid.
        state : str
            The name of the state.

        Returns
        -------
        pyarrow.Table
            A row per change: ``change`` (``added``, ``removed`` or ``changed``), the columns of
            keys, and each column of values twice, with ``old_`` and ``new_``. A timer has none.

        Raises
        ------
        StateUseError
            If neither snapshot has the state.

        Examples
        --------
        >>> difference = ckpt.location(savepoint.path).diff(savepoint.path)
        >>> difference.to_arrow("count", "count").column_names
        ['change', 'user', 'old_n', 'new_n']
        """
        if (operator, state) not in self._compared:
            known = ", ".join(f"{uid!r} {name!r}" for uid, name in self._compared)
            raise StateUseError(
                f"{self.old} and {self.new} have no state {state!r} of an operator {operator!r}: "
                f"they have {known or 'none'}"
            )
        return self._compared[operator, state].table

    def to_pandas(self, operator: str, state: str) -> pd.DataFrame:
        """Return the changes of one state as a pandas frame.

        Parameters
        ----------
        operator : str
            The operator's uid.
        state : str
            The name of the state.

        Returns
        -------
        pandas.DataFrame
            As :meth:`to_arrow`. A column of integers with nulls has Python's and ``None``.

        Raises
        ------
        StateUseError
            If neither snapshot has the state.

        Examples
        --------
        >>> ckpt.location(savepoint.path).diff(savepoint.path).to_pandas("count", "count").empty
        True
        """
        return pandas_frame(self.to_arrow(operator, state))

    def samples(self, rows: int = _SAMPLES) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Return the first changes of each state that has any.

        Parameters
        ----------
        rows : int
            Most changes of one state.

        Returns
        -------
        dict
            Rows as dicts, by the operator's uid and the name of the state.

        Examples
        --------
        >>> ckpt.location(savepoint.path).diff(savepoint.path).samples()
        {}
        """
        return {
            state: python_rows(each.table.slice(0, rows))
            for state, each in self._compared.items()
            if each.table.num_rows
        }
