"""Threads, locks and queues that wait in the simulation, not in the system."""

from __future__ import annotations

import fcntl as real_fcntl
import queue
import types
from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import Actor, Scheduler, current_actor


def threads_of(scheduler: Scheduler) -> types.SimpleNamespace:  # noqa: C901  # three classes
    """Return what stands for the module :mod:`threading`."""

    class Lock:
        def __init__(self) -> None:
            self._is_locked = False

        def acquire(self) -> None:
            if self._is_locked:
                scheduler.wait(lambda: not self._is_locked)
            self._is_locked = True

        def release(self) -> None:
            self._is_locked = False

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class Condition(Lock):
        def notify_all(self) -> None:
            """Do nothing: whoever waits looks by itself."""

        def wait_for(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
            timeout_ms = None if timeout is None else 1000 * timeout
            self.release()
            try:
                return scheduler.wait(lambda: ready() and not self._is_locked, timeout_ms)
            finally:
                self._is_locked = True

    class Thread:
        def __init__(self, *, target: Any, args: Any = (), name: str = "", **_: object) -> None:
            self._work = lambda: target(*args)
            self._name = name
            self.actor: Actor | None = None

        def start(self) -> None:
            actor = current_actor()
            assert actor is not None
            self.actor = scheduler.spawn(actor.process, self._name, self._work)

        def is_alive(self) -> bool:
            return self.actor is not None and not self.actor.is_over

    def current_thread() -> Any:
        return current_actor()

    return types.SimpleNamespace(
        Lock=Lock, Condition=Condition, Thread=Thread, current_thread=current_thread
    )


def queue_of(scheduler: Scheduler) -> types.SimpleNamespace:
    """Return what stands for the module :mod:`queue`."""

    class SimpleQueue(list):  # type: ignore[type-arg]
        def __class_getitem__(cls, item: object) -> Any:
            return cls

        def put(self, item: Any) -> None:
            self.append(item)

        def get(self) -> Any:
            scheduler.wait(lambda: bool(self))
            return self.pop(0)

    return types.SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty)


def file_locks_of(scheduler: Scheduler) -> types.SimpleNamespace:
    """Return locks of files that are waited for in the simulation, not in the system."""

    def flock(file: Any, operation: int) -> None:
        def try_it() -> bool:
            try:
                real_fcntl.flock(file, real_fcntl.LOCK_EX | real_fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if operation & real_fcntl.LOCK_NB:
            real_fcntl.flock(file, operation)
        elif not try_it():
            scheduler.wait(try_it)

    return types.SimpleNamespace(
        flock=flock, LOCK_EX=real_fcntl.LOCK_EX, LOCK_NB=real_fcntl.LOCK_NB
    )
