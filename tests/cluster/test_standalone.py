"""The documented commands run the flights on a cluster whose Python has nothing installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from tests.servers.installed import installed, run

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
ARCHIVE = "environment.tar.gz"


def packed() -> Path:
    """An environment of the packages that the library requires, without the library."""

    def fill(directory: Path) -> None:
        base = Path(sys.base_prefix) / "bin" / "python3"
        run(
            ["sh", str(CLUSTER / "environment.sh"), str(ROOT), str(directory / ARCHIVE)],
            directory,
            PYTHON=str(base),
        )

    name = subprocess.run(
        ["git", "rev-parse", "HEAD:pyspark_ckpt"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return installed(f"environment-{name[:12] or 'here'}", fill) / ARCHIVE


@pytest.mark.external
@pytest.mark.own_jvm
@pytest.mark.timeout(1800)
def test_flights_on_two_bare_workers(tmp_path: Path) -> None:
    """Both results equal plain pandas, and executors find their local copies again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = subprocess.run(
        [
            "sh", str(tmp_path / "examples" / "cluster" / "standalone.sh"), str(packed()),
            str(tmp_path / "work"), "--weeks", "4",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable, "MASTER_PORT": port},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert "both results equal plain pandas" in done.stdout
    for worker in ("127.0.0.2", "127.0.0.3"):
        assert list((tmp_path / "work" / worker).glob("app-*/*/environment")), "it was not used"
    checkpoints = tmp_path / "demo-output" / "original" / "location"
    subtasks = ckpt.location(str(checkpoints)).subtask_history()
    later = subtasks[subtasks["checkpoint_id"] > subtasks["checkpoint_id"].min()]
    assert set(later["subtask"]) == {0, 1}
    assert later["rebuilds"].sum() == 0, "an executor did not find its local copy"
