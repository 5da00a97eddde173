"""A client is killed; the query runs on in the server, and another client attaches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.connect.conftest import RunClient

pytestmark = [pytest.mark.external, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("attach_program.py")


def test_another_client_takes_up_the_checkpoints(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    remote = f"{connect_url}/;session_id={uuid.uuid4()}"
    first = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM), str(tmp_path), "start"],
        env={**os.environ, "SPARK_REMOTE": remote, "PYTHONPATH": str(PROGRAM.parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("id ")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    printed = run_client(PROGRAM, remote, tmp_path, "attach").splitlines()
    assert printed[:3] == [
        "epoch 1",
        "original {'a': [1, 2, 3], 'b': [1, 2], 'c': [1]}",
        "fork {'a': [4], 'c': [2]}",
    ]
    assert "nobody" in printed[3]
