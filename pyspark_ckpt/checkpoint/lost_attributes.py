"""Warns once per run of attributes that a processor changes outside of its state."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.run.lost_attributes import warning

logger = library_logger(__name__)


class LostAttributesNotice:
    """The warnings of one run of a query; on the driver."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id
        self._warned: set[str] = set()

    def look_at(self, uid: str, handles: Iterable[Handle]) -> None:
        """Warn of the attributes in the handles of an operator, once per operator."""
        if uid in self._warned:
            return
        names = {
            name
            for handle in handles
            if handle.metrics is not None
            for name in handle.metrics.lost_attributes or ()
        }
        if names:
            self._warned.add(uid)
            logger.warning(
                "%s", warning(f"query {self._query_id}, operator {uid!r}", sorted(names))
            )
