"""The benchmark of differences compares what it found, and writes its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
def test_differences_of_small_checkpoints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.state_diff", "--keys", "500", "--times", "1"]
    subprocess.run([*command, "--results", str(tmp_path)], check=True, timeout=240)
    measured = json.loads((tmp_path / "state_diff.json").read_text())
    assert measured["keys"] == 500
    assert [len(seconds) for seconds in measured["diff_s"].values()] == [1, 1, 1]
    assert "reached" in (tmp_path / "state_diff.md").read_text()
