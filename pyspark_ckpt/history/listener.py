"""Listeners of a query's checkpoints, called on the driver."""

from __future__ import annotations

import threading
from collections import deque
from contextvars import copy_context

from pyspark_ckpt.clock import monotonic_ms
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
        >>> aborted = ckpt.results.AbortedCheckpoint(
        ...     "checkpoint", 3, 7, 0, 600_000, ckpt.results.AbortReason.EXPIRED, "too long"
        ... )
        >>> ckpt.CheckpointListener().onCheckpointAborted(aborted)
        """


class Listeners:
    """The listeners of one query, called in separate threads.

    The query never waits for a listener, so a listener may stop the query or wait for it. The
    library's own are called first, and never wait for those of users.
    """

    def __init__(self) -> None:
        self._users = _Caller("pyspark_ckpt listeners")
        self._own = _Caller("pyspark_ckpt own listeners", self._users)

    def add(self, listener: CheckpointListener) -> None:
        """Call a user's listener for every checkpoint that ends from now on."""
        self._users.listeners.append(listener)

    def add_own(self, listener: CheckpointListener) -> None:
        """Call a listener of this library, which returns soon, for every checkpoint from now on."""
        self._own.listeners.append(listener)

    def remove(self, listener: CheckpointListener) -> None:
        """Stop calling a user's listener; has no effect if it was never added."""
        if listener in self._users.listeners:
            self._users.listeners.remove(listener)

    def note(self, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
        """Keep an outcome for the next :meth:`call`."""
        self._own.note(outcome)

    def call(self) -> None:
        """Begin to call the listeners for the noted outcomes, without waiting.

        A listener may trigger a checkpoint; the running threads then handle that one too.
        """
        self._own.call()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until all calls have ended; return whether they have. In a listener, do not wait."""
        callers = self._own, self._users
        if any(each.is_this_thread for each in callers):
            return False
        ends_ms = monotonic_ms() + int(timeout_seconds * 1000)
        while all(each.wait(max(ends_ms - monotonic_ms(), 0) / 1000) for each in callers):
            # In this order: a user's listener may have triggered a checkpoint by then.
            if self._own.is_idle and self._users.is_idle:
                return True
        return False

    def wait_for_own(self, timeout_seconds: float) -> bool:
        """Wait until the library's own listeners have ended; return whether they have."""
        return self._own.wait(timeout_seconds)


class _Caller:
    """Calls some listeners in a thread, one after the other; then passes each outcome on."""

    def __init__(self, name: str, following: _Caller | None = None) -> None:
        self.listeners: list[CheckpointListener] = []
        self._name = name
        self._following = following
        self._outcomes: deque[CompletedCheckpoint | AbortedCheckpoint] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_this_thread(self) -> bool:
        """Whether a listener calls this."""
        return threading.current_thread() is self._thread

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        with self._changed:
            return self._thread is None

    def note(self, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
        """Keep an outcome for the next :meth:`call`."""
        self._outcomes.append(outcome)

    def call(self) -> None:
        """Begin to call the listeners."""
        with self._changed:
            if self._outcomes and self._thread is None:
                self._thread = threading.Thread(
                    target=copy_context().run, args=(self._run,), name=self._name, daemon=True
                )
                self._thread.start()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until all calls have ended; return whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_seconds)

    def _run(self) -> None:
        while (outcome := self._next()) is not None:
            with log_fields(checkpoint=outcome.checkpoint_id, epoch=outcome.epoch):
                for listener in list(self.listeners):
                    _call(listener, outcome)
            if self._following is not None:
                self._following.note(outcome)
                self._following.call()

    def _next(self) -> CompletedCheckpoint | AbortedCheckpoint | None:
        with self._changed:
            if self._outcomes:
                return self._outcomes.popleft()
            self._thread = None
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
