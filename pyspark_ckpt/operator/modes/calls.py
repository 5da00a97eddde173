"""Which calls bring a processor its rows: one for each key, or one for all keys of a part.

What rows are in them is another question: see :mod:`pyspark_ckpt.operator.modes.views`. The two
answers together are a mode, and the class of the processor says which one it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.modes.output import OutputBuffer
from pyspark_ckpt.operator.modes.processors import HANDLES_NO_TIMERS
from pyspark_ckpt.operator.modes.views import ColumnView, Numbers, View
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keyed import Key, KeyedRows, keyed_rows
from pyspark_ckpt.operator.rows.mode import Handle
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows, taken
from pyspark_ckpt.operator.state.timers import DueTimer
from pyspark_ckpt.operator.table.keys import PartKeys, StoredKey

ShowTimers = Callable[["DueTimers"], tuple[Any, Any]]
"""From due timers to the keys and the timers as a processor gets them."""


class _Part:
    """The rows of a part of an epoch, by key; the keys are in the order of their stored form."""

    def __init__(self, columns: InputColumns, batches: SentRows) -> None:
        self._columns = columns
        self._keyed: KeyedRows = keyed_rows(columns, batches)


class KeyedPart(_Part):
    """A part of which each key has a call."""

    def __init__(self, view: View, columns: InputColumns, batches: SentRows) -> None:
        super().__init__(columns, batches)
        keyed = self._keyed
        self.stored = keyed.stored.pairs()
        """Key group and encoded key of each key."""
        self.keys: list[Key] = columns.keys_of(keyed.first)
        """The keys as the processor sees them."""
        self._bounds = keyed.bounds
        self._rows_between = view.rows_between(columns, keyed.sent)

    def process(
        self, handle: Handle, position: int, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have a method of the processor handle one key."""
        output: Iterable[Any] | None = handle(
            self.keys[position], self.rows(position), timer_values
        )
        return output

    def rows(self, position: int) -> Iterator[Any]:
        """Return the rows of a key as its call gets them."""
        return self._rows_between(self._bounds[position], self._bounds[position + 1])

    def newest_event_time_ms(self, position: int) -> int | None:
        """Return the newest event time of a key's rows, ``None`` without one."""
        return self._newest_times_ms[position]

    @cached_property
    def _newest_times_ms(self) -> list[int | None]:
        return self._columns.newest_times_ms(self._keyed.sent, self._bounds)

    def sent_rows(self, position: int) -> Any:
        """Return the rows of a key as they were sent."""
        start, stop = self._bounds[position], self._bounds[position + 1]
        return taken(self._keyed.sent, np.arange(start, stop))


class PartOfAllKeys(_Part):
    """A part whose keys have one call together, for which a position has no effect."""

    def __init__(self, view: ColumnView, columns: InputColumns, batches: SentRows) -> None:
        super().__init__(columns, batches)
        keyed = self._keyed
        self.stored: PartKeys = keyed.stored
        """Key group and encoded key of each key."""
        positions = np.repeat(np.arange(len(keyed.stored)), np.diff(keyed.bounds))
        self._given = view.keys(columns, keyed), view.rows(columns, keyed.sent, positions)

    def process(
        self,
        handle: Handle,
        position: int,  # noqa: ARG002
        timer_values: TimerValues,
    ) -> Iterable[Any] | None:
        """Have a method of the processor handle all keys; only once, because it may change them."""
        keys, rows = self._given
        del self._given  # a processor may be done with them long before it has yielded all
        output: Iterable[Any] | None = handle(keys, rows, timer_values)
        return output

    def newest_event_time_ms(self, position: int) -> int | None:  # noqa: ARG002
        """Return the newest event time of all rows, ``None`` without one."""
        sent = self._keyed.sent
        return self._columns.newest_times_ms(sent, [0, len(sent)])[0]

    def sent_rows(self, position: int) -> Any:  # noqa: ARG002
        """Return all rows as they were sent."""
        return self._keyed.sent


