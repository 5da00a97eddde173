"""The ways in which a processor receives its rows: one module each, one interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues


@dataclass(frozen=True, slots=True)
class KeyRows:
    """The rows of one key in one part of an epoch, in the form that its input mode has."""

    key_group: bytes
    encoded_key: bytes
    key: tuple[Any, ...]
    rows: Any


class InputMode(Protocol):
    """How rows come to the processor, and how its output goes back."""

    calls_once_per_part: bool
    """Whether the processor gets all keys of a part at once."""

    def keys_of(self, frames: list[pd.DataFrame]) -> list[KeyRows]:
        """Return the keys of a part, in the order of their stored keys."""

    def process(
        self, processor: StatefulProcessor, item: KeyRows, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have the processor handle one key."""

    def process_part(self, processor: Any, timer_values: TimerValues) -> Iterable[Any] | None:
        """Have the processor handle the part that :meth:`keys_of` was given last."""

    def newest_event_time_ms(self, item: KeyRows) -> int | None:
        """Return the newest event time of a key's rows, ``None`` if they have none."""

    def new_output(self) -> Output:
        """Return an empty buffer for the epoch's output."""


class InitialMode(InputMode, Protocol):
    """An input mode that an initial state can come in."""

    def initial_states(self, item: KeyRows) -> Iterator[Any]:
        """Return what ``handleInitialState`` gets for a key, one after the other."""


class Output(Protocol):
    """What the processor has yielded and has not left the function yet."""

    @property
    def rows(self) -> int:
        """How many rows it has."""

    def extend(self, output: Iterable[Any] | None) -> None:
        """Take what one call of the processor yields."""

    def take(self) -> pd.DataFrame:
        """Return all of it as a frame in the schema that leaves the function, and be empty."""
