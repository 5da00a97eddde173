"""Queries that have ended leave no sessions, neither on the server nor in the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connect.conftest import RunClient

pytestmark = [pytest.mark.external, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("ended_program.py")


def test_the_sessions_of_queries_that_nobody_holds_are_ended(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    """Only the last query is held, and it can still be asked and saved."""
    printed = run_client(PROGRAM, connect_url, tmp_path)
    assert printed.splitlines() == [
        "open 0",
        "open 0",
        "clients 3",
        "ended False None True",
        "epochs 3 {3}",
        "operator 3",
        "checkpoints True",
        "savepoint 3",
    ]


def test_a_session_that_python_removes_is_closed_in_a_thread_of_its_own(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    """Python may remove it in a thread for which the closing waits.

    One that is asked for its queries while it closes has none.
    """
    program = Path(__file__).with_name("collected_program.py")
    assert run_client(program, connect_url, tmp_path).splitlines() == [
        "closed in ['pyspark_ckpt ends sessions']",
        "active []",
    ]
