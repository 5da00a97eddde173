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

    Parameters
    ----------
    rows
        Rows of a frame at most; 0 or less stands for no limit.
    size_bytes
        A frame ends with the row that reaches this size, each row taken as large as all rows of
        the part are on average.
    """

    rows: int = 10_000
    size_bytes: int = _NO_BYTES

    @classmethod
    def of_session(cls, get: Callable[[str, str], Any]) -> FrameLimits:
        """Return the limits that a session's conf sets.

        Parameters
        ----------
        get
            Returns the value of a key, or the default that is given with it.
        """
        return cls(int(get(_ROWS_KEY, "10000")), size_bytes(get(_BYTES_KEY, str(_NO_BYTES))))

    def rows_of_frames(self, rows: int, size_bytes: Callable[[], int]) -> int:
        """Return how many of a part's rows make one frame.

        Parameters
        ----------
        rows
            The rows of the part.
        size_bytes
            Returns the size of all of them.
        """
        most = self.rows if self.rows > 0 else rows
        if self.size_bytes >= _NO_BYTES or not rows:
            return max(most, 1)
        row_bytes: float = max(size_bytes() / rows, 1)
        return max(min(most, math.ceil(self.size_bytes / row_bytes)), 1)
