"""Restarts a running query with other subtasks when its rules say so; a thread of the driver."""

from __future__ import annotations

import threading
import time
from collections import deque

from pyspark_ckpt.api.restarts import parallelism_of_run
from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.restarting.rules import Load, Proposal, RescaleRules, load_of
from pyspark_ckpt.spark.query import progress_since
from pyspark_ckpt.spark.session import why_ended

POLL_S = 2.0

logger = library_logger(__name__)


def follow(query: CheckpointedQuery, rules: RescaleRules) -> None:
    """Look at a query's epochs until it ends, and restart it as the rules say."""
    threading.Thread(
        target=_Follower(query, rules).run,
        name=f"pyspark_ckpt rescale {query.id}",
        daemon=True,
    ).start()


class _Follower:
    def __init__(self, query: CheckpointedQuery, rules: RescaleRules) -> None:
        self._query = query
        self._rules = rules
        self._run_id: str | None = None
        self._last: int | None = None
        self._loads: deque[Load] = deque(maxlen=rules.window)
        self._not_before_ms = monotonic_ms() + rules.interval_ms

    def run(self) -> None:
        has_failed = False
        while True:
            try:
                if not self._query.isActive:
                    return
                self._look()
                has_failed = False
            except Exception as exc:
                if why_ended(self._query._spark) is not None:
                    return
                if not has_failed:  # once, however long it lasts
                    logger.warning(
                        "query %s: the rules of its parallelism cannot see its load, and look "
                        "again every %g s: %s: %s",
                        self._query.id,
                        POLL_S,
                        type(exc).__name__,
                        exc,
                    )
                has_failed = True
            time.sleep(POLL_S)

    def _look(self) -> None:
        proposal = self._proposal()
        if proposal is not None and monotonic_ms() >= self._not_before_ms:
            self._restart(proposal)

    def _proposal(self) -> Proposal | None:
        run = self._query._query
        if run.runId != self._run_id:  # it was restarted: the epochs before say nothing now
            self._run_id, self._last = run.runId, None
            self._loads.clear()
        for report in progress_since(run, self._last):
            self._last = report["batchId"]
            load = load_of(report)
            if load is not None:
                self._loads.append(load)
        return self._rules.proposal(parallelism_of_run(self._query), list(self._loads))

    def _restart(self, proposal: Proposal) -> None:
        self._not_before_ms = monotonic_ms() + self._rules.interval_ms
        try:
            with self._query._turn.taken(proposal.reason):
                if self._query._query.runId == self._run_id:  # else somebody was first
                    self._query._restart(None, proposal.parallelism, proposal.reason)
        except Exception as exc:  # also of the user's function that builds the query
            logger.warning(
                "query %s was not given %s subtasks (%s): %s",
                self._query.id,
                proposal.parallelism,
                proposal.reason,
                exc,
            )
