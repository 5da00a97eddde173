"""The hold on cleaning: while a savepoint is copied, no file of its query is deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CleaningHold:
    """Keeps cleaning and copying apart, without either waiting for the other for long.

    Cleaning that meets a hold is left out, and is made up for after the next checkpoint.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holds = 0
        self._is_cleaning = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have no file deleted from now on; waits for a cleaning that is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_cleaning)
            self._holds += 1
        try:
            yield
        finally:
            with self._changed:
                self._holds -= 1
                self._changed.notify_all()

    @contextmanager
    def cleaning(self) -> Iterator[bool]:
        """Yield whether files may be deleted, for the length of the context."""
        with self._changed:
            may_clean = self._is_cleaning = self._holds == 0
        try:
            yield may_clean
        finally:
            with self._changed:
                if may_clean:
                    self._is_cleaning = False
                self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until nobody holds."""
        with self._changed:
            self._changed.wait_for(lambda: self._holds == 0, timeout_seconds)
