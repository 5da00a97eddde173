"""Work of other threads that one may have to wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WorkUnderWay:
    """Counts who works, by thread; whoever works does not wait for itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._workers: list[int] = []

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Be waited for, for the length of the context."""
        worker = threading.get_ident()
        with self._changed:
            self._workers.append(worker)
        try:
            yield
        finally:
            with self._changed:
                self._workers.remove(worker)
                self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until no other thread is at work."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: all(n == me for n in self._workers), timeout_seconds)
