"""Work in a Python worker that is in no hurry, beside the tasks of an epoch that are."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

_Made = TypeVar("_Made")
_NICENESS = 10


def at_low_priority(work: Callable[[], _Made]) -> _Made:
    """Run `work` in a thread of its own, which gives way to others on a busy processor.

    On Linux each thread has a priority. A process cannot raise its own again, and Spark gives the
    next task of an epoch to the same worker: so only a thread is lowered, which ends with the work.
    Elsewhere `work` has the usual priority.
    """
    if not sys.platform.startswith("linux"):
        return work()
    with ThreadPoolExecutor(1, "pyspark_ckpt-copy", initializer=_lower_priority) as thread:
        return thread.submit(work).result()


def _lower_priority() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
