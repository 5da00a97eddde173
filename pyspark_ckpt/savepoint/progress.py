"""Shows how far a savepoint or an edit has come: in terminals, in notebooks, else in the log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pkgutil import iter_modules
from typing import Protocol

from rich.console import Console
from rich.progress import Progress as Bar

from pyspark_ckpt.log_fields import library_logger

logger = library_logger(__name__)

_LOGGED_STEPS = 10
_POLL_SECONDS = 0.5

Tasks = Callable[[], tuple[int, int]]
"""Returns how many of Spark's tasks are done, and how many are known."""


class Progress(Protocol):
    """Shows how far the work has come."""

    def advance(self, parts: int) -> None:
        """Show that `parts` more are done."""


@contextmanager
def shown_progress(what: str, total: int, tasks: Tasks | None = None) -> Iterator[Progress]:
    """Show the progress of `what`: a bar in a terminal or notebook, else lines in the log."""
    if not (sys.stdout.isatty() or _is_notebook()):
        yield _LoggedProgress(what, total)
        return
    with Bar(transient=True) as bar:
        if tasks is None:
            yield _ShownProgress(bar, what, total)
            return
        with _following(bar, what, tasks):
            yield _NoProgress()


def _is_notebook() -> bool:
    """Return whether a notebook can show a bar; rich needs Jupyter's widgets for that."""
    return Console().is_jupyter and any(each.name == "ipywidgets" for each in iter_modules())


@contextmanager
def _following(bar: Bar, what: str, tasks: Tasks) -> Iterator[None]:
    """Show the tasks that are done, from a thread of its own."""
    number = bar.add_task(what, total=None)
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.wait(_POLL_SECONDS):
            done, known = tasks()
            if known:
                bar.update(number, completed=done, total=known)

    thread = threading.Thread(target=follow, name="pyspark_ckpt-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class _NoProgress:
    """The bar shows something else."""

    def advance(self, parts: int) -> None:
        pass


class _ShownProgress:
    def __init__(self, bar: Bar, what: str, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task(what, total=total)

    def advance(self, parts: int) -> None:
        self._bar.advance(self._task, parts)


class _LoggedProgress:
    """Writes at most ten lines for the whole work."""

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
