"""What a shadow has found so far: counts, the first differences, and what counts as one.

Rows are compared as multisets: their order does not count. What both have cancels out. Of the rows
that are left, those of one key are paired.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Context, Decimal, localcontext
from numbers import Real
from typing import Any

import pandas as pd

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.html_form import html_facts, html_table
from pyspark_ckpt.text_table import text_table

MOST_KEPT = 1000
"""How many differences a report names; it counts all."""

_SHOWN = 20
_CELL = 80
_HEADER = ("epoch", "place", "change", "key", "columns", "old", "new")

OUTPUT = "output"
"""The place of the rows that a program writes; others are ``<uid>.<state>``."""

_FEW = 250_000
"""So many pairs of rows of one key are tried, before only neighbours in order are."""

_DIGITS = 200
"""Enough for differences of any two decimals of Spark, times a tolerance."""

RowPair = tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]
"""A key, and the other columns of its old and new row; ``None`` where there is no row."""


@dataclass(frozen=True, slots=True, repr=False)
class ShadowReport:
    """What a shadow compared, and what differs; prints as a table.

    Parameters
    ----------
    first_epoch, last_epoch : int or None
        The epochs that were compared, ``None`` before the first.
    epochs : int
        How many.
    rows : int
        Rows that the original put out in them.
    state_comparisons : int
        How often all states were compared.
    differences : int
        How many differences were not expected. An entry of a state counts once, in the first epoch
        after which it differs in a way that is not expected.
    expected : int
        How many differences `expected` accepted; an entry of a state counts once.
    counts : dict
        The differences by place and change.
    samples : tuple of ShadowDifference
        The first differences.
    notes : tuple of str
        How values were compared whose types differ.
    skipped : tuple of str
        What was not compared, and why. What `ignore` names is not in it.
    stopped : str or None
        Why the shadow ended, ``None`` while it runs.
    failure : str or None
        What failed: one of the programs, or the comparison. ``None`` if nothing did.

    Examples
    --------
    >>> print(ckpt.results.ShadowReport(8, 9, 2, rows=40, state_comparisons=2))
    2 epochs (8 to 9), 40 rows, states compared 2 times: nothing differs
    """

    first_epoch: int | None = None
    last_epoch: int | None = None
    epochs: int = 0
    rows: int = 0
    state_comparisons: int = 0
    differences: int = 0
    expected: int = 0
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    samples: tuple[ShadowDifference, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    stopped: str | None = None
    failure: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether all was compared, nothing failed, and no difference is left."""
        return self.differences == 0 and self.unproven is None

    @property
    def unproven(self) -> str | None:
        """Why equality would say too little, ``None`` if both were compared as a whole."""
        if self.failure is not None:
            return self.failure
        if not self.epochs:
            return "no epoch was compared yet"
        if not self.state_comparisons:
            return "no state was compared yet; states_every says after how many epochs they are"
        if self.skipped:
            return f"not everything was compared ({'; '.join(self.skipped)})"
        return None

    def to_pandas(self) -> pd.DataFrame:
        """Return the first differences as a pandas frame.

        Returns
        -------
        pandas.DataFrame
            A row per difference: epoch, place, change, key, columns, old, new.

        Examples
        --------
        >>> ckpt.results.ShadowReport().to_pandas().empty
        True
        """
        return pd.DataFrame(
            [
                (each.epoch, each.place, each.change, each.key, each.columns, each.old, each.new)
                for each in self.samples
            ],
            columns=list(_HEADER),
        )

    def _summary(self) -> str:
        if self.first_epoch is None:
            return "no epoch was compared yet"
        found = "nothing differs"
        if self.differences:
            found = f"{self.differences} differences"
        if self.expected:
            found += f", besides {self.expected} expected ones"
        if self.skipped:
            found += f"; {len(self.skipped)} parts were not compared"
        return (
            f"{self.epochs} epochs ({self.first_epoch} to {self.last_epoch}), {self.rows} rows, "
            f"states compared {self.state_comparisons} times: {found}"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(each.epoch),
                each.place,
                each.change,
                _text(each.key),
                ", ".join(each.columns),
                _text(_differing(each, each.old)),
                _text(_differing(each, each.new)),
            )
            for each in self.samples[:_SHOWN]
        ]

    def __repr__(self) -> str:
        """Return the summary, the first differences and the notes."""
        lines = [self._summary()]
        if self.stopped is not None:
            lines.append(f"stopped: {self.stopped}")
        lines += [f"not compared: {text}" for text in self.skipped]
        lines += [f"note: {note}" for note in self.notes]
        if self.samples:
            lines += ["", text_table(_HEADER, self._rows(), _CELL)]
            more = self.differences - min(len(self.samples), _SHOWN)
            lines += [f"and {more} more"] if more > 0 else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"compared": self._summary()}
        facts |= {"stopped": self.stopped} if self.stopped is not None else {}
        facts |= {f"not compared {number}": text for number, text in enumerate(self.skipped, 1)}
        facts |= {f"note {number}": note for number, note in enumerate(self.notes, 1)}
        facts |= {f"{place} {change}": n for (place, change), n in sorted(self.counts.items())}
        title = "The two programs agree" if self.is_equal else "The two programs differ"
        if not self.differences and self.unproven is not None:
            title = "The two programs were not compared as a whole"
        return html_facts(title, facts) + html_table("First differences", _HEADER, self._rows())


def _differing(difference: ShadowDifference, row: dict[str, Any] | None) -> dict[str, Any] | None:
    if row is None or not difference.columns:
        return row
    return {name: row[name] for name in difference.columns}


