"""A process is killed at each step of ``apply``: the old or the new version is complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from state_backends import BACKEND_TYPES, open_backend
from tests.contracts.backend_contract import check_content

_KILL_AT_EVERY_STEP = """
import os, signal, sys
from pathlib import Path
from state_backends import Changes, open_backend

backend_type, root = sys.argv[1], Path(sys.argv[2])

def killed_at(step):
    # Python reports every call and return, of C functions too.
    steps = 0
    def count(frame, event, arg):
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)
    return count

def run(step):
    with open_backend(backend_type, root / str(step), create=True) as backend:
        backend.apply([Changes([b"a", b"b"], [b"old", b"old"])], "old")
        parts = [Changes([b"a", b"b"], [b"new", None]), Changes([b"c"], [b"new"])]
        sys.setprofile(killed_at(step))
        backend.apply(parts, "new")
        sys.setprofile(None)

step, status = 0, -1
while status:
    step += 1
    child = os.fork()
    if not child:
        run(step)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
print(step)
"""

OLD = {b"a": b"old", b"b": b"old"}
NEW = {b"a": b"new", b"c": b"new"}


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_process_killed_at_any_step_of_apply_leaves_one_whole_version(
    tmp_path: Path, backend_type: str
) -> None:
    command = [sys.executable, "-c", _KILL_AT_EVERY_STEP, backend_type, str(tmp_path)]
    steps = int(subprocess.check_output(command, text=True))
    assert steps > 20
    versions = []
    for step in range(1, steps + 1):
        with open_backend(backend_type, tmp_path / str(step), create=False) as backend:
            versions.append(str(backend.version()))
            check_content(backend, NEW if versions[-1] == "new" else OLD, versions[-1])
    assert versions == sorted(versions, reverse=True), "there is one step that makes the version"
    assert set(versions) == {"old", "new"}
