"""Whether a query is being stopped, or was stopped, to be started again in place."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
        # In another thread: the connection of this one may hold the answer to a call that the user
        # has interrupted.
        with ThreadPoolExecutor(1, "pyspark_ckpt after an error") as pool:
            try:
                return bool(pool.submit(lambda: self._query.isActive).result())
            except Exception:  # its server is out of reach
                return True
