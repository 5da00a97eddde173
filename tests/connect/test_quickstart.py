"""The quickstart notebook runs over Spark Connect as it does on a classic session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connect.conftest import QUICKSTART_PRINTS, RunClient


@pytest.mark.timeout(300)
def test_the_quickstart_runs_on_a_server(
    quickstart: Path, connect_url: str, run_client: RunClient
) -> None:
    printed = run_client(quickstart, connect_url)
    assert printed.splitlines()[-1] == QUICKSTART_PRINTS


@pytest.mark.reach
@pytest.mark.timeout(600)
def test_the_quickstart_runs_on_a_server_of_its_own(
    quickstart: Path, run_client: RunClient
) -> None:
    printed = run_client(quickstart, "local[2]")
    assert printed.splitlines()[-1] == QUICKSTART_PRINTS
