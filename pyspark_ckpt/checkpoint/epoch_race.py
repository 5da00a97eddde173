"""Which of several drivers that run one query commits its epochs.

Spark lets exactly one driver commit an epoch, and the others fail when they try. Therefore the
driver that has committed the newest epoch is the healthy one, also if others were started later.
"""

from __future__ import annotations

import time
from enum import Enum, auto

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.spark.log import SparkLog

REPORTED_WITHIN_SECONDS = 10.0
"""Spark reports an epoch's progress a moment after it has committed the epoch."""

_POLL_SECONDS = 0.05


class Standing(Enum):
    """Which driver has committed the newest epoch."""

    OURS = auto()
    ANOTHERS = auto()
    OPEN = auto()
    """No driver has committed an epoch since this run began."""


class EpochRace:
    """Knows whether one run of a query commits the query's epochs."""

    def __init__(self, query: StreamingQuery, log: SparkLog) -> None:
        self._query = query
        self._log = log
        self._began_at = log.committed_epoch()
        self._has_won = False

    @property
    def has_won(self) -> bool:
        """Whether this run has committed an epoch itself."""
        return self._has_won or self._own_epoch() is not None

    @property
    def is_lost(self) -> bool:
        """Whether another driver has committed the newest epoch; may wait for Spark's report.

        A run that Spark keeps no report of (``spark.sql.streaming.numRecentProgressUpdates`` of 1)
        cannot tell, and has not lost.
        """
        if not self.has_won:
            # Nobody may have looked before Spark reported that nothing came.
            self._has_won = any(
                "addBatch" in each["durationMs"] for each in self._query.recentProgress
            )
        return self._query.lastProgress is not None and self.standing() is Standing.ANOTHERS

    def standing(self) -> Standing:
        """Return which driver has committed the newest epoch; may wait for Spark's report."""
        if self._log.query_id() != self._query.id:
            # A rollback or a restore has replaced the epochs, and the numbers say nothing.
            return Standing.ANOTHERS
        committed = self._log.committed_epoch()
        deadline = time.monotonic() + REPORTED_WITHIN_SECONDS
        while True:
            own = self._own_epoch()
            if own is not None and committed is not None and own >= committed:
                return Standing.OURS
            if own is None and committed == self._began_at:
                return Standing.OPEN
            if not self._query.isActive or time.monotonic() > deadline:
                return Standing.ANOTHERS
            time.sleep(_POLL_SECONDS)

    def _own_epoch(self) -> int | None:
        """Return the newest epoch that this run has reported, which it does after the commit."""
        last = self._query.lastProgress
        if last is not None and "addBatch" in last["durationMs"]:
            self._has_won = True
            return int(last["batchId"])
        # After ten seconds without input, Spark reports that, with the number of the next epoch.
        return int(last["batchId"]) - 1 if last is not None and self._has_won else None
