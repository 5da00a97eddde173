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
    the last restart whether it is to answer for a run that has ended. If somebody sets
    `is_unwanted`, no restart starts the query again.
    """

    def __init__(self, query_id: str, query: StreamingQuery) -> None:
        self._query_id = query_id
        self._query = query
        self._for_good = threading.Lock()
        self._deciding = threading.Lock()
        self._is_left_out = False
        self.is_under_way = self.has_begun = self.is_unwanted = False

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Stop the run for good while the context lasts: a restart that comes then is refused.

        The next one waits, and finds the run stopped: two must not both finish its last epoch.

        CheckpointAbortedError means that the run was, or is being, stopped for a restart.
        """
        with self._for_good:
            with self._deciding:
                if self.is_under_way:
                    raise CheckpointAbortedError(
                        f"query {self._query_id} is being restarted in place: ask again when it "
                        "runs",
                        AbortReason.QUERY_ENDED,
                    )
                self._is_left_out = True
            try:
                yield
            finally:
                with self._deciding:
                    self._is_left_out = False

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop the run while the context lasts; one that still runs after an error is as before.

        CheckpointAbortedError means that somebody else has stopped the run, or is about to.
        """
        with self._deciding:
            self.has_begun = False
            if self._is_left_out or not self._query.isActive:
                raise self._is_stopped()
            self.check_wanted()
            self.is_under_way = self.has_begun = True
        try:
            yield
        except BaseException:
            self.is_under_way = not self.may_run()
            raise

    def check_wanted(self) -> None:
        """Raise a ``CheckpointAbortedError`` if somebody wants the run to stay stopped."""
        if self.is_unwanted:
            raise self._is_stopped()

    def _is_stopped(self) -> CheckpointAbortedError:
        return CheckpointAbortedError(
            f"query {self._query_id} has ended, or is being stopped: start it again with what the "
            "restart was to change",
            AbortReason.QUERY_ENDED,
        )

    def may_run(self) -> bool:
        """Return whether the run may go on: it is active, or cannot be asked."""
        # In another thread: the connection of this one may hold the answer to a call that the user
        # has interrupted.
        with ThreadPoolExecutor(1, "pyspark_ckpt after an error") as pool:
            try:
                return bool(pool.submit(lambda: self._query.isActive).result())
            except Exception:  # its server is out of reach
                return True
