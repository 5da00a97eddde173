"""A short slice of the fuzzing of every parser of stored bytes, in a process with little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def feed(*arguments: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzzing.run", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_parser_fails_in_another_way_than_it_says() -> None:
    feed("15", "--repeatable")


_HANGS = """
import re
from tests.fuzzing import run
from tests.fuzzing.parsers import Parser
run.HANG_S = 1
never = Parser(lambda data: re.fullmatch(rb"(a+)+b", data), [b"b"])
run.ANYTHING = (b"a" * 60,)
run.fuzz("never", never, 1, is_repeatable=True)
"""


def test_an_input_that_never_ends_ends_the_run_and_is_kept(tmp_path: Path) -> None:
    """In C, where no signal is heard."""
    run = subprocess.run(
        [sys.executable, "-c", _HANGS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "Timeout (0:00:01)!" in run.stderr
    assert (tmp_path / "build" / "fuzzing" / "running").read_bytes() == b"a" * 60


@pytest.mark.soak
@pytest.mark.timeout(5_400)
def test_no_parser_fails_in_another_way_for_long() -> None:
    feed("20000")
