"""A driver that edits savepoints dies by ``kill -9`` at random moments.

Oracle: every directory is a complete savepoint with all that was put in, or it is refused by name.
The source has the same bytes as before.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyspark_ckpt import location
from pyspark_ckpt.errors import CheckpointNotFoundError
from tests.recovery.edit_program import KEYS, NATIVE_KEYS

PROGRAM = Path(__file__).with_name("edit_program.py")
DEADLINE_SECONDS = 240


@pytest.mark.soak
@pytest.mark.own_jvm
@pytest.mark.parametrize("kind", [pytest.param("canonical", marks=pytest.mark.soak), "native"])
def test_two_kills(tmp_path: Path, kind: str) -> None:
    kill_and_check(tmp_path, kind, kills=2)


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["canonical", "native"])
def test_fifteen_kills(tmp_path: Path, kind: str) -> None:
    kill_and_check(tmp_path, kind, kills=15)


def kill_and_check(work: Path, kind: str, kills: int) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    source: dict[str, str] = {}
    for _ in range(kills):
        _run_and_kill(work, kind, chance)
        now = _digests(work / "source")
        assert now == (source or now)
        source = now
        for path in (work / "edited").iterdir():
            _check(path, kind)


def _check(path: Path, kind: str) -> None:
    try:
        location(str(path)).verify()
    except CheckpointNotFoundError as exc:
        assert str(path) in str(exc)  # noqa: PT017  # one of two outcomes
        assert not (path / "_metadata").exists()
        if (path / "_in_progress").exists():
            location(str(path)).dispose()
            assert not path.exists()
        return
    if kind == "native":
        _check_two_operators(path)
        return
    files = path.glob("shared/*.parquet")
    assert sum(pq.read_metadata(file).num_rows for file in files) == KEYS - 1


def _check_two_operators(path: Path) -> None:
    """The operator that was edited has the changes and no more, the other is as it was."""
    with location(str(path)).state() as snapshot:
        changed = snapshot.state("timed", "last").to_pandas()
        assert dict(zip(changed.k, changed.n, strict=True)) == {
            key: 3 * key + 1 for key in range(1, NATIVE_KEYS)
        }
        items = snapshot.state("timed", "all").to_pandas().sort_values(["k", "position"])
        assert items.n.tolist() == [n for key in range(1, NATIVE_KEYS) for n in (3 * key, -3 * key)]
        timers = snapshot.timers("timed").to_pandas()
        assert sorted(timers.k) == [*range(1, NATIVE_KEYS)]
        kept = snapshot.state("kept", "count").to_pandas()
        assert dict(zip(kept.k, kept.n, strict=True)) == {
            key: 3 * key for key in range(NATIVE_KEYS)
        }


def _run_and_kill(work: Path, kind: str, chance: random.Random) -> None:
    """Start the program and kill it some time after it has begun another savepoint."""
    known = set(work.glob("edited/*"))
    command = [sys.executable, str(PROGRAM), str(work), kind]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not set(work.glob("edited/*")) - known:
            assert process.poll() is None, "the program ended by itself"
            assert time.monotonic() < deadline, "no savepoint began in time"
            time.sleep(0.005)
        time.sleep(chance.choice((0.0, chance.uniform(0, 0.2), chance.uniform(0, 4))))
        assert process.poll() is None, "the program ended by itself"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _digests(directory: Path) -> dict[str, str]:
    """Return the digests of a savepoint's files, without the pins of readers that were killed."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith("_reader-")
    }