def _text(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."


class Tally:
    """Counts what a shadow finds; its report can be read by any thread."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._guard = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._samples: list[ShadowDifference] = []
        self._notes: dict[str, None] = {}
        self._skipped: dict[str, None] = {}
        self._epochs: list[int] = []
        self._epochs_compared = self._rows = self._state_comparisons = 0
        self._expected = 0
        self._entries: dict[Any, bool] = {}
        """Of each entry that differed, whether that was expected."""
        self._stopped: str | None = None
        self._failure: str | None = None

    def add(self, difference: ShadowDifference) -> None:
        """Count a difference of the output."""
        self._count(difference, is_expected=self._is_expected(difference))

    def add_entry(self, difference: ShadowDifference) -> None:
        """Count a difference of a state's entry: once as expected, and once as not expected."""
        of = [difference.key] if difference.key else [difference.old, difference.new]
        entry = frozen([difference.place, *of])
        was_expected = self._entries.get(entry)
        if was_expected is False:
            return
        is_expected = self._is_expected(difference)
        if is_expected != was_expected:
            self._entries[entry] = is_expected
            self._count(difference, is_expected=is_expected)

    def _is_expected(self, difference: ShadowDifference) -> bool:
        return self._rules.expected is not None and bool(self._rules.expected(difference))

    def _count(self, difference: ShadowDifference, *, is_expected: bool) -> None:
        with self._guard:
            if is_expected:
                self._expected += 1
                return
            self._counts[difference.place, difference.change] += 1
            if len(self._samples) < MOST_KEPT:
                self._samples.append(difference)

    def add_uncompared(self, place: str, rows: int) -> None:
        """Count rows that differ and were too many to be named."""
        with self._guard:
            self._counts[place, "not named"] += rows

    def note(self, text: str) -> None:
        """Keep a note, once."""
        with self._guard:
            self._notes[text] = None

    def skip(self, text: str) -> None:
        """Keep, once, what was not compared and why."""
        with self._guard:
            self._skipped[text] = None

    def end_epoch(self, epoch: int, rows: int, *, compared_states: bool) -> None:
        """Count an epoch that was compared."""
        with self._guard:
            self._epochs = [self._epochs[0] if self._epochs else epoch, epoch]
            self._epochs_compared += 1
            self._rows += rows
            self._state_comparisons += compared_states

    def stop(self, why: str) -> None:
        """Keep why the shadow ended; the first reason stays."""
        with self._guard:
            self._stopped = self._stopped or why

    def fail(self, why: str) -> None:
        """Keep why the shadow failed; the first reason stays."""
        with self._guard:
            self._failure = self._failure or why
            self._stopped = self._stopped or why

    @property
    def has_enough(self) -> str | None:
        """Why the shadow has to end by its rules, ``None`` if it goes on."""
        with self._guard:
            found = self._counts.total()
            rules = self._rules
            if rules.max_differences is not None and found >= rules.max_differences:
                return f"{found} differences were found, max_differences is {rules.max_differences}"
            if rules.epochs is not None and self._epochs_compared >= rules.epochs:
                return f"{self._epochs_compared} epochs were compared"
            return None

    def report(self) -> ShadowReport:
        """Return what was found so far."""
        with self._guard:
            return ShadowReport(
                first_epoch=self._epochs[0] if self._epochs else None,
                last_epoch=self._epochs[-1] if self._epochs else None,
                epochs=self._epochs_compared,
                rows=self._rows,
                state_comparisons=self._state_comparisons,
                differences=self._counts.total(),
                expected=self._expected,
                counts=dict(self._counts),
                samples=tuple(self._samples),
                notes=tuple(self._notes),
                skipped=tuple(self._skipped),
                stopped=self._stopped,
                failure=self._failure,
            )


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
    >>> print(ckpt.results.ShadowDifference(7, "output", {"user": "ada"}, {"n": 2}, {"n": 3}))
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
            values = ", ".join(f"{name}={value!r}" for name, value in (row or {}).items())
            return f"{where}: {self.change} {values}"
        both = (f"{name} {self.old[name]!r} -> {self.new[name]!r}" for name in self.columns)
        return f"{where}: {', '.join(both)}"


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
            named = keys or [
                name for name, value in row.items() if not isinstance(value, (float, Decimal))
            ]
            group = frozen([row[name] for name in named])
            groups.setdefault(group, ([], []))[side].append(dict(row))
    for before, after in groups.values():
        lost, gained = _without_equal_rows(before, after, tolerance)
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


def _without_equal_rows(
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


Expected = Callable[[ShadowDifference], bool]
"""Returns whether a difference is one that the user wants."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a shadow compares, and for how long.

    `keys` are the key columns of the output, ``None`` to take the operators' key columns.
    `states_every` is the number of epochs between two comparisons of states.
    """

    epochs: int | None = None
    max_differences: int | None = None
    ignore: frozenset[str] = frozenset()
    tolerance: float = 0.0
    expected: Expected | None = None
    keys: tuple[str, ...] | None = None
    states_every: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "max_differences", "states_every"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"shadow: {name} is {value!r}: give a number above zero")
        if not 0 <= self.tolerance < 1:
            raise ConfigurationError(
                f"shadow: tolerance is {self.tolerance!r}: give a number from 0 up to 1, such as "
                "1e-9"
            )
        for name in self.ignore:
            if "." not in name:
                raise ConfigurationError(
                    f"shadow: ignore has {name!r}: write output.<column>, <uid>.*, "
                    "<uid>.<state> or <uid>.<state>.<column>"
                )

    def ignores(self, place: str, column: str | None = None) -> bool:
        """Return whether a place, or a column of it, is left out."""
        return (place if column is None else f"{place}.{column}") in self.ignore

    def ignored_columns(self, names: Iterable[str]) -> set[str]:
        """Return the columns of the output that are left out."""
        return {name for name in names if self.ignores(OUTPUT, name)}
