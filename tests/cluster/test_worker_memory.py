"""The least memory of Python workers that a start accepts is enough for both backends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ckpt.spark.worker_python import LEAST_WORKER_MIB

PROGRAM = Path(__file__).with_name("memory_program.py")


@pytest.mark.external
@pytest.mark.own_jvm
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_a_query_and_its_savepoint(tmp_path: Path, backend: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), backend, f"{LEAST_WORKER_MIB}m"],
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
