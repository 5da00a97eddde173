"""The benchmark of first savepoints runs as a user starts it, and checks every key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.own_jvm
def test_it_runs_and_compares_with_copies(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.bootstrap", "--keys", "2000", "--repetitions", "1"]
    run = subprocess.run(
        [*command, "--results", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    measured = json.loads((tmp_path / "bootstrap.json").read_text())
    assert measured["keys"] == 2000
    assert list(measured["seconds"]) == ["bootstrap", "canonical copy", "plain copy"]
    assert "times a canonical copy" in (tmp_path / "bootstrap.md").read_text()
