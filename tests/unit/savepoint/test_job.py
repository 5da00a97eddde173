"""Progress: a bar on a terminal, a few lines in the log otherwise."""

from __future__ import annotations

import errno
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

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


TASKS = """
from threading import Event
from pyspark_ckpt.savepoint.job import shown_progress
was_asked = Event()
def tasks():
    was_asked.set()
    return 3, 4
with shown_progress("edited savepoint", 2, tasks) as progress:
    assert was_asked.wait(30)
    progress.advance(1)
"""


def test_without_a_terminal_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with shown_progress("edited savepoint", 2, lambda: (3, 4)) as progress:
        progress.advance(2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize(("program", "expected"), [(PROGRAM, "100%"), (TASKS, "75%")])
def test_on_a_terminal_there_is_a_bar(program: str, expected: str) -> None:
    shown = _shown_on_a_terminal(program)
    assert "savepoint" in shown
    assert expected in shown


def _shown_on_a_terminal(program: str) -> str:
    """Return everything that a program writes; one read of a terminal gives only a part."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=follower, env=environment
    ) as process:
        os.close(follower)
        parts = list(_parts(leader))
        assert process.wait(60) == 0
    os.close(leader)
    return b"".join(parts).decode()


def _parts(leader: int) -> Iterator[bytes]:
    """Yield what arrives at a terminal until its last writer has gone, which Linux calls EIO."""
    try:
        while True:
            yield os.read(leader, 1 << 16)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
