"""A client that kills itself at one of its file operations, and the one that continues.

``python killed_program.py DIRECTORY PHASE NUMBER KILL_AT`` delivers file NUMBER and does what the
phase says. It kills itself at operation KILL_AT of the phase on a file of the location, or after
the phase if that has fewer operations. The phase ``finish`` is not killed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark import cloudpickle

import pyspark_ckpt as ckpt
from tests.connect import program as shared

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it

NAME = "counted"
DELIVERED = "abc"
OPERATIONS = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.listdir", "os.scandir"}
base = shared.base
DRAINED = base / "drained"
"""Exists if the query has timers, and is drained."""

INITIAL = base / "initial"
"""Exists if the query begins with an initial state."""


class Killing:
    """Counts operations on files below a directory, from when it is armed, and kills at one."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at = kill_at
        self._done: int | None = None
        self._root = str(base / "one")
        sys.addaudithook(self._see)

    def arm(self) -> None:
        self._done = 0

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._done is None or event not in OPERATIONS:
            return
        path = str(arguments[0])
        if path.startswith(self._root):
            self._done += 1
            if self._done > self._kill_at:
                self.kill(f"{event} {path.removeprefix(self._root)}")

    def kill(self, at: str) -> None:
        print(f"killed at {self._done}: {at}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def started() -> ckpt.CheckpointedQuery:
    kind = "initial" if INITIAL.exists() else "timers" if DRAINED.exists() else "rows"
    return shared.writer("one", kind).queryName(NAME).start()


def taken_up() -> ckpt.CheckpointedQuery:
    """The query: attached if it runs, else started."""
    try:
        query = ckpt.attach(shared.spark, NAME)
    except ckpt.errors.ConfigurationError:
        query = started()
        print("started", flush=True)
    else:
        print("attached", flush=True)
    return query


def start(killing: Killing, number: int) -> None:
    """From the second time on, the run of the client before is still there."""
    shared.deliver(number, DELIVERED)
    killing.arm()
    shared.writer("one").queryName(NAME).start()


def initial(killing: Killing, number: int) -> None:
    """Until epoch 0 is committed, each start makes the initial state anew."""
    INITIAL.touch()
    shared.deliver(number, DELIVERED)
    killing.arm()
    started()


def attach(killing: Killing, number: int) -> None:
    shared.deliver(number, DELIVERED)
    if number > 1:  # the first client starts the query
        killing.arm()
    taken_up()


def epoch(killing: Killing, number: int) -> None:
    """The client is gone when the epoch of this file begins, or soon after."""
    query = taken_up()
    query.processAllAvailable()
    shared.deliver(number, DELIVERED)
    killing.kill("an epoch")


def checkpoint(killing: Killing, number: int) -> None:
    shared.deliver(number, DELIVERED)
    query = taken_up()
    query.processAllAvailable()
    killing.arm()
    query.triggerCheckpoint()


def savepoint(killing: Killing, number: int) -> None:
    query = taken_up()
    query.processAllAvailable()
    shared.deliver(number, DELIVERED)
    killing.arm()
    query.stopWithSavepoint(str(base / "one" / "savepoints"))


def drain(killing: Killing, number: int) -> None:
    """An attached query cannot be drained, so each client starts the query."""
    DRAINED.touch()
    taken_up().stop()
    query = started()
    query.processAllAvailable()
    shared.deliver(number, DELIVERED)
    query.processAllAvailable()
    killing.arm()
    query.stopWithSavepoint(str(base / "one" / "savepoints"), drain=True)


def restore(killing: Killing, number: int) -> None:
    """Restores a savepoint of another query. A location with commits continues."""
    shared.deliver(number, DELIVERED)
    if not (base / "other").exists():
        other = shared.writer("other").start()
        other.processAllAvailable()
        other.stopWithSavepoint(str(base / "saved"))
    (saved,) = (base / "saved").glob("savepoint-*")
    killing.arm()
    shared.writer("one").queryName(NAME).restoreFrom(str(saved)).start()


def finish(number: int) -> None:
    shared.deliver(number, DELIVERED)
    if (base / "saved").exists():
        (saved,) = (base / "saved").glob("savepoint-*")
        query = shared.writer("one").queryName(NAME).restoreFrom(str(saved)).start()
    elif DRAINED.exists():
        taken_up().stop()
        query = started()
    else:
        query = taken_up()
    query.processAllAvailable()
    query.triggerCheckpoint()
    if DRAINED.exists():
        query.stopWithSavepoint(str(base / "one" / "savepoints"), drain=True)
    query.stop()
    print(shared.numbers("one"))


if __name__ == "__main__":
    phase, number, kill_at = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if phase == "finish":
        finish(number)
    else:
        killing = Killing(kill_at)
        globals()[phase](killing, number)
        killing.kill("the end of the phase")
