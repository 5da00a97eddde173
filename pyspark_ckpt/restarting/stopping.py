"""Who stops a run of a query: a restart in place, or somebody who does not start it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError


class RestartStop:
    """The stop of one run of a query for a restart in place.

    `is_under_way` stays true after the stop: the run ends without the query. `has_begun` says of
    the last restart whether it is to answer for a run that has ended.

    Parameters
    ----------
    query_id
        The id of the query.
    query
        The run of the query.
    """

    def __init__(self, query_id: str, query: StreamingQuery) -> None:
        self._query_id = query_id
        self._query = query
        self._deciding = threading.Lock()
        self._others = 0
        self.is_under_way = self.has_begun = False

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Stop the run for good while the context lasts: a restart that comes then is refused.

        Raises
        ------
        CheckpointAbortedError
            If the run was, or is being, stopped for a restart.
        """
        with self._deciding:
            if self.is_under_way:
                raise CheckpointAbortedError(
                    f"query {self._query_id} is being restarted in place: ask again when it runs",
                    AbortReason.QUERY_ENDED,
                )
            self._others += 1
        try:
            yield
        finally:
            with self._deciding:
                self._others -= 1

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop the run while the context lasts; one that still runs after an error is as before.

        Raises
        ------
        CheckpointAbortedError
            If somebody else has stopped the run, or is about to.
        """
        with self._deciding:
            self.has_begun = False
            if self._others or not self._query.isActive:
                raise CheckpointAbortedError(
                    f"query {self._query_id} has ended, or is being stopped: start it again with "
                    "what the restart was to change",
                    AbortReason.QUERY_ENDED,
                )
            self.is_under_way = self.has_begun = True
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
