"""The size of the frames that a pandas processor gets, after two settings of Spark."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.settings.values import size_bytes

_ROWS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_BYTES = 2**31 - 1
"""Spark's default, which means that there is no limit."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of one frame; the defaults are Spark's.

    If `rows` is 0 or less, the number of rows has no limit. A frame ends with the row that reaches
    `size_bytes`, where each row counts as large as the rows of the part are on average.
    """

    rows: int = 10_000
    size_bytes: int = _NO_BYTES

    @classmethod
    def of_session(cls, get: Callable[[str, str], Any]) -> FrameLimits:
        """Return the limits that a session's conf sets."""
        return cls(int(get(_ROWS_KEY, "10000")), size_bytes(get(_BYTES_KEY, str(_NO_BYTES))))

    def rows_of_frames(self, rows: int, size_bytes: Callable[[], int]) -> int:
        """Return how many of a part's rows make one frame."""
        most = self.rows if self.rows > 0 else rows
        if self.size_bytes >= _NO_BYTES or not rows:
            return max(most, 1)
        row_bytes: float = max(size_bytes() / rows, 1)
        return max(min(most, math.ceil(self.size_bytes / row_bytes)), 1)
