"""The benchmark of savepoints: its ratios, and a run as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.savepoint.copies import Round
from benchmarks.savepoint.durable_copy import durable_copy_seconds
from benchmarks.savepoint.load import Disturbance
from benchmarks.savepoint.report import Results

ROOT = Path(__file__).parents[2]
SETTINGS = {"keys": 1000, "keys at rest": 10, "note bytes": 1}


def test_a_ratio_is_of_what_comes_on_top_of_the_same_at_rest() -> None:
    turn = ("heap", "native")
    results = Results({}, SETTINGS)
    results.at_rest[turn] = [Round(0.5, 1.0, 0.1, 0.01, 1, 1)]
    results.rounds[turn] = [Round(take, 2.0, 0.2, 0.25, 100, 2) for take in (0.75, 1.25, 1.5)]
    take, restore = results.verdicts()
    assert take["what"] == "take, native, heap"
    assert (take["ratio"].median, take["whole"].median) == (3.0, 5.0)
    assert (take["limit"], take["reached"]) == (2.0, False)
    assert (restore["ratio"].median, restore["reached"]) == (4.0, False)
    text = results.markdown()
    assert "take, native, heap: 3.00 (1.00 to 4.00) times the copying, limit 2: NOT reached" in text
    assert json.loads(json.dumps(results.as_json()))["limits"][0]["reached"] is False


def test_the_longest_epoch_counts() -> None:
    one = Disturbance("native", True, 2.0, [100, 330], [90, 110, 100], 5.0, 4.0, 1.0)
    assert one.ratio == 3.3
    results = Results({}, SETTINGS, disturbances={"heap": [one]})
    assert "| native, heap, the session's first |" in results.markdown()


def test_a_plain_copy_has_all_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("a", "below/b"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(name)
    files = [path for path in root.rglob("*") if path.is_file()]
    assert durable_copy_seconds(files, root, tmp_path / "copy") > 0
    assert (tmp_path / "copy" / "below" / "b").read_text() == "below/b"
    assert (tmp_path / "copy" / "a").read_text() == "a"


@pytest.mark.own_jvm
@pytest.mark.soak
def test_a_run(tmp_path: Path) -> None:
    arguments = ["--scale", "0.001", "--repetitions", "1", "--results", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.savepoint", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for backend in ("rocksdb", "heap"):
        copies = json.loads((tmp_path / f"savepoint_copies_{backend}.json").read_text())
        assert len(copies["limits"]) == 4
        assert {*copies["rounds"]} == {f"{backend}, native", f"{backend}, canonical"}
        load = json.loads((tmp_path / f"savepoint_load_{backend}.json").read_text())
        assert len(load["under_load"][backend]) == 2
        assert "## Under load" in (tmp_path / f"savepoint_load_{backend}.md").read_text()
