"""A running query that its coordinator stops if checkpoints fail for too long."""

from __future__ import annotations

import logging

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.errors import FailedCheckpointsError
from pyspark_ckpt.query.stopping_failure import cannot_continue

logger = logging.getLogger(__name__)


class WatchedQuery:
    """A query, and the failure for which it was stopped.

    Parameters
    ----------
    query
        The running query.

    `failure` is the first noted failure, for every caller that waits for the query.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._query_id = query.id
        self.failure: FailedCheckpointsError | None = None

    def note(self, failure: FailedCheckpointsError) -> None:
        """Log a failure, and keep it if it is the first one."""
        logger.error("%s", failure)
        self.failure = self.failure or failure

    def stop(self, failure: FailedCheckpointsError) -> None:
        """Stop the query if it is active; callers that wait for it get the failure."""
        try:
            if self._query.isActive:
                self.note(failure)  # before the callers that wait are woken up
                self._query.stop()
        except Exception as exc:  # Spark itself is gone
            self.note(failure)
            logger.warning("query %s could not be stopped: %s", self._query_id, exc)

    def cannot_continue(self, error: BaseException) -> None:
        """Stop the query because its coordinator has failed."""
        logger.debug("traceback of the coordinator's failure", exc_info=error)
        self.stop(cannot_continue(self._query_id, error))
