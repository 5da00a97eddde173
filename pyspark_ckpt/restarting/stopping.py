"""Whether a query is being stopped, or was stopped, to be started again in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql.streaming.query import StreamingQuery


class RestartStop:
    """The stop of one run of a query for a restart in place.

    `is_under_way` stays true after the stop: the run ends without the query.

    Parameters
    ----------
    query
        The run of the query.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self.is_under_way = False

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop the run while the context lasts; one that still runs after an error is as before."""
        self.is_under_way = True
        try:
            yield
        except BaseException:
            self.is_under_way = not self._may_run()
            raise

    def _may_run(self) -> bool:
        try:
            return bool(self._query.isActive)
        except Exception:  # its server is out of reach
            return True
