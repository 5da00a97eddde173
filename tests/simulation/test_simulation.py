"""A slice of the simulation, the seeds that failed once, and the proof that it can fail.

The histories run in a separate process, whose sets of texts have an order that never changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.breaks import BREAKS

NOT_DURABLE = ["115", "10352", "32516"]
"""Seeds that failed once with names that were not durable."""

FAILED_ONCE = [
    "5", "60", "424", "1046", "1097", "10137", "53851", "64229", "80144", "105807", "109915",
    "139864",
]  # fmt: skip


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_slice_of_histories_keeps_every_promise() -> None:
    run = simulate("1-3", *NOT_DURABLE)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.soak
def test_the_seeds_that_failed_once_keep_every_promise() -> None:
    run = simulate("4-6", *FAILED_ONCE)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_broken_line_is_found_and_its_seed_is_replayed() -> None:
    run = simulate("1-20", "--break", "lineage", "--stop")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "fails at commit" in run.stdout
    assert "python -m tests.simulation.run" in run.stdout


@pytest.mark.soak
def test_processes_share_the_seeds_and_add_up_their_figures(tmp_path: Path) -> None:
    """What a seed may do is the same in a separate process as among other tests."""
    figures = []
    for jobs in (1, 2):
        results = tmp_path / str(jobs)
        given = ["3", "7-8", "--fates", "4", "--jobs", str(jobs), "--results", str(results)]
        run = simulate(*given)
        assert run.returncode == 0, run.stdout + run.stderr
        figures.append(json.loads(results.read_text()))
    names = ("seeds", "failed", "checkpoints", "steps")
    assert [figures[1][name] for name in names] == [figures[0][name] for name in names]
    assert figures[0]["seeds"] == 3


@pytest.mark.soak
def test_a_history_is_the_same_each_time() -> None:
    first, second = (simulate("7", "--trace").stdout.splitlines()[:-1] for _ in range(2))
    assert first == second
    assert first


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("line", sorted(BREAKS))
def test_each_broken_line_is_found_by_a_seed(line: str) -> None:
    run = simulate("1-5000", "--break", line, "--stop")
    assert run.returncode == 1, run.stdout + run.stderr
