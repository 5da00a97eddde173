"""One client uses several servers, each after the one before was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.connect.conftest import ROOT
from tests.servers.connect import connect_server, free_port

PROGRAM = Path(__file__).with_name("servers_program.py")

pytestmark = [pytest.mark.external, pytest.mark.timeout(1500)]


class Client:
    """A running client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def printed(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def use_next_server(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def client_of(directory: Path, *remotes: str) -> Iterator[Client]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM), str(directory), *remotes],
        env={**os.environ, "SPARK_REMOTE": remotes[0], "PYTHONPATH": ROOT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        process.wait()


def test_a_query_starts_on_another_server_after_its_server_was_killed(tmp_path: Path) -> None:
    """PySpark raises an error ten minutes after a question to a server that has ended."""
    port, other = free_port(), free_port()
    first, second = f"sc://127.0.0.1:{port}", f"sc://127.0.0.1:{other}"
    with client_of(tmp_path, first, second, first) as client:
        for number, at in enumerate((port, other, port)):
            with connect_server(tmp_path / f"server{number}", port=at):
                client.use_next_server()
                assert client.printed() == f"server {number} epoch {number}\n"
