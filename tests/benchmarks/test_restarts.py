"""The benchmark of forks and rescales compares the state of each, and writes its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
def test_forks_of_small_queries(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.restarts", "--scale", "0.001"]
    command += ["--repetitions", "1", "--backends", "rocksdb", "--results", str(tmp_path)]
    subprocess.run(command, check=True, timeout=240)
    measured = json.loads((tmp_path / "restarts.json").read_text())
    assert measured["keys"] == [1_000, 10_000]
    assert [len(seconds) for seconds in measured["seconds"]["rocksdb"].values()] == [1] * 4
    assert "target at most" in (tmp_path / "restarts.md").read_text()
