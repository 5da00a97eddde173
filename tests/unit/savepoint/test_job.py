"""Progress: a bar on a terminal, a few lines in the log otherwise."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys

import pytest

from pyspark_ckpt.savepoint.job import shown_progress

PROGRAM = """
from pyspark_ckpt.savepoint.job import shown_progress
with shown_progress("savepoint of epoch 7", 4) as progress:
    for _ in range(4):
        progress.advance(1)
"""


def test_without_a_terminal_the_log_shows_progress(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with shown_progress("savepoint of epoch 7", 1000) as progress:
        for _ in range(1000):
            progress.advance(1)
    lines = [record.message for record in caplog.records]
    assert 5 <= len(lines) <= 10
    assert lines[-1] == "savepoint of epoch 7: 1000 of 1000 subtasks"


def test_on_a_terminal_there_is_a_bar() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=follower, env=environment, check=True, timeout=60
    )
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "savepoint of epoch 7" in shown
    assert "100%" in shown
