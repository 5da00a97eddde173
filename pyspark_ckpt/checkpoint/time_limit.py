"""Calls that are waited for only for a time: a disk or a store that hangs stops nobody else.

The calls run in daemon threads of this module, not in a pool of ``concurrent.futures``: the
interpreter joins a pool's threads at its exit, so a call that hangs would keep the driver alive.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError

_Result = TypeVar("_Result")


def in_time(
    what: str,
    timeout_ms: int,
    work: Callable[[], _Result],
    thread_class: type[threading.Thread] = threading.Thread,
) -> _Result:
    """Return what `work` returns; it runs in a separate thread.

    `work` may continue after the time limit, and must do no harm then. In this case
    ``CheckpointAbortedError`` is raised with the reason ``expired``.
    """
    call = _Call(work)
    thread_class(target=call.run, name=f"pyspark_ckpt {what}", daemon=True).start()
    if not has_ended(call.future, timeout_ms):
        raise expired(what, timeout_ms)
    return call.future.result()


def has_ended(future: Future[Any], timeout_ms: int | None) -> bool:
    """Return whether a call ends within a time; ``None`` waits without a limit."""
    return bool(wait([future], None if timeout_ms is None else timeout_ms / 1000).done)


def expired(what: str, timeout_ms: int) -> CheckpointAbortedError:
    """Return the error of work that takes too long."""
    return CheckpointAbortedError(
        f"{what} has expired: it has not ended within {timeout_ms / 1000:g} s; check that the "
        "storage answers, or raise spark.ckpt.execution.checkpointing.timeout",
        AbortReason.EXPIRED,
    )


class CallThread:
    """A daemon thread that runs calls in their order; a call that hangs holds up the next ones."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Run a call after those before it; return its result or error once it has ended."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        call = _Call(work)
        self._calls.put(call)
        return call.future

    def close(self) -> None:
        """End the thread after the calls that were submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()


class _Call(Generic[_Result]):
    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._context = copy_context()  # the caller's fields of the log
        self.future: Future[_Result] = Future()

    def run(self) -> None:
        try:
            result = self._context.run(self._work)
        except BaseException as exc:
            self.future.set_exception(exc)
        else:
            self.future.set_result(result)
