"""A query that dies again and again by ``kill -9``: it gets further, and its files do not grow.

Oracle: the newest checkpoint restores to a model that is computed from the epochs' numbers alone,
and what is on disk is counted without the library.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path

import pytest

from tests.faults import crash_loop_program
from tests.faults.crash_loop_program import models_of
from tests.faults.query_oracle import all_files_of, restored
from tests.unit.operator.subtask_epochs import IN_MEMORY

LONGEST_S = 0.1
IN_FLIGHT = 20
"""By so many files one moment of a death differs from another."""


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_disk_use_is_bounded_in_a_crash_loop(backend: str) -> None:
    """Scenario 22: twenty-four deaths, each after a checkpoint of its run."""
    _crash(backend, deaths=24)


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_disk_use_is_bounded_in_a_long_crash_loop(backend: str) -> None:
    """Scenario 22: the same, longer."""
    _crash(backend, deaths=1000)


def _crash(backend: str, deaths: int) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        root = Path(directory) / "query"
        command = [sys.executable, crash_loop_program.__file__, str(root), backend, str(seed)]
        counts: list[dict[str, int]] = []
        newest: list[tuple[int, int]] = []
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as starter:
            try:
                for _ in range(deaths):
                    newest.append(_one_life(starter, root, chance))
                    counts.append(_on_disk(root))
            finally:
                assert starter.stdin is not None
                starter.stdin.close()
        assert all(before < after for before, after in pairwise(newest)), newest
        path = root / "checkpoints" / f"chk-{newest[-1][0]}"
        assert restored(path) == next(islice(models_of(seed), newest[-1][1], None))
    third = deaths // 3
    for what in counts[0]:
        before = max(each[what] for each in counts[:third])
        after = max(each[what] for each in counts[-third:])
        print(f"{newest[-1]}: at most {before} {what}, then {after}")
        # Files that each death leaves for ever make it three times as many.
        assert after <= 2 * before + IN_FLIGHT, what


def _one_life(starter: subprocess.Popen[str], root: Path, chance: random.Random) -> tuple[int, int]:
    """Start the query, kill it some time after its first checkpoint; return the newest one."""
    assert starter.stdin is not None
    assert starter.stdout is not None
    starter.stdin.write("again\n")
    starter.stdin.flush()
    word, process = starter.stdout.readline().split()
    assert word == "process"
    said = starter.stdout.readline().split()
    try:
        assert said[0] == "taken", f"it ended by itself: {said}"
        time.sleep(chance.uniform(0, LONGEST_S))
    finally:
        if said[0] == "taken":
            os.kill(int(process), signal.SIGKILL)
    while (line := starter.stdout.readline().split())[0] == "taken":
        said = line
    assert line == ["ended"]
    return int(said[1]), int(said[2])


def _on_disk(root: Path) -> dict[str, int]:
    """Count what is on disk of checkpoints and local copies, and what no checkpoint refers to.

    Each start leaves a file with its term for ever, because a stopped driver must never find its
    term again. A file source's logs grow with the input here, because nothing compacts them.
    """
    found = {
        path: path.stat().st_size
        for directory in ("checkpoints", "executor")
        for path in (root / directory).rglob("*")
        if path.is_file() and path.parent.name != "drivers" and not path.name.startswith("source-")
    }
    complete = [path.parent for path in (root / "checkpoints").glob("chk-*/_metadata")]
    needed = set().union(*(all_files_of(path) for path in complete))
    state = {path for path in found if path.parent.name in ("shared", "taskowned")}
    return {
        "files that no checkpoint refers to": len(state - needed),
        "files": len(found),
        "bytes": sum(found.values()),
    }
