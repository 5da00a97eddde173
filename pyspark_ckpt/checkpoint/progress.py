"""Progress of long work on the driver: a bar on a terminal, else lines in the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import Progress as Bar

logger = logging.getLogger(__name__)

_LOGGED_STEPS = 10


class Progress(Protocol):
    """Is told how far the work has come."""

    def advance(self, parts: int) -> None:
        """Note that `parts` more of it are done."""


@contextmanager
def shown_progress(what: str, total: int) -> Iterator[Progress]:
    """Show how far `what` has come, in `total` parts, while the context lasts."""
    if not sys.stdout.isatty():
        yield _LoggedProgress(what, total)
        return
    with Bar(transient=True) as bar:
        yield _ShownProgress(bar, what, total)


class _ShownProgress:
    def __init__(self, bar: Bar, what: str, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task(what, total=total)

    def advance(self, parts: int) -> None:
        self._bar.advance(self._task, parts)


class _LoggedProgress:
    """At most a few lines for the whole of it."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._logged = 0

    def advance(self, parts: int) -> None:
        self._done += parts
        step = self._done * _LOGGED_STEPS // max(self._total, 1)
        if step > self._logged:
            self._logged = step
            logger.info("%s: %s of %s subtasks", self._what, self._done, self._total)
