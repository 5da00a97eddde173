"""Locations, output and savepoints on S3A and HDFS, which client, server and workers reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connect.conftest import RunClient
from tests.external.conftest import KINDS, place_of
from tests.servers.connect import connect_server

pytestmark = [pytest.mark.external, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("program.py")


@pytest.mark.parametrize("kind", KINDS)
def test_savepoints_forks_rescaling_and_rollback(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_client: RunClient,
) -> None:
    place = place_of(kind, request)
    monkeypatch.setenv("LOCATIONS", place.url)
    with connect_server(tmp_path / "server", place.conf) as url:
        printed = run_client(PROGRAM, url, tmp_path, "life")
    assert printed.splitlines() == [
        "original {'a': [1, 2, 3], 'b': [1, 2], 'c': [1]}",
        "same restored",
        "same {'a': [3], 'b': [2], 'c': [1]}",
        "three restored",
        "three {'a': [4], 'c': [2]}",
        "back [('a', 3), ('a', 4), ('b', 2), ('c', 1), ('c', 2)]",
    ]
