"""Clients and servers of the other versions of PySpark, each in its own environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.connect.conftest import QUICKSTART_PRINTS, RunClient
from tests.servers.connect import connect_server
from tests.servers.pyspark_versions import python_with

pytestmark = [pytest.mark.external, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("program.py")
VERSIONS = ("4.0.5", "4.1.4", "4.2.1")


@dataclass(frozen=True)
class Installation:
    """A running server of a version of PySpark, and the Python for its clients."""

    version: str
    python: Path
    url: str


@pytest.fixture(scope="module", params=VERSIONS)
def installation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    python = python_with(request.param)
    with connect_server(tmp_path_factory.mktemp("connect"), python=python) as url:
        yield Installation(request.param, python, url)


def test_the_quickstart(
    installation: Installation, quickstart: Path, run_client: RunClient
) -> None:
    printed = run_client(quickstart, installation.url, python=installation.python)
    assert printed.splitlines()[-1] == QUICKSTART_PRINTS


@pytest.mark.parametrize("kind", ["rows", "frames", "batches"])
def test_every_input_continues_after_a_restart(
    installation: Installation, tmp_path: Path, run_client: RunClient, kind: str
) -> None:
    printed = run_client(PROGRAM, installation.url, tmp_path, kind, python=installation.python)
    assert printed.splitlines() == ["{'a': [1, 2, 3], 'b': [1, 2], 'c': [1]}"]


def test_savepoints_forks_rescaling_and_rollback(
    installation: Installation, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, installation.url, tmp_path, "life", python=installation.python)
    assert printed.splitlines() == [
        "original {'a': [1, 2, 3], 'b': [1, 2], 'c': [1]}",
        "same restored",
        "same {'a': [3], 'b': [2], 'c': [1]}",
        "three restored",
        "three {'a': [4], 'c': [2]}",
        "back [('a', 3), ('a', 4), ('b', 2), ('c', 1), ('c', 2)]",
    ]


def test_a_drain_fires_every_timer(
    installation: Installation, tmp_path: Path, run_client: RunClient
) -> None:
    printed = run_client(PROGRAM, installation.url, tmp_path, "drain", python=installation.python)
    assert printed.splitlines() == ["{'a': [-1, 1, 2], 'b': [-1, 1]}"]


def test_a_function_of_batches(
    installation: Installation, tmp_path: Path, run_client: RunClient
) -> None:
    scenario = "no_function" if installation.version.startswith("4.0.") else "function"
    printed = run_client(PROGRAM, installation.url, tmp_path, scenario, python=installation.python)
    if scenario == "function":
        rows = "[(0, 'a', 1), (0, 'a', 2), (0, 'b', 1), (1, 'a', 3), (1, 'b', 2)]"
        assert printed.splitlines() == [f"1 {rows}"]
    else:
        assert "needs PySpark 4.1" in printed
