"""A short slice of the fuzzing of every parser of stored bytes, in a process with little memory."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.soak
@pytest.mark.timeout(5_400)
def test_no_parser_fails_in_another_way_for_long() -> None:
    feed("20000")
