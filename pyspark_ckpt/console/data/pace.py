"""Rests between the parts of a long page, for as long as other programs want the processors.

The lowest priority is not enough. Linux still gives a thread that waits a slice of each processor,
some percent where no processor is ever free, and a query would lose that.
"""

from __future__ import annotations

import time
from pathlib import Path

_RESTS = 4
"""A page rests this many times as long as its thread waited for a processor."""

_MOST_SECONDS = 1.0
_STATISTICS = Path("/proc/thread-self/schedstat")
"""Three numbers of a thread; the second is how many nanoseconds it waited for a processor."""


class Pace:
    """The pace of one thread: it rests after it had to wait for a processor.

    Where the system does not say how long a thread waited, it never rests.
    """

    def __init__(self) -> None:
        self._waited_ns = _waited_ns()

    def rest(self) -> None:
        """Sleep four times as long as the thread waited since the last rest, at most a second."""
        due = _RESTS * (_waited_ns() - self._waited_ns) / 1e9
        if due > 0:
            time.sleep(min(due, _MOST_SECONDS))
        self._waited_ns = _waited_ns()  # also what it waited after the sleep


def _waited_ns() -> int:
    try:
        return int(_STATISTICS.read_text().split()[1])
    except (OSError, IndexError, ValueError):  # another kernel, or Linux without it
        return 0
