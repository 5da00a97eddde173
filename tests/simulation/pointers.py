"""Pointers as ZooKeeper keeps them: atomic steps, with answers that may be lost."""

from __future__ import annotations

from pyspark_ckpt.stores.pointed import Pointers
from tests.simulation.scheduler import Scheduler
from tests.unit.memory_pointers import MemoryPointers, SharedPointers


class SimulatedPointers(Pointers):
    """One driver's view of a query's pointers.

    Parameters
    ----------
    scheduler
        Is asked before each step who runs next.
    shared
        What all drivers of the query share.
    fails
        How likely a step fails before or after it takes effect.
    """

    def __init__(self, scheduler: Scheduler, shared: SharedPointers, fails: float) -> None:
        self._scheduler = scheduler
        self._inner = MemoryPointers(shared)
        self._fails = fails

    def claim(self) -> None:
        self._before("claim")
        self._inner.claim()
        self._after()

    def check(self) -> None:
        self._before("check")
        self._inner.check()

    def last_id(self) -> int:
        self._before("last id")
        return self._inner.last_id()

    def reserve(self, checkpoint_id: int) -> None:
        self._before("reserve")
        self._inner.reserve(checkpoint_id)
        self._after()

    def put(self, checkpoint_id: int, url: str) -> None:
        self._before("put a pointer")
        self._inner.put(checkpoint_id, url)
        self._after()

    def delete(self, checkpoint_id: int) -> None:
        self._before("delete a pointer")
        self._inner.delete(checkpoint_id)
        self._after()

    def ids(self) -> list[int]:
        self._before("list the pointers")
        return self._inner.ids()

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _before(self, what: str) -> None:
        self._scheduler.point(what)
        self._after()

    def _after(self) -> None:
        if (
            self._fails
            and not self._scheduler.is_quiet
            and self._scheduler.chance.random() < self._fails
        ):
            raise OSError("ZooKeeper does not answer")
