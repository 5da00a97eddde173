"""The driver, with all its workers, dies by ``kill -9`` at random points and is started again.

Oracle: each key's rows are numbered 1, 2, 3, ... without a gap or a repeat, and the last states
are those of the whole input. A kill counts only if a checkpoint completed in the killed run.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from pyspark_ckpt import location
from tests.recovery.numbered_rows import check_output, write_input

PROGRAM = Path(__file__).with_name("program.py")
DEADLINE_SECONDS = 240


@pytest.mark.own_jvm
@pytest.mark.slow
def test_two_kills(tmp_path: Path) -> None:
    """Scenarios 21 and 32: on the other backend, and back; in a savepoint.

    Every other run has the jar of the library for Spark's own files.
    """
    _kill_and_check(tmp_path, ("rocksdb", "heap"), kills=2, files=30)


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.parametrize(
    "backends", [("rocksdb",), ("heap",), ("heap", "rocksdb", "rocksdb")], ids="-".join
)
def test_twenty_kills(tmp_path: Path, backends: tuple[str, ...]) -> None:
    """Scenario 22: the same, longer."""
    _kill_and_check(tmp_path, backends, kills=20, files=160)


def _kill_and_check(work: Path, backends: tuple[str, ...], kills: int, files: int) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    rows = _write_input(work, files, chance)
    cut_off: list[Path] = []
    for kill in range(kills):
        interrupted = _run_and_kill(work, _command(work, backends, kill), chance, kill % 3 == 1)
        cut_off += interrupted
    finished = subprocess.run(
        _command(work, backends, kills), timeout=DEADLINE_SECONDS, check=False
    )
    assert finished.returncode == 0
    check_output(work / "output", rows)
    _check_savepoints(work, cut_off)


def _check_savepoints(work: Path, cut_off: list[Path]) -> None:
    """Interrupted ones are removed, the others are complete; the history lists both."""
    assert cut_off, "no savepoint was cut off"
    there = list((work / "savepoints").iterdir())
    assert not set(there) & set(cut_off)
    for path in there:
        location(str(path)).verify()
    shown = location(str(work / "location")).history().query("kind == 'savepoint'")
    assert {str(path) for path in there} == set(shown[shown.status == "completed"].path)
    reasons = shown[shown.status == "aborted"].reason
    assert all(any(str(path) in reason for reason in reasons) for path in cut_off)
    assert set(shown.status) <= {"completed", "aborted"}


def _write_input(work: Path, files: int, chance: random.Random) -> pd.DataFrame:
    (work / "input").mkdir()
    return pd.concat([write_input(work / "input", number, chance) for number in range(files)])


def _command(work: Path, backends: tuple[str, ...], run: int) -> list[str]:
    jar = ["jar"] if run % 2 else []
    return [sys.executable, str(PROGRAM), str(work), backends[run % len(backends)], *jar]


def _run_and_kill(
    work: Path, command: list[str], chance: random.Random, in_a_savepoint: bool
) -> list[Path]:
    """Start the program and kill it some random time after its first checkpoint of this run.

    Returns the interrupted savepoints. With `in_a_savepoint`, the kill comes when one has begun.
    """
    before = _checkpoint_ids(work)
    process = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not _checkpoint_ids(work) - before:
            _run_on(process, 0.02)
            assert time.monotonic() < deadline, "no checkpoint completed in time"
        if in_a_savepoint:
            known = _begun_savepoints(work)
            while not _begun_savepoints(work) - known:
                known = _begun_savepoints(work)
                _run_on(process, 0.002)
                assert time.monotonic() < deadline, "no savepoint began in time"
        else:
            _run_on(process, chance.uniform(0.0, 1.0))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return sorted(_begun_savepoints(work))


def _begun_savepoints(work: Path) -> set[Path]:
    markers = work.glob("savepoints/*/_in_progress")
    return {path.parent for path in markers if not (path.parent / "_metadata").exists()}


def _run_on(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return
    pytest.fail(f"the program ended by itself with exit code {code}, before it was killed")


def _checkpoint_ids(work: Path) -> set[str]:
    return {path.parent.name for path in work.glob("location/pyspark_ckpt/chk-*/_metadata")}
