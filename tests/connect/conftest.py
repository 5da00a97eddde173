"""A Spark Connect server in another process, and a client in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc_status", reason="no client of Spark Connect")

from tests.servers.connect import connect_server

ROOT = str(Path(__file__).parents[2])

RunClient = Callable[..., str]


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture
def run_client() -> RunClient:
    """Return a function that runs a program with ``SPARK_REMOTE``, and returns what it printed."""

    def run(program: Path, remote: str, *arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(program), *map(str, arguments)],
            env={**os.environ, "SPARK_REMOTE": remote, "PYTHONPATH": ROOT},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    return run
