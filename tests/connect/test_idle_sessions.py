"""A server closes sessions that nobody uses; a waiting client keeps its sessions in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connect.conftest import ROOT, RunClient
from tests.servers.connect import connect_server

pytestmark = [pytest.mark.external, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("idle_program.py")
TIMEOUT_S = 15
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server that soon closes idle sessions, and its log."""
    directory = tmp_path_factory.mktemp("impatient")
    conf = {
        "spark.connect.session.manager.defaultSessionTimeout": f"{TIMEOUT_S}s",
        "spark.connect.session.manager.maintenanceInterval": "1s",
        "spark.log.level": "INFO",
    }
    with connect_server(directory, conf) as url:
        yield url, directory / "server.log"


def test_a_client_that_only_waits_keeps_the_record_that_attach_needs(
    server: tuple[str, Path], tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, server[0], tmp_path, "wait").splitlines()
    assert printed[:3] == ["ended False", "epoch 0", "records 1"]
    assert printed[3].startswith("refused no query 'counted' of pyspark_ckpt runs in this session")


def test_attach_says_that_the_server_has_closed_the_session(
    server: tuple[str, Path], tmp_path: Path, run_client: RunClient
) -> None:
    url, log = server
    session_id = str(uuid.uuid4())
    remote = f"{url}/;session_id={session_id}"
    first = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM), str(tmp_path), "leave"],
        env={**os.environ, "SPARK_REMOTE": remote, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("id ")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    _await_closed(session_id, log)
    printed = run_client(PROGRAM, remote, tmp_path, "attach")
    assert printed.startswith("refused the server has closed this session")
    assert "start the query again from its checkpointLocation" in printed
    printed = run_client(PROGRAM, url, tmp_path, "again")
    assert printed.splitlines() == ["{'a': [1, 2, 3], 'b': [1, 2], 'c': [1]}"]


def _await_closed(session_id: str, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        lines = log.read_text(errors="replace").splitlines()
        if any(session_id in line and "that expired" in line for line in lines):
            return
        time.sleep(0.2)
    raise AssertionError(f"the server did not close session {session_id}")
