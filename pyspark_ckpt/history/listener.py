"""Listeners of a query's checkpoints, called on the driver."""

from __future__ import annotations

import threading
from collections import deque
from contextvars import copy_context

from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.log_fields import library_logger, log_fields

logger = library_logger(__name__)


class CheckpointListener:
    """Is notified of the checkpoints of a query; subclass it and override the methods you need.

    Its methods are called on the driver in a separate thread, one call at a time, in the order in
    which checkpoints end. An error of a method is logged and has no other effect. A method may call
    every method of the query, also ``stopWithSavepoint``.

    Examples
    --------
    >>> class Log(ckpt.CheckpointListener):
    ...     def onCheckpointCompleted(self, checkpoint):
    ...         print(f"epoch {checkpoint.epoch} is in {checkpoint.path}")
    ...
    ...     def onCheckpointAborted(self, checkpoint):
    ...         print(checkpoint.reason.value, checkpoint.message)
    >>> query.addCheckpointListener(Log())
    """

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Handle a checkpoint that is durable.

        Parameters
        ----------
        checkpoint : CompletedCheckpoint
            Its id, path, epoch, times and size.

        Examples
        --------
        >>> ckpt.CheckpointListener().onCheckpointCompleted(checkpoint)
        """

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        """Handle a checkpoint that was aborted.

        Parameters
        ----------
        checkpoint : AbortedCheckpoint
            Its id, epoch, times and reason.

        Examples
        --------
        >>> aborted = ckpt.AbortedCheckpoint(
        ...     "checkpoint", 3, 7, 0, 600_000, ckpt.AbortReason.EXPIRED, "the jobs took too long"
        ... )
        >>> ckpt.CheckpointListener().onCheckpointAborted(aborted)
        """


class Listeners:
    """The listeners of one query, called in a separate thread.

    The query never waits for a listener, so a listener may stop the query or wait for it.
    """

    def __init__(self) -> None:
        self._listeners: list[CheckpointListener] = []
        self._outcomes: deque[CompletedCheckpoint | AbortedCheckpoint] = deque()
        self._changed = threading.Condition()
        self._caller: threading.Thread | None = None

    def add(self, listener: CheckpointListener) -> None:
        """Call a listener for every checkpoint that ends from now on."""
        self._listeners.append(listener)

    def remove(self, listener: CheckpointListener) -> None:
        """Stop calling a listener; has no effect if it was never added."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def note(self, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
        """Keep an outcome for the next :meth:`call`."""
        self._outcomes.append(outcome)

    def call(self) -> None:
        """Begin to call the listeners for the noted outcomes, without waiting.

        A listener may trigger a checkpoint; the running thread then handles that one too.
        """
        with self._changed:
            if self._outcomes and self._caller is None:
                self._caller = threading.Thread(
                    target=copy_context().run,
                    args=(self._run,),
                    name="pyspark_ckpt listeners",
                    daemon=True,
                )
                self._caller.start()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until all calls have ended; return whether they have. In a listener, do not wait."""
        if threading.current_thread() is self._caller:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._caller is None, timeout_seconds)

    def _run(self) -> None:
        while (outcome := self._next()) is not None:
            with log_fields(checkpoint=outcome.checkpoint_id, epoch=outcome.epoch):
                for listener in list(self._listeners):
                    _call(listener, outcome)

    def _next(self) -> CompletedCheckpoint | AbortedCheckpoint | None:
        with self._changed:
            if self._outcomes:
                return self._outcomes.popleft()
            self._caller = None
            self._changed.notify_all()
            return None


def _call(listener: CheckpointListener, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
    try:
        if isinstance(outcome, CompletedCheckpoint):
            listener.onCheckpointCompleted(outcome)
        else:
            listener.onCheckpointAborted(outcome)
    except BaseException:  # sys.exit() would end the thread, and nobody would be called again
        logger.exception(
            "checkpoint listener %s raised an error, which has no other effect",
            type(listener).__name__,
        )
