"""A session that is stopped under its query over Connect; see tests/query/life."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.connect.conftest import RunClient
from tests.query.life.test_stopped_session import STORY, check_told, without_text

pytestmark = [pytest.mark.external, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("stopped_program.py")


@pytest.mark.parametrize("server", ["another process", "its own"])
def test_a_query_ends_with_its_session_and_continues_in_the_next_one(
    server: str, request: pytest.FixtureRequest, tmp_path: Path, run_client: RunClient
) -> None:
    is_own = server == "its own"
    remote = "local[2]" if is_own else request.getfixturevalue("connect_url")
    found = json.loads(run_client(PROGRAM, remote, tmp_path, remote).splitlines()[-1])
    assert without_text(found["story"]) == STORY
    assert "its Spark session was stopped" in found["story"]["text"]
    check_told(found["query"])
    check_told(found["state"])
    assert found["epoch"] == 1
    assert found["numbers"] == {"a": [1, 2], "b": [1, 2]}
