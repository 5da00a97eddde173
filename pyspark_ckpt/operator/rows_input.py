"""``transformWithState``: the processor gets an iterator of Rows per key and yields Rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.codec import key_encoder
from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.input_mode import KeyRows
from pyspark_ckpt.operator.output_rows import OutputRows
from pyspark_ckpt.operator.stored_keys import encode_key_group


class RowsInput:
    """Rows in, rows out.

    Parameters
    ----------
    input_columns, output_rows
        The operator's schemas as they travel.
    """

    calls_once_per_part = False

    def __init__(self, input_columns: InputColumns, output_rows: OutputRows) -> None:
        self._input = input_columns
        self._output = output_rows
        self._event_time = input_columns.event_time_index

    def keys_of(self, frames: list[pd.DataFrame]) -> list[KeyRows]:
        """Return the keys of a part, in the order of their stored keys."""
        encode = key_encoder()
        items = []
        for sent_key, (key_group, rows) in self._input.group_by_key(iter(frames)).items():
            sent = self._input.key_tuple(sent_key)
            items.append(
                KeyRows(encode_key_group(key_group), encode(sent), self._input.user_key(sent), rows)
            )
        items.sort(key=lambda item: (item.key_group, item.encoded_key))
        return items

    def process(
        self, processor: StatefulProcessor, item: KeyRows, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Have the processor handle one key."""
        return processor.handleInputRows(item.key, iter(item.rows), timer_values)

    def process_part(self, processor: Any, timer_values: TimerValues) -> Iterable[Any] | None:
        """Not called: keys are processed one by one."""
        raise NotImplementedError

    def initial_states(self, item: KeyRows) -> Iterator[Any]:
        """Return what ``handleInitialState`` gets for a key: each of its rows."""
        return iter(item.rows)

    def newest_event_time_ms(self, item: KeyRows) -> int | None:
        """Return the newest event time of a key's rows, ``None`` if they have none."""
        if self._event_time is None:
            return None
        times: list[datetime] = [
            row[self._event_time] for row in item.rows if row[self._event_time] is not None
        ]
        return int(max(times).timestamp() * 1000) if times else None

    def new_output(self) -> RowsOutput:
        """Return an empty buffer for the epoch's output."""
        return RowsOutput(self._output)


class RowsOutput:
    """Rows that the processor has yielded."""

    def __init__(self, output_rows: OutputRows) -> None:
        self._schema = output_rows
        self._rows: list[Any] = []

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._rows)

    def extend(self, output: Iterable[Any] | None) -> None:
        """Take what one call of the processor yields."""
        if output is not None:
            self._rows.extend(output)

    def take(self) -> pd.DataFrame:
        """Return them as a frame in the schema that leaves the function, and be empty."""
        rows, self._rows = self._rows, []
        return self._schema.frame(rows)
