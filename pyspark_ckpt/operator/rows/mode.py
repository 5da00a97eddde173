"""The interface of the modes, in which a processor receives its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.rows.input import InputColumns

Handle = Callable[[Any, Any, TimerValues], Any]
"""A method of a processor that gets a key, or all keys, with the rows."""


class RowForm(Enum):
    """What the rows of a call are to the processor."""

    ROWS = auto()
    PANDAS = auto()
    ARROW = auto()


class Part(Protocol):
    """The rows of a part of an epoch; its keys are in the order of their stored form."""

    @property
    def stored(self) -> Sequence[tuple[bytes, bytes]]:
        """Key group and encoded key of each key."""

    def process(
        self, handle: Handle, position: int, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have a method of the processor handle the key at a position, or all keys at once."""

    def sent_rows(self, position: int) -> Any:
        """Return the rows of the key at a position as they were sent."""

    def newest_event_time_ms(self, position: int) -> int | None:
        """Return the newest event time of a key's rows, ``None`` without one."""


class PartOfKeys(Part, Protocol):
    """A part of which each key has a call."""

    @property
    def keys(self) -> Sequence[tuple[Any, ...]]:
        """The keys as the processor sees them."""

    def rows(self, position: int) -> Iterator[Any]:
        """Return the rows of a key as its call gets them."""


class InputMode(Protocol):
    """How rows come to the processor, and how its output goes back."""

    method: str
    """The method of the processor that gets the rows."""
    late_method: str
    """The method of the processor that gets late rows, if it has it."""
    form: RowForm
    """What the rows are there."""
    calls_once_per_part: bool
    """Whether the processor gets all keys of a part at once, as if they were one key."""

    def part(self, batches: list[Any]) -> Part:
        """Return a part of an epoch's rows by their keys."""

    @property
    def columns(self) -> InputColumns:
        """The columns of the rows as they are sent."""

    def timers_shown(self, processor: StatefulProcessor) -> Callable[[Any], tuple[Any, Any]] | None:
        """Return what makes the arguments of a call for all due timers.

        Returns ``None`` if the processor gets a separate call for each timer.
        """

    def new_output(self) -> Output:
        """Return an empty buffer for the epoch's output."""


class Output(Protocol):
    """The rows that the processor has yielded and that have not left the function yet."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add what one call of the processor yields, until as much is there as leaves at once.

        Returns
        -------
        iterator or None
            What the call may still yield, for the next `fill`; ``None`` if that was all.
        """

    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""

    def take(self) -> pa.RecordBatch:
        """Return the rows in the sent schema, and empty the buffer."""
