"""What a shadow has found so far: counts, and the first differences with keys and values."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pyspark_ckpt.html_form import html_facts, html_table
from pyspark_ckpt.shadowing.difference import ShadowDifference, frozen
from pyspark_ckpt.shadowing.rules import Rules
from pyspark_ckpt.text_table import text_table

MOST_KEPT = 1000
"""How many differences a report names; it counts all."""

_SHOWN = 20
_CELL = 80
_HEADER = ("epoch", "place", "change", "key", "columns", "old", "new")


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
    >>> print(ckpt.ShadowReport(8, 9, 2, rows=40, state_comparisons=2))
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
        >>> ckpt.ShadowReport().to_pandas().empty
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
