"""Combine the rows of a map task, so that fewer rows go through the shuffle. Runs on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pyspark_ckpt.combine.combination import Combination
from pyspark_ckpt.operator.task_failure import marks_errors

MOST_BYTES = 64 << 20
"""How much of the input is held at once."""

_PAYS = 0.7
"""Part of the rows that may be left: if more are, merging takes longer than it saves."""

_BATCH_ROWS = 100_000


class CombinedBeforeShuffle:
    """The function given to ``mapInArrow``."""

    def __init__(
        self, combination: Combination, keys: Sequence[str], most_bytes: int = MOST_BYTES
    ) -> None:
        self._combination = combination
        self._keys = list(keys)
        self._most_bytes = most_bytes

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return partial rows: one per key of each piece of the input, or all rows of a piece.

        A sum of a piece may not fit its type where the whole sum does. Only the operator behind the
        shuffle has all rows of a key, so it decides.
        """
        pays = True
        for rows in _pieces(batches, self._most_bytes):
            partials = self._combination.partials(rows, self._keys)
            merged = self._combination.merge_some(partials, self._keys) if pays else None
            if merged is not None:
                partials = merged
                # The keys of the next piece are as many as those of this one.
                pays = len(partials) <= _PAYS * len(rows)
            yield from partials.to_batches(max_chunksize=_BATCH_ROWS)


def _pieces(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= most_bytes:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
