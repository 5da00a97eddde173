"""A Spark Connect server in another process, and a client in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc_status", reason="no client of Spark Connect")

from tests.program_log import FORMAT, complaints
from tests.servers.connect import connect_server

ROOT = str(Path(__file__).parents[2])

NOTEBOOK = Path(ROOT) / "notebooks" / "01_quickstart.ipynb"
QUICKSTART_PRINTS = "{'ann': 4, 'bob': 3, 'cem': 1, 'dee': 1}"

RunClient = Callable[..., str]


@pytest.fixture(scope="session")
def server_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="session")
def connect_url(server_directory: Path) -> Iterator[str]:
    with connect_server(server_directory) as url:
        yield url


@pytest.fixture
def logged(server_directory: Path, connect_url: str) -> Callable[[], str]:  # it runs
    """Return a function that returns what the server has logged since the test began."""
    log = server_directory / "server.log"
    before = log.stat().st_size
    return lambda: log.read_bytes()[before:].decode()


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    """The code of the quickstart notebook, and a line that shows that it reached its end."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    path = tmp_path / "quickstart.py"
    path.write_text("\n\n".join([*code, "print(both.original.to_dict())"]))
    return path


@pytest.fixture
def run_client() -> RunClient:
    """Return a function that runs a program with ``SPARK_REMOTE``, and returns what it printed.

    A quiet one logs no error, and no warning.
    """

    def run(
        program: Path,
        remote: str,
        *arguments: object,
        python: Path | str = sys.executable,
        is_quiet: bool = False,
    ) -> str:
        client = subprocess.Popen(
            [str(python), "-X", "faulthandler", "-W", "ignore", str(program), *map(str, arguments)],
            env={
                **os.environ,
                "SPARK_REMOTE": remote,
                "PYTHONPATH": f"{FORMAT}{os.pathsep}{ROOT}",
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": str(python),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            printed, errors = client.communicate(timeout=500)
        except subprocess.TimeoutExpired:
            client.send_signal(signal.SIGABRT)  # it then writes where each of its threads is
            printed, errors = client.communicate()
        assert client.returncode == 0, f"{client.returncode}: {printed}\n{errors[-10_000:]}"
        assert not (is_quiet and complaints(errors)), errors[-10_000:]
        return printed

    return run
