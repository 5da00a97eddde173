"""The entries of states that differ between two checkpoints of one epoch, by key.

Beyond what :mod:`pyspark_ckpt.snapshot.difference` does, it knows which differences mean nothing:
an expired entry counts as gone, whether or not it was cleaned up, and items of a list may be in
another order, because the rows of an epoch are in no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.quarantine.quarantined_keys import KEYS_STATE, comparable
from pyspark_ckpt.operator.state.kinds import StateKind, kind_of
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.shadowing.report import RowPair, Rules, pair_rows, same
from pyspark_ckpt.snapshot.changed_entries import Place, Side, changed_entries
from pyspark_ckpt.snapshot.difference import (
    ChangedRows,
    changed_rows_beside_states,
    changed_rows_of_state,
    key_schema_of,
    sides_of_operators,
    states_of,
)
from pyspark_ckpt.snapshot.reader import SnapshotReader
from pyspark_ckpt.stored.comparison import Change

_LISTS = (StateKind.LIST, StateKind.OPERATOR_LIST)

_SPARKS = "spark_operator_"
"""How the names of Spark's own operators begin, which have no uid; their ids follow."""


class _NoPin:
    """Nobody deletes the checkpoints of a shadow while it compares them."""

    def check(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """One state in both checkpoints."""

    place: str
    changed: ChangedRows
    is_list: bool
    expires: bool
    now_ms: tuple[int, int]


def differing_entries(
    old: RestoreSource, new: RestoreSource, rules: Rules, skip: Callable[[str], None]
) -> Iterator[tuple[str, RowPair]]:
    """Yield each entry that differs, after the place where it is.

    `old` and `new` are checkpoints of the same epoch. `skip` is called with what is not compared
    and why.
    """
    for compared in _states(old, new, rules, skip):
        before, after = compared.changed.old.column_names, compared.changed.new.column_names
        only = [
            name
            for name in sorted(set(before) ^ set(after))
            if not rules.ignores(compared.place, name)
        ]
        if only:
            skip(f"{compared.place}: only one program has {', '.join(only)}")
        both = [name for name in before if name in after]
        shown = [name for name in both if not rules.ignores(compared.place, name)]
        is_quarantined = compared.place.endswith(f".{KEYS_STATE}")
        for pair in _pairs(compared, both, rules.tolerance):
            if is_quarantined:
                pair = _comparable(pair)  # noqa: PLW2901
            if differs := _without_ignored(pair, shown, rules.tolerance):
                yield compared.place, differs


def _states(
    old: RestoreSource, new: RestoreSource, rules: Rules, skip: Callable[[str], None]
) -> Iterator[_Compared]:
    readers = SnapshotReader(old, _NoPin()), SnapshotReader(new, _NoPin())
    for operator in old.metadata.spark_operators:
        place = f"{_SPARKS}{operator.operator_id}"
        if not rules.ignores(f"{place}.*"):
            why = "not compared, because it is an operator of Spark's own"
            skip(f"{place} ({operator.name}): {why}")
    for uid, sides in sides_of_operators(*readers):
        if rules.ignores(f"{uid}.*"):
            continue
        missing = next((n for n, side in enumerate(sides) if side.operator is None), None)
        if missing is not None:
            skip(f"operator {uid!r}: {_only(missing)} has it")
            continue
        try:
            yield from _of_operator(uid, sides, readers, rules, skip)
        except IncompatibleStateError as exc:
            skip(str(exc))


def _of_operator(
    uid: str,
    sides: tuple[Side, Side],
    readers: tuple[SnapshotReader, SnapshotReader],
    rules: Rules,
    skip: Callable[[str], None],
) -> Iterator[_Compared]:
    key_schema = key_schema_of(uid, sides[0].operator, sides[1].operator)
    before, after = (states_of(side.operator) for side in sides)
    changes = changed_entries(*sides)
    moves = len({side.operator.metadata.parallelism for side in sides if side.operator}) > 1
    for name in dict.fromkeys([*before, *after]):
        place = f"{uid}.{name}"
        states = before.get(name), after.get(name)
        if rules.ignores(place):
            continue
        if states[0] is None or states[1] is None:
            skip(f"{place}: {_only(0 if states[0] is None else 1)} has it")
            continue
        if moves and kind_of(states[1]) is StateKind.OPERATOR_LIST:
            skip(f"{place}: not compared, because it is a state of subtasks, of other numbers")
            continue
        try:
            changed = changed_rows_of_state(changes, uid, states, sides, key_schema)
        except IncompatibleStateError as exc:
            skip(str(exc))
            continue
        times = tuple(map(_now_ms, readers, states))
        yield _Compared(
            place,
            changed,
            kind_of(states[1]) in _LISTS,
            all(each.is_stamped and each.ttl is not None for each in states if each is not None),
            (times[0], times[1]),
        )
    yield from _timers_and_raw_state(
        uid, changes, sides, {*before, *after}, rules, skip, moves=moves
    )


def _timers_and_raw_state(
    uid: str,
    changes: Mapping[Place, Change],
    sides: tuple[Side, Side],
    names: set[str],
    rules: Rules,
    skip: Callable[[str], None],
    *,
    moves: bool,
) -> Iterator[_Compared]:
    """Yield timers and raw state."""
    key_schema = key_schema_of(uid, sides[0].operator, sides[1].operator)
    found = changed_rows_beside_states(changes, key_schema, *sides, names)
    for name, (kind, changed) in found.items():
        place = f"{uid}.{name}"
        if rules.ignores(place):
            continue
        if kind == "raw" and moves:
            skip(f"{place}: not compared, because it is a state of subtasks, of other numbers")
            continue
        yield _Compared(place, changed, is_list=False, expires=False, now_ms=(0, 0))


def _only(missing: int) -> str:
    return "not compared, because only the " + ("candidate" if missing == 0 else "original")


def _now_ms(reader: SnapshotReader, state: StateDescriptor | None) -> int:
    return 0 if state is None or state.ttl is None else reader.now_ms(state.ttl.time)


def _pairs(compared: _Compared, columns: list[str], tolerance: float) -> Iterator[RowPair]:
    """Yield the entries that differ as rows, with the columns that both sides have."""
    changed = compared.changed
    if not compared.is_list:
        for _, key, *sides in changed.rows():
            old, new = _counting(compared, sides, columns)
            if old is not None or new is not None:
                yield key, old, new
        return
    keys = changed.named.column_names[: changed.key_columns]  # without subtask and position
    items: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for _, named, *sides in changed.rows():
        for rows, values in zip(items, _counting(compared, sides, columns), strict=True):
            if values is not None:
                rows.append({name: named[name] for name in keys} | values)
    yield from pair_rows(*items, keys, tolerance)


def _counting(
    compared: _Compared, sides: list[dict[str, Any] | None], columns: list[str]
) -> list[dict[str, Any] | None]:
    """Return the columns that are compared of both sides, ``None`` where an entry is over."""
    found: list[dict[str, Any] | None] = []
    for row, now_ms in zip(sides, compared.now_ms, strict=True):
        values = None if row is None else {name: row[name] for name in columns}
        if values is not None and compared.expires and _is_over(values[columns[-1]], now_ms):
            values = None
        found.append(values)
    return found


def _is_over(expires_at: datetime | None, now_ms: int) -> bool:
    return expires_at is not None and expires_at.timestamp() * 1000 <= now_ms


def _comparable(pair: RowPair) -> RowPair:
    key, *sides = pair
    old, new = (None if each is None else comparable(each) for each in sides)
    return key, old, new


def _without_ignored(pair: RowPair, shown: list[str], tolerance: float) -> RowPair | None:
    """Return a pair with the columns that count, ``None`` if they are equal."""
    key, *sides = pair
    old, new = (None if each is None else {name: each[name] for name in shown} for each in sides)
    if old is not None and new is not None and same(old, new, tolerance):
        return None
    return key, old, new
