"""The processor behind the shuffle: merges partial rows with those of the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.combine.combination import Combination
from pyspark_ckpt.operator.modes.arrow import ArrowProcessor
from pyspark_ckpt.operator.schema.evolution import PRESENT_MARK
from pyspark_ckpt.operator.table.key_positions import KEY_POSITION

STATE = "combined"
"""The name of the state."""


class CombiningProcessor(ArrowProcessor):
    """Merges what came for a key in an epoch with what the state has.

    If `combines_rows` is false, the rows arrive as partial rows. A key is kept for `ttl_ms` after
    its last row, forever if it is ``None``.
    """

    def __init__(
        self, combination: Combination, *, combines_rows: bool, ttl_ms: int | None = None
    ) -> None:
        self._combination = combination
        self._combines_rows = combines_rows
        self._ttl_ms = ttl_ms
        # Never null once written: null is a key without a value, or an aggregate added since.
        self._flags = [PRESENT_MARK, *combination.first_marks]

    def init(self, handle: Any) -> None:
        """Open the state."""
        flags = [T.StructField(name, T.BooleanType()) for name in self._flags]
        schema = T.StructType([*flags, *self._combination.schema.fields])
        self._state = handle.getValueState(STATE, schema, self._ttl_ms)

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        """Yield one row per key: its columns and the results."""
        del timerValues
        by = [KEY_POSITION]
        names = [KEY_POSITION, *self._combination.schema.names]
        marks = self._combination.first_marks
        new = self._combination.partials(rows, by) if self._combines_rows else rows.select(names)
        stored = self._state.getMany(keys).append_column(KEY_POSITION, keys.column(KEY_POSITION))
        old = stored.filter(stored.column(PRESENT_MARK).is_valid()).select([*names, *marks])
        partials = pa.concat_tables([old, _with_true(new, marks).cast(old.schema)])
        merged = self._combination.merge(partials, by).sort_by(KEY_POSITION)
        self._state.updateMany(keys, _with_true(merged, self._flags))
        yield _beside(keys.drop([KEY_POSITION]), merged.drop([KEY_POSITION]))

    def close(self) -> None:
        """Close nothing."""


def _with_true(table: pa.Table, names: Sequence[str]) -> pa.Table:
    true = pa.array(np.ones(len(table), np.bool_))
    for name in names:
        table = table.append_column(name, true)
    return table


def _beside(keys: pa.Table, results: pa.Table) -> pa.Table:
    columns: Sequence[Any] = [*keys.columns, *results.columns]
    return pa.Table.from_arrays(columns, names=[*keys.column_names, *results.column_names])
