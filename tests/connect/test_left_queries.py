"""Queries that a server runs without their client, and several clients of one session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_ckpt.history.run_log import RecordedRuns, RunStarted
from pyspark_ckpt.storage.open import LocalStorage
from tests.connect.conftest import ROOT, RunClient

pytestmark = [pytest.mark.external, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("left_program.py")


def new_session(connect_url: str) -> str:
    return f"{connect_url}/;session_id={uuid.uuid4()}"


@contextmanager
def client(
    remote: str, base: Path, phase: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM), str(base), phase],
        env={**os.environ, "SPARK_REMOTE": remote, "PYTHONPATH": ROOT, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def test_a_query_whose_client_ends_runs_on_and_is_not_rolled_back(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    remote = new_session(connect_url)
    with client(remote, tmp_path, "end") as ending:
        printed, errors = ending.communicate(timeout=300)
    assert (ending.returncode, printed) == (0, "checkpoint 1\n"), errors
    assert errors.count("this program ends without stopping it") == 1, errors
    assert "was stopped" not in errors
    assert "could not be stopped" not in errors
    (metadata,) = tmp_path.glob("one/location/*/chk-1")
    (started,) = RecordedRuns(LocalStorage(metadata.parent)).starts_and_ends()
    assert isinstance(started, RunStarted), "its run has an end"

    (refused,) = run_client(PROGRAM, new_session(connect_url), tmp_path, "elsewhere").splitlines()
    assert refused.startswith("RestoreError: query ")
    assert "Attach to it in its session, and stop it" in refused

    refused, *numbers = run_client(PROGRAM, remote, tmp_path, "again").splitlines()
    assert refused.startswith("RestoreError: query ")
    assert "on the Spark Connect server" in refused
    assert numbers == ["{'a': [1, 2, 3], 'b': [1, 2, 3]}", "{'a': [2, 3], 'b': [2, 3]}"]


def test_a_name_is_one_running_query_of_a_session(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    remote = new_session(connect_url)
    others = {"ELSEWHERE": new_session(connect_url), "THIRD": new_session(connect_url)}
    with client(remote, tmp_path, "names", **others) as naming:
        printed, errors = naming.communicate(timeout=300)
    assert naming.returncode == -signal.SIGKILL, errors
    refused, same, own, ambiguous, ids = printed.splitlines()
    one, older, other = ids.split()
    assert refused.startswith("ConfigurationError: a query called 'counted' already runs")
    assert one in refused
    assert (same, own) == ("the same True True", "own True True")
    assert ambiguous.startswith("ConfigurationError: 2 running queries are called 'counted'")
    assert one in ambiguous
    assert other in ambiguous

    taken, ambiguous = run_client(PROGRAM, remote, tmp_path, "taken").splitlines()
    assert taken.startswith("ConfigurationError: a query called 'counted' already runs")
    assert ambiguous.startswith("ConfigurationError: 2 running queries are called 'counted'")
    assert one in ambiguous
    assert older in ambiguous


def test_the_record_of_a_query_that_another_client_runs_stays(
    connect_url: str, tmp_path: Path
) -> None:
    remote = new_session(connect_url)
    with client(remote, tmp_path, "owner") as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "stopped\n"
        with client(remote, tmp_path, "borrower") as borrower:
            assert borrower.communicate(timeout=300)[0] == "runs\n"
        printed, errors = owner.communicate("go on\n", timeout=300)
    assert printed == "found True\n", errors
