"""Pointers in the memory of one process: for tests, and for queries that end with it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pyspark_ckpt.errors import FencedError
from pyspark_ckpt.stores.pointed import Pointers


@dataclass(slots=True)
class SharedPointers:
    """The pointers that all drivers of one query share."""

    driver: int = 0
    last_id: int = 0
    urls: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryPointers(Pointers):
    """One driver's view of pointers in this process.

    Parameters
    ----------
    shared
        What it shares with the drivers before and after it.
    """

    def __init__(self, shared: SharedPointers) -> None:
        self._shared = shared
        self._driver: int | None = None

    def claim(self) -> None:
        with self._shared.lock:
            self._shared.driver += 1
            self._driver = self._shared.driver

    def check(self) -> None:
        if self._driver is not None and self._shared.driver != self._driver:
            raise FencedError(
                "another driver of this process has taken over the query's checkpoints; run a "
                "query once at a time, and stop this one"
            )

    def last_id(self) -> int:
        return self._shared.last_id

    def reserve(self, checkpoint_id: int) -> None:
        with self._shared.lock:
            self.check()
            if checkpoint_id <= self._shared.last_id:
                raise FileExistsError(f"chk-{checkpoint_id} is in use")
            self._shared.last_id = checkpoint_id

    def put(self, checkpoint_id: int, url: str) -> None:
        with self._shared.lock:
            self.check()
            if checkpoint_id in self._shared.urls:
                raise FileExistsError(f"chk-{checkpoint_id} is complete")
            self._shared.urls[checkpoint_id] = url

    def delete(self, checkpoint_id: int) -> None:
        with self._shared.lock:
            self.check()
            self._shared.urls.pop(checkpoint_id, None)

    def ids(self) -> list[int]:
        return sorted(self._shared.urls)

    def close(self) -> None:
        """Do nothing: there are no connections."""
