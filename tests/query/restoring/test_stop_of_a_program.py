"""``pyspark-ckpt stop`` of a program that ends with its query: the savepoint is made before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("ending_program.py")


@pytest.mark.soak_variants
@pytest.mark.own_jvm
@pytest.mark.parametrize("way", ["any", "polls"])
def test_the_program_does_not_end_before_the_savepoint_is_made(tmp_path: Path, way: str) -> None:
    """With ``awaitAnyTermination``, and while ``isActive``: Spark's query ends before."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(tmp_path), way], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert "running" in program.stdout.readline()
        done = subprocess.run(
            [sys.executable, "-m", "pyspark_ckpt", "stop", str(tmp_path / "loc"), "--json"],
            env={**os.environ, "PYTHONPATH": str(Path(ckpt.__file__).parents[1])},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        printed = json.loads(done.stdout)
        assert done.returncode == 0, printed
        assert ckpt.location(printed["path"]).verify()
        assert program.wait(120) == 0
