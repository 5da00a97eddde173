"""Runs programs with the code of an earlier version, from the wheel beside its golden data."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

GOLDEN = Path(__file__).parent
VERSION = "0.1.0"


def run_earlier(directory: Path, arguments: list[str], timeout_s: int = 480) -> str:
    """Run Python in a process of its own in which ``pyspark_ckpt`` is the earlier version.

    Parameters
    ----------
    directory
        Where the code of the earlier version is unpacked.
    arguments
        What comes after ``python``.
    timeout_s
        When the process is killed.

    Returns
    -------
    str
        What the process wrote to its standard output and error.
    """
    code = directory / f"code-{VERSION}"
    if not code.exists():
        (wheel,) = (GOLDEN / VERSION).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(code)
    # The earlier code comes before this version's, which lies beside the tests.
    path = os.pathsep.join([str(code), str(GOLDEN.parents[1])])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout
