"""A hanging test ends: by a signal, or with its process if no signal gets through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

IN_PYTHON = "import time\ndef test_it(): time.sleep(600)\ndef test_next(): pass\n"
IN_NATIVE_CODE = """
import ctypes, signal
def test_it():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    ctypes.PyDLL(None).pause()  # keeps the interpreter's lock
"""
OPTIONS = ["-o", "faulthandler_timeout=3", "-o", "faulthandler_exit_on_timeout=true"]


def test_this_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("timeout")
    assert 0 < marker.args[0] < float(request.config.getini("faulthandler_timeout"))
    assert request.config.getini("faulthandler_exit_on_timeout")
    assert request.config.pluginmanager.hasplugin("timeout"), "install the extra 'dev' again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (IN_PYTHON, ["--timeout=1", "--timeout-method=signal"], "1 failed, 1 passed"),
        (IN_NATIVE_CODE, ["--timeout=1", "--timeout-method=signal", *OPTIONS], "Timeout (0:00:03)"),
    ],
    ids=["in Python", "in native code"],
)
def test_a_test_that_hangs_ends(tmp_path: Path, text: str, options: list[str], said: str) -> None:
    path = tmp_path / "test_hanging.py"
    path.write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [*command, *options, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
