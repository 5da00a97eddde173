"""The benchmark of reads compares what it read, and writes its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
def test_reads_of_a_small_savepoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.state_reads", "--keys", "500", "--gets", "2"]
    subprocess.run([*command, "--scans", "1", "--results", str(tmp_path)], check=True, timeout=240)
    measured = json.loads((tmp_path / "state_reads.json").read_text())
    assert measured["keys"] == 500
    assert list(measured["reads"]) == ["canonical", "rocksdb", "heap"]
    for reads in measured["reads"].values():
        assert [len(reads[name]) for name in ("get_s", "scan_s")] == [2, 1]
    assert "entries/s" in (tmp_path / "state_reads.md").read_text()
