"""The quickstart notebook runs over Spark Connect as it does on a classic session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.connect.conftest import QUICKSTART_PRINTS, RunClient
from tests.program_log import complaints


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quickstart_runs_on_a_server(
    quickstart: Path, connect_url: str, run_client: RunClient, logged: Callable[[], str]
) -> None:
    """Neither the client nor the server logs an error, or a warning that is not Spark's own."""
    printed = run_client(quickstart, connect_url, is_quiet=True)
    assert printed.splitlines()[-1] == QUICKSTART_PRINTS
    assert not complaints(logged())


@pytest.mark.external
@pytest.mark.timeout(600)
def test_the_quickstart_runs_on_a_server_of_its_own(
    quickstart: Path, run_client: RunClient
) -> None:
    printed = run_client(quickstart, "local[2]", is_quiet=True)
    assert printed.splitlines()[-1] == QUICKSTART_PRINTS