class DueTimers:
    """Due timers by key; the key of the earliest timer is the first."""

    def __init__(self, due: Sequence[DueTimer]) -> None:
        times_of: dict[StoredKey, list[int]] = {}
        for timer in due:
            times_of.setdefault(timer.key, []).append(timer.time_ms)
        self.keys = PartKeys.in_given_order(list(times_of))
        numbers = [len(times) for times in times_of.values()]
        self.positions: Numbers = np.repeat(np.arange(len(numbers)), numbers)
        """The place of each timer's key among the keys."""
        self.times_ms: Numbers = np.fromiter(
            chain.from_iterable(times_of.values()), np.int64, len(due)
        )


class Calls(ABC):
    """A mode of an operator: which calls bring the rows, and as what they are seen there."""

    method: str
    late_method: str
    calls_once_per_part: bool

    def __init__(self, view: View, columns: InputColumns, output_rows: OutputRows) -> None:
        self.view = view
        self.form = view.form
        self.columns = self.shown_columns(columns)
        self.output_rows = output_rows
        self.new_output()  # what it refuses is refused here rather than on the executors

    @abstractmethod
    def part(self, batches: SentRows) -> KeyedPart | PartOfAllKeys:
        """Return a part of an epoch's rows by their keys."""

    @abstractmethod
    def shown_columns(self, columns: InputColumns) -> InputColumns:
        """Return columns, also of initial and broadcast rows, as the calls show them."""

    @abstractmethod
    def timers_shown(self, processor: StatefulProcessor) -> ShowTimers | None:
        """Return what makes the arguments of ``handleExpiredTimers``.

        Returns ``None`` if the processor gets a separate call for each timer.
        """

    def of_initial_state(self, columns: InputColumns) -> KeyCalls:
        """Return the mode of initial rows: they come key by key in every mode."""
        return KeyCalls(self.view, self.shown_columns(columns), self.output_rows)

    def new_output(self) -> OutputBuffer:
        """Return an empty buffer for the epoch's output."""
        return self.view.new_output(self.output_rows)


class KeyCalls(Calls):
    """A call for each key, with the rows of the key."""

    method = "handleInputRows"
    late_method = "handleLateRows"
    calls_once_per_part = False

    def part(self, batches: SentRows) -> KeyedPart:
        """Return a part of an epoch's rows by their keys."""
        return KeyedPart(self.view, self.columns, batches)

    def shown_columns(self, columns: InputColumns) -> InputColumns:
        """Return columns as they are: frames of one key are as in PySpark."""
        return columns

    def timers_shown(self, processor: StatefulProcessor) -> None:
        """Return ``None``: each timer has its call."""


class CallsForAllKeys(Calls):
    """A call for all keys of a part, with all of its rows."""

    calls_once_per_part = True
    view: ColumnView

    def __init__(self, view: ColumnView, columns: InputColumns, output_rows: OutputRows) -> None:
        super().__init__(view, columns, output_rows)
        self.method, self.late_method = view.method, view.late_method

    def part(self, batches: SentRows) -> PartOfAllKeys:
        """Return a part of an epoch's rows by their keys."""
        return PartOfAllKeys(self.view, self.columns, batches)

    def shown_columns(self, columns: InputColumns) -> InputColumns:
        """Return columns in which integers keep all digits, also if some are null."""
        return columns.with_exact_frames()

    def timers_shown(self, processor: StatefulProcessor) -> ShowTimers | None:
        """Return what makes the arguments of ``handleExpiredTimers``, if the processor has it."""
        own = getattr(type(processor), "handleExpiredTimers", None)
        return None if own in (None, *HANDLES_NO_TIMERS) else self._show_timers

    def _show_timers(self, timers: DueTimers) -> tuple[Any, Any]:
        return (
            self.view.due_keys(self.columns, timers.keys),
            self.view.due_timers(timers.positions, timers.times_ms),
        )
