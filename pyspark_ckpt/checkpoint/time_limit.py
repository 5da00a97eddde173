"""Work that is waited for at most so long: a disk or a store that hangs hangs nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError

_Result = TypeVar("_Result")


def in_time(
    what: str,
    timeout_ms: int,
    work: Callable[[], _Result],
    thread_class: type[threading.Thread] = threading.Thread,
) -> _Result:
    """Return what `work` returns, run in a thread of its own.

    Parameters
    ----------
    what
        What is done, for the error and the thread's name.
    timeout_ms
        How long to wait.
    work
        May continue after it was given up, so it must do no harm then.
    thread_class
        Of the thread.

    Raises
    ------
    CheckpointAbortedError
        If it takes longer; its reason is ``expired``.
    """
    running = _Running(work)
    thread = thread_class(target=running.run, name=f"pyspark_ckpt {what}", daemon=True)
    thread.start()
    if not running.ended.wait(timeout_ms / 1000):
        raise expired(what, timeout_ms)
    return running.result()


def expired(what: str, timeout_ms: int) -> CheckpointAbortedError:
    """Return the error of work that takes too long."""
    return CheckpointAbortedError(
        f"{what} has expired: it has not ended within {timeout_ms / 1000:g} s; see that the "
        "storage answers, or raise spark.ckpt.execution.checkpointing.timeout",
        AbortReason.EXPIRED,
    )


class _Running(Generic[_Result]):
    """One call, its result or its error."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as exc:
            self._error = exc
        finally:
            self.ended.set()

    def result(self) -> _Result:
        if self._error is not None:
            raise self._error
        return self._results[0]
