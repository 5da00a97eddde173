"""The fixture of the pytest plugin, in a separate pytest run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.testing.captured_query import CapturedQuery
from tests.unit.testing.test_replay import Frames

ROOT = Path(__file__).parents[3]
PROGRAM = """
from tests.unit.testing.test_replay import Frames

def changed():
    processor = Frames()
    processor.more = 1
    return processor

def test_same(replay_capture):
    assert replay_capture("all.capture", Frames(), backend="rocksdb").epochs == [0]

def test_differs(replay_capture):
    replay_capture("all.capture", changed())

def test_looks_itself(replay_capture):
    assert len(replay_capture("all.capture", changed(), same=False).differences) == 2
"""


@pytest.mark.slow
def test_the_fixture_fails_a_test_with_what_differs(tmp_path: Path) -> None:
    query = CapturedQuery(tmp_path, "heap", Frames(), mode="pandas")
    query.epoch([("a", 1)])
    query.save()
    query.close()
    (tmp_path / "test_it.py").write_text(PROGRAM)
    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["pyspark_ckpt.testing.pytest_plugin"]\n'
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:nbmake"]
    done = subprocess.run(
        [*command, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "epoch 0, key ('a',), output: n 1 -> 2" in done.stdout
