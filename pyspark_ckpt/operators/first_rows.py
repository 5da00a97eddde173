"""The first row of each key: deduplication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operator.modes.processors import ArrowProcessor
from pyspark_ckpt.operators.stream_columns import StreamColumns, bounds_of_keys

_SEEN = "seen"


class FirstRows(ArrowProcessor):
    """Emit the first row of a key, and no other as long as the key is remembered."""

    def __init__(self, columns: StreamColumns, ttl: Any) -> None:
        self._columns = columns
        self._ttl = ttl

    def init(self, handle: Any) -> None:
        """Open the state."""
        self._seen = handle.getValueState(_SEEN, f"{_SEEN} boolean", self._ttl)

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        """Yield the first row of each key that is new."""
        del timerValues
        is_new = self._seen.getMany(keys).column(_SEEN).is_null()
        new = keys.filter(is_new)
        if not len(new):
            return
        self._seen.updateMany(new, pa.table({_SEEN: np.ones(len(new), bool)}))
        first = rows.take(bounds_of_keys(rows)[:-1])
        yield self._columns.output(keys, first.filter(is_new))

    def close(self) -> None:
        """Close nothing."""
