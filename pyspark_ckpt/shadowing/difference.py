"""One difference between two programs, and how rows of both become differences.

Rows are compared as multisets: their order does not count. What both have cancels out. Of the rows
that are left, those of one key are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal, localcontext
from numbers import Real
from typing import Any

OUTPUT = "output"
"""The place of the rows that a program writes; others are ``<uid>.<state>``."""

_FEW = 250_000
"""So many pairs of rows of one key are tried, before only neighbours in order are."""

_DIGITS = 200
"""Enough for differences of any two decimals of Spark, times a tolerance."""

RowPair = tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]
"""A key, and the other columns of its old and new row; ``None`` where there is no row."""


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """A row of the output, or an entry of a state, that a candidate has otherwise.

    Parameters
    ----------
    epoch : int
        The epoch of the output, or at whose end the states were compared.
    place : str
        ``output``, or ``<uid>.<state>``. Timers are at ``<uid>.timers``.
    key : dict
        The key columns.
    old : dict or None
        The other columns as the original has them, ``None`` if only the candidate has the row.
    new : dict or None
        The other columns as the candidate has them, ``None`` if only the original has the row.

    Examples
    --------
    >>> print(ckpt.ShadowDifference(7, "output", {"user": "ada"}, {"n": 2}, {"n": 3}))
    epoch 7, output, user='ada': n 2 -> 3
    """

    epoch: int
    place: str
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None

    @property
    def change(self) -> str:
        """``added``, ``removed`` or ``changed``."""
        return "added" if self.old is None else "removed" if self.new is None else "changed"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that differ; empty for a row that only one program has."""
        if self.old is None or self.new is None:
            return ()
        return tuple(name for name in self.old if not same(self.old[name], self.new.get(name), 0.0))

    def __str__(self) -> str:
        """Return the difference as one line."""
        key = ", ".join(f"{name}={value!r}" for name, value in self.key.items())
        where = f"epoch {self.epoch}, {self.place}{', ' if key else ''}{key}"
        if self.old is None or self.new is None:
            row = self.new if self.old is None else self.old
            return f"{where}: {self.change} {_shown(row or {})}"
        both = (f"{name} {self.old[name]!r} -> {self.new[name]!r}" for name in self.columns)
        return f"{where}: {', '.join(both)}"


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


def pair_rows(
    old: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    tolerance: float,
) -> Iterator[RowPair]:
    """Yield the rows that differ, with old and new rows of one key side by side.

    The rows are in any order. Without `keys`, no row is paired with another one. `tolerance`
    applies to numbers with a fraction; it is relative to the larger number, and absolute below 1.
    """
    groups: dict[Any, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for side, rows in enumerate((old, new)):
        for row in rows:
            named = keys or _without_fractions(row)
            group = frozen([row[name] for name in named])
            groups.setdefault(group, ([], []))[side].append(dict(row))
    for before, after in groups.values():
        lost, gained = _cancelled(before, after, tolerance)
        paired = min(len(lost), len(gained)) if keys else 0
        for first, second in zip(lost[:paired], gained[:paired], strict=True):
            yield _split(first, second, keys)
        for row in lost[paired:]:
            yield _split(row, None, keys)
        for row in gained[paired:]:
            yield _split(None, row, keys)


def _split(old: dict[str, Any] | None, new: dict[str, Any] | None, keys: Sequence[str]) -> RowPair:
    row = old or new or {}
    key = {name: row[name] for name in keys}
    before, after = (
        None if each is None else {name: value for name, value in each.items() if name not in key}
        for each in (old, new)
    )
    return key, before, after


def _without_fractions(row: Mapping[str, Any]) -> list[str]:
    return [name for name, value in row.items() if not isinstance(value, (float, Decimal))]


def _cancelled(
    old: list[dict[str, Any]], new: list[dict[str, Any]], tolerance: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows that have no equal row on the other side, in an order of their values."""
    if len(old) == len(new) == 1:
        return ([], []) if same(old[0], new[0], tolerance) else (old, new)
    before = sorted(old, key=lambda row: _order(row.values()))
    after = sorted(new, key=lambda row: _order(row.values()))
    if not before or not after:
        return before, after
    if len(before) * len(after) > _FEW:
        return _cancelled_in_order(before, after, tolerance)
    lost = []
    for row in before:
        place = next((n for n, other in enumerate(after) if same(row, other, tolerance)), None)
        if place is None:
            lost.append(row)
        else:
            del after[place]
    return lost, after


def _cancelled_in_order(
    before: list[dict[str, Any]], after: list[dict[str, Any]], tolerance: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lost: list[dict[str, Any]] = []
    gained: list[dict[str, Any]] = []
    left, right = 0, 0
    while left < len(before) and right < len(after):
        first, second = before[left], after[right]
        if same(first, second, tolerance):
            left, right = left + 1, right + 1
        elif _order(first.values()) <= _order(second.values()):
            lost.append(first)
            left += 1
        else:
            gained.append(second)
            right += 1
    return lost + before[left:], gained + after[right:]


def _order(values: Any) -> tuple[Any, ...]:
    """Return a sort key: numbers by value, all else as text, whatever the types are."""
    return tuple(
        (0, value if isinstance(value, (int, Decimal)) else float(value), "")
        if isinstance(value, (Real, Decimal)) and value == value
        else (1, 0, repr(value))
        for value in values
    )


def same(old: Any, new: Any, tolerance: float) -> bool:
    """Return whether two values are equal; numbers with a fraction within a tolerance."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(
            same(old[name], new[name], tolerance) for name in old
        )
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(
            same(first, second, tolerance) for first, second in zip(old, new, strict=True)
        )
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return old == new or _is_close_decimal(old, new, tolerance)
    if _is_fraction(old) and _is_fraction(new):
        return _is_close(float(old), float(new), tolerance)
    if isinstance(old, datetime) and isinstance(new, datetime):
        return old == new and old.fold == new.fold  # two instants of the hour that comes twice
    return bool(old == new)


def _is_fraction(value: Any) -> bool:
    return isinstance(value, (float, Decimal))


def _is_close_decimal(old: Decimal, new: Decimal, tolerance: float) -> bool:
    """Return whether two numbers are close; a float would have too few digits for some."""
    with localcontext(Context(prec=_DIGITS)):
        return abs(old - new) <= Decimal(tolerance) * max(abs(old), abs(new), Decimal(1))


def _is_close(old: float, new: float, tolerance: float) -> bool:
    if old == new or (math.isnan(old) and math.isnan(new)):
        return True
    if math.isinf(old) or math.isinf(new):
        return False
    return abs(old - new) <= tolerance * max(abs(old), abs(new), 1.0)


def frozen(value: Any) -> Any:
    """Return a value as one that can be a key of a dict; equal values give equal keys."""
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return frozenset((frozen(name), frozen(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, datetime) and value.fold:
        return value, value.fold
    return value
