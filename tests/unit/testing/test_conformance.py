"""The harness passes PySpark's tests of TwsTester; ``make prove`` runs the other tests."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.soak
@pytest.mark.skipif(
    find_spec("pyspark.sql.streaming.tws_tester") is None, reason="this PySpark has no TwsTester"
)
@pytest.mark.own_jvm
def test_pysparks_tests_of_its_tester() -> None:
    """In a separate process, because they start their own Spark."""
    tests = "tests/conformance/test_harness.py::TwsTesterTests"
    command = [sys.executable, "-m", "pytest", tests, "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " pass, " in run.stdout
