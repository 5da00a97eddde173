"""The report on epochs around base snapshots, and its benchmark at a small size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reports.snapshot_report import ObservedEpoch, SnapshotReport

ROOT = Path(__file__).parents[2]


def epoch(ms: int, snapshot: bool = False, checkpoint: bool = False) -> ObservedEpoch:
    return ObservedEpoch(0, {"triggerExecution": ms}, snapshot, checkpoint, 1, 2, 3)


def test_each_snapshot_is_known_by_its_slowest_epoch() -> None:
    epochs = [
        epoch(100), epoch(300, snapshot=True), epoch(200, snapshot=True), epoch(100),
        epoch(100, checkpoint=True), epoch(50, snapshot=True, checkpoint=True),
    ]  # fmt: skip
    report = SnapshotReport({"keys": 5}, {"CPUs": 2}, epochs, [0.5, 0.01])
    assert report.median_ms == 100
    assert report.worst_ratios() == [3.0, 0.5]
    text = report.markdown()
    assert "slowest of all 3.00 times that" in text
    assert "in medians: 3.00, 0.50" in text
    assert "as share: 0.500, 0.010" in text
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| ")]
    assert [(cells[0].strip(), cells[1].strip()) for cells in rows[2:]] == [
        ("base snapshot", "2"), ("base snapshot and checkpoint", "1"), ("checkpoint", "1"),
        ("nothing", "2"),
    ]  # fmt: skip
    assert json.loads(json.dumps(report.as_json()))["worst_ratios"] == [3.0, 0.5]


@pytest.mark.own_jvm
@pytest.mark.soak
def test_the_benchmark_sees_snapshots_and_checks_its_output(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "benchmarks.snapshot_epochs", "--keys", "20000", "--epochs", "12",
        "--epochs-per-snapshot", "3", "--results", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads((tmp_path / "snapshot_epochs.json").read_text())
    assert len(figures["epochs"]) == 12
    assert any(each["has_snapshot"] for each in figures["epochs"])
    assert any(each["has_checkpoint"] for each in figures["epochs"])
    assert figures["worst_ratios"]
    assert (tmp_path / "snapshot_epochs.md").read_text() in done.stdout
