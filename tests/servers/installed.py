"""Installs what servers of the tests need, once, next to this environment's Python."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

CACHE = Path(sys.prefix) / "share" / "servers"
"""Each server has a directory here; several processes of tests share it."""

_END_OF_LOG_CHARACTERS = 2000


def installed(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the directory of a server's files; fill it if no process has done so before.

    The test is skipped, with the reason, if the registry cannot be reached.

    Parameters
    ----------
    name
        Of the server, with its version.
    fill
        Downloads and unpacks into an empty directory. Only one process does so at a time.
    """
    place = CACHE / name
    if place.exists():
        return place
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel if this process is killed
        if not place.exists():
            unfinished = place.with_name(f".{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                fill(unfinished)
            except FileNotFoundError as exc:
                pytest.skip(f"NOT TESTED: {name} cannot be installed: {exc}")
            except subprocess.CalledProcessError as exc:
                said = f"{exc.stdout or ''}{exc.stderr or ''}"[-_END_OF_LOG_CHARACTERS:]
                pytest.skip(f"NOT TESTED: {name} cannot be installed by {exc.cmd}: {said}")
            unfinished.rename(place)
    return place


def run(command: list[str], directory: Path, **environment: str) -> None:
    """Run a command of an installation.

    Raises
    ------
    CalledProcessError
        With the command's output, if it fails.
    """
    subprocess.run(
        command,
        cwd=directory,
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_port(port: int, server: subprocess.Popen[bytes], patience_s: float = 60) -> None:
    """Return when a server accepts connections.

    Raises
    ------
    RuntimeError
        If it ends before, or takes too long.
    """
    give_up_at = time.monotonic() + patience_s
    while not _listens(port):
        if server.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError(f"{server.args!r} did not start")
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0
