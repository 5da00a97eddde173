"""A client dies by ``kill -9`` in each phase of its query; another one attaches or starts again.

Oracle: each key's rows are numbered 1, 2, 3 ... A seed is printed for each test.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.connect.conftest import ROOT, RunClient

pytestmark = [pytest.mark.external, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("killed_program.py")
KILLS = 3
OPERATIONS = {
    "start": 28,
    "initial": 60,
    "attach": 9,
    "epoch": 1,
    "checkpoint": 30,
    "savepoint": 60,
    "drain": 160,
    "restore": 150,
}
"""About so many operations on files a phase has; the client dies at one of them."""

RUNNING_AFTERWARDS = ("attach", "epoch", "checkpoint")


def killed(remote: str, base: Path, phase: str, number: int, kill_at: int) -> str:
    client = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), str(base), phase, str(number), str(kill_at)],
        env={**os.environ, "SPARK_REMOTE": remote, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(client.stdout)
    assert client.returncode == -signal.SIGKILL, client.stdout + client.stderr[-6000:]
    assert "killed at" in client.stdout
    return client.stdout


@pytest.mark.parametrize("phase", list(OPERATIONS))
def test_a_client_is_killed_and_another_one_continues(
    connect_url: str, tmp_path: Path, run_client: RunClient, phase: str
) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    remote = f"{connect_url}/;session_id={uuid.UUID(int=secrets.randbits(128), version=4)}"
    for number in range(1, KILLS + 1):
        printed = killed(remote, tmp_path, phase, number, chance.randrange(OPERATIONS[phase]))
        assert number == 1 or phase not in RUNNING_AFTERWARDS or "started" not in printed
    last = run_client(PROGRAM, remote, tmp_path, "finish", KILLS + 1, 0).splitlines()
    print(last)
    first = 2 if phase == "restore" else 1  # its savepoint has the first file
    fired = [-1] if phase == "drain" else []  # by the timer of each key, once
    begun = {"a": 40} if phase == "initial" else {}  # the initial state counts so many of a key
    assert last[-1] == str(
        {key: [*fired, *(begun.get(key, 0) + n for n in range(first, KILLS + 2))] for key in "abc"}
    )
