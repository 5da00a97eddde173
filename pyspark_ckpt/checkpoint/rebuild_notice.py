"""Warns once per run if the state is rebuilt in every epoch, because executors do not stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.log_fields import library_logger

logger = library_logger(__name__)

PATIENCE_EPOCHS = 3
"""How many epochs in a row have to rebuild all state. The first epoch after a start always does."""


class RebuildNotice:
    """The warnings of one run of a query; on the driver."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id
        self._newest: dict[str, int] = {}
        self._in_a_row: Counter[str] = Counter()
        self._warned: set[str] = set()

    def look_at(self, uid: str, epoch: int, handles: Iterable[Handle]) -> None:
        """Look at the handles of an operator after an epoch, and warn once per operator."""
        if uid in self._warned or epoch <= self._newest.get(uid, -1):
            return
        self._newest[uid] = epoch
        rebuilds = [
            each.metrics.rebuilds
            for each in handles
            if each.epoch == epoch and each.metrics is not None
        ]
        if not rebuilds:
            return  # no subtask had rows, and a copy that is not used is not rebuilt
        self._in_a_row[uid] = self._in_a_row[uid] + 1 if all(rebuilds) else 0
        if self._in_a_row[uid] == PATIENCE_EPOCHS:
            self._warned.add(uid)
            logger.warning(
                "query %s, operator %r: its whole state was rebuilt from durable files in %s "
                "epochs in a row, because no executor had its local copy. Keep executors longer "
                "than the time between triggers: raise "
                "spark.dynamicAllocation.executorIdleTimeout, or set "
                "spark.dynamicAllocation.minExecutors (docs/clusters.md)",
                self._query_id,
                uid,
                PATIENCE_EPOCHS,
            )
