"""The quickstart notebook runs over Spark Connect as it does on a classic session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.connect.conftest import RunClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The notebook's code, and a line that shows that it reached its end."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    path = tmp_path / "quickstart.py"
    path.write_text("\n\n".join([*code, "print(both.original.to_dict())"]))
    return path


@pytest.mark.timeout(300)
def test_the_quickstart_runs_on_a_server(
    program: Path, connect_url: str, run_client: RunClient
) -> None:
    printed = run_client(program, connect_url)
    assert printed.splitlines()[-1] == "{'ann': 4, 'bob': 3, 'cem': 1, 'dee': 1}"


@pytest.mark.reach
@pytest.mark.timeout(600)
def test_the_quickstart_runs_on_a_server_of_its_own(program: Path, run_client: RunClient) -> None:
    printed = run_client(program, "local[2]")
    assert printed.splitlines()[-1] == "{'ann': 4, 'bob': 3, 'cem': 1, 'dee': 1}"
