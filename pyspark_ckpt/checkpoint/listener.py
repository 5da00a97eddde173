"""Listeners of a query's checkpoints, called on the driver."""

from __future__ import annotations

import logging
import threading
from collections import deque

from pyspark_ckpt.checkpoint.outcome import AbortedCheckpoint, CompletedCheckpoint

logger = logging.getLogger(__name__)


class CheckpointListener:
    """Hears of the checkpoints of a query; subclass it and override what you need.

    Called on the driver, one call at a time, in the order in which checkpoints end. What a method
    raises is logged and harms nothing.
    """

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Hear of a checkpoint that is durable."""

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        """Hear of a checkpoint that was given up."""


class Listeners:
    """The listeners of one query."""

    def __init__(self) -> None:
        self._listeners: list[CheckpointListener] = []
        self._outcomes: deque[CompletedCheckpoint | AbortedCheckpoint] = deque()
        self._calling = threading.Lock()

    def add(self, listener: CheckpointListener) -> None:
        """Have a listener hear of everything from now on."""
        self._listeners.append(listener)

    def remove(self, listener: CheckpointListener) -> None:
        """Have a listener hear of nothing more; harmless if it was never added."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def note(self, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
        """Keep an outcome for the next :meth:`call`."""
        self._outcomes.append(outcome)

    def call(self) -> None:
        """Tell the listeners what was noted; call it without any lock held.

        A listener may trigger a checkpoint: the call that is under way then tells of it too.
        """
        while self._outcomes and self._calling.acquire(blocking=False):
            try:
                while self._outcomes:
                    self._tell(self._outcomes.popleft())
            finally:
                self._calling.release()

    def _tell(self, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
        for listener in list(self._listeners):
            _tell(listener, outcome)


def _tell(listener: CheckpointListener, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
    try:
        if isinstance(outcome, CompletedCheckpoint):
            listener.onCheckpointCompleted(outcome)
        else:
            listener.onCheckpointAborted(outcome)
    except Exception:
        logger.exception("checkpoint listener %s raised: harmless", type(listener).__name__)
