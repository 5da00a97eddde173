"""How long a query has had nothing to do."""

from __future__ import annotations

import math
from datetime import datetime, timezone

from pyspark.sql.streaming.query import StreamingQuery


def idle_ms(query: StreamingQuery) -> float:
    """Return for how long a query has been waiting for input: 0 while it has some.

    Called by the driver, while the query runs or after it was stopped. Infinite where Spark reports
    that no input has come, as it does ten seconds after the last epoch by default.
    """
    if not query.isActive:
        return math.inf
    last = query.lastProgress
    if query.status["isDataAvailable"] or last is None:
        return 0
    durations = last["durationMs"]
    if "addBatch" not in durations:  # no epoch
        return math.inf
    began_at = datetime.fromisoformat(last["timestamp"].replace("Z", "+00:00"))
    since = datetime.now(timezone.utc) - began_at
    return max(0.0, since.total_seconds() * 1000 - float(durations["triggerExecution"]))
