"""What a program may do over Spark Connect, with a server in another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connect.conftest import RunClient

pytestmark = [pytest.mark.external, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("program.py")


@pytest.mark.parametrize("kind", ["rows", "frames", "batches"])
def test_every_input_continues_after_a_restart(
    kind: str, connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, kind)
    assert printed.splitlines() == ["{'a': [1, 2, 3], 'b': [1, 2], 'c': [1]}"]


def test_savepoints_forks_rescaling_and_rollback(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "life")
    assert printed.splitlines() == [
        "original {'a': [1, 2, 3], 'b': [1, 2], 'c': [1]}",
        "same restored",
        "same {'a': [3], 'b': [2], 'c': [1]}",
        "three restored",
        "three {'a': [4], 'c': [2]}",
        "back [('a', 3), ('a', 4), ('b', 2), ('c', 1), ('c', 2)]",
    ]


def test_live_reads(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "live")
    assert printed.splitlines() == [
        "[{'n': 3}, {'n': 1}, None] {1}",
        "[['a', 3], ['b', 1]] 1",
        "True",
    ]


def test_an_initial_state(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "initial")
    assert printed.splitlines() == [
        "epoch 0",
        "[{'n': 40}, {'n': 20}]",
        "{'a': [-1, 41], 'b': [-1, 1], 'z': [-1]}",
        "{'z': [21]}",
    ]


def test_a_lost_initial_state_is_found(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "not_woken")
    assert printed.split() == ["CheckpointAbortedError", "FailedCheckpointsError", "RestoreError"]


def test_savepoints_from_tables(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "edit")
    assert printed.splitlines() == ["{'a': [42, 43], 'b': [1]}", "True"]


def test_an_import(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "imported")
    assert printed.splitlines() == ["{'a': [3], 'c': [1]}"]


def test_missing_input(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    """The server lists the directory of the source."""
    printed = run_client(PROGRAM, connect_url, tmp_path, "missing_input")
    assert printed.splitlines() == ["True True False", "True True False", "{'c': [1]}"]


def test_a_drain_fires_every_timer(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "drain")
    assert printed.splitlines() == ["{'a': [-1, 1, 2], 'b': [-1, 1]}"]


def test_a_function_of_batches_sees_each_epoch(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "function")
    assert printed.splitlines() == [
        "1 [(0, 'a', 1), (0, 'a', 2), (0, 'b', 1), (1, 'a', 3), (1, 'b', 2)]"
    ]


def test_an_epoch_whose_state_is_not_computed_is_not_committed(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "no_action")
    assert printed.splitlines() == ["True", "['0']"]


def test_the_users_session_keeps_its_conf_during_a_start(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "conf")
    assert printed.splitlines() == ["{'5'} {'a': [1, 2], 'b': [1]}"]


def test_tables(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "table")
    assert printed.splitlines() == [
        "original [('a', 1), ('a', 2), ('a', 3), ('b', 1), ('b', 2), ('c', 1)]",
        "fork [('a', 3), ('b', 2), ('c', 1)]",
    ]


def test_the_writer_in_the_place_of_sparks(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "replaced")
    assert printed.splitlines() == ["{'a': [1, 2], 'b': [1]}"]


def test_a_start_that_fails_ends_the_session_of_the_query(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "failed_start")
    assert printed.splitlines() == ["refused CheckpointNotFoundError", "True"]


def test_too_little_memory_of_workers_is_refused(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "memory")
    assert "spark.executor.pyspark.memory is 1023m" in printed


def test_what_is_not_supported_is_refused_by_name(
    connect_url: str, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, connect_url, tmp_path, "refusals")
    names = dict(line.split(" ", 1) for line in printed.splitlines())
    assert "Aggregate" in names["aggregate"]
    assert "Deduplicate" in names["dedupe"]
    assert "two places" in names["twice"]
    assert "its name or by SQL" in names["view"]
    assert "query's own session" in names["memory"]
