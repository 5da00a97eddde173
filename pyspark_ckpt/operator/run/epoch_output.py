"""What the processor's calls of an epoch yield, on its way to Spark.

Rows are gathered over many calls. As soon as there are enough they leave, also in the middle of a
call. Only a quarantine holds what a call yields until it ends, because it may drop it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.rows.mode import Output
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS
from pyspark_ckpt.operator.run.laps import Laps, Phase
from pyspark_ckpt.operator.run.output_origins import Key, OutputOrigins
from pyspark_ckpt.operator.table.part_keys import StoredKey


class EpochOutput:
    """The output of an epoch."""

    def __init__(
        self, buffer: Output, laps: Laps, described: Callable[[str, Key | None], str]
    ) -> None:
        self.buffer = buffer
        self.origins = OutputOrigins()
        self._laps = laps
        self._described = described

    @property
    def is_full(self) -> bool:
        """Whether so many rows are there that they should leave."""
        return self.buffer.rows >= CHUNK_ROWS

    def begin(
        self, step: str, keys: Sequence[Key] = (), stored: Sequence[StoredKey] = ()
    ) -> list[int]:
        """Begin the calls of a method with an empty buffer.

        After each call for a key, the caller appends the number of rows in the buffer to the
        returned list. `stored` has the stored form of `keys`.
        """
        return self.origins.begin(step, keys, stored)

    def of_call(self, output: Iterable[Any] | None) -> Iterator[pa.RecordBatch]:
        """Gather what a call yields, and yield to Spark what is enough to leave."""
        rest = self.buffer.fill(output)
        if rest is not None:
            yield from self.of_rest(rest)

    def of_rest(self, rest: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        """Go on with a call whose output filled the buffer."""
        more: Iterator[Any] | None = rest
        while more is not None:
            yield from self.written()
            more = self.buffer.fill(more)

    def written(self) -> Iterator[pa.RecordBatch]:
        """Yield to Spark what is there."""
        if not self.buffer.rows:
            return
        self._laps.begin(Phase.WRITE)
        yield self._taken()
        self.origins.go_on()
        self._laps.begin(Phase.USER)

    def _taken(self) -> pa.RecordBatch:
        """Return the output so far; an error about a row names the call that made the row."""
        try:
            return self.buffer.take()
        except StateValueError as exc:
            if exc.row is not None:
                exc.add_place(self._described(self.origins.step, self.origins.key_of(exc.row)))
            raise
