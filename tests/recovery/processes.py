"""The processes of a driver's session, and kills of one kind of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DRIVER = "driver"
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = "pyspark.daemon"
KINDS = (DRIVER, EXECUTOR, WORKER)
"""Kinds of processes: the driver with all others, or one whose command line has the text."""


def members(session: int) -> Iterator[tuple[int, str]]:
    """Yield the processes of a session; Python workers have their own group."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # it has ended
            if os.getsid(int(entry.name)) == session:
                yield int(entry.name), (entry / "cmdline").read_text()


def kill(driver: subprocess.Popen[str], what: str, chance: random.Random) -> bool:
    """Kill a process of a kind; the driver with all others. Return whether there was one."""
    if what == DRIVER:
        kill_all(driver)
        return True
    # The daemon's children, the workers, have its command line; at random one of all.
    found = sorted(process for process, command in members(driver.pid) if what in command)
    if found:
        os.kill(chance.choice(found), signal.SIGKILL)
    return bool(found)


def kill_all(driver: subprocess.Popen[str]) -> None:
    """Kill a driver, its JVMs and its workers."""
    for process, _ in [*members(driver.pid)]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
