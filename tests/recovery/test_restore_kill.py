"""The driver dies by ``kill -9`` during a restore at another parallelism; the restore is retried.

Oracle: the restored query emits what the golden data's model emits, at either parallelism.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ckpt.restore.location.seedings import is_half_seeded
from pyspark_ckpt.storage.open import LocalStorage
from tests.golden import archives
from tests.query.harness import digests

PROGRAM = Path(__file__).with_name("restoring_program.py")
SAVEPOINT = archives.newest("rocksdb") / "canonical"
OPERATIONS = 150
"""At least so many there are in a restore."""


def ran(base: Path, parallelism: int, kill_at: int) -> subprocess.CompletedProcess[str]:
    arguments = [str(base), str(SAVEPOINT), str(parallelism), str(kill_at)]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    print(parallelism, done.returncode, done.stdout)
    return done


def killed(base: Path, parallelism: int, kill_at: int) -> None:
    done = ran(base, parallelism, kill_at)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert re.search(rf"^killed at {kill_at}: ", done.stdout, re.MULTILINE)


def is_complete(location: Path) -> bool:
    return (location / "commits").exists() and not is_half_seeded(LocalStorage(location))


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.parametrize("kills", [1, 12])
def test_a_restore_that_is_killed_is_tried_again(tmp_path: Path, kills: int) -> None:
    """Scenarios 21 and 39: with the same parallelism or another one; the savepoint is untouched."""
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    before = digests(SAVEPOINT)
    work, parallelisms = tmp_path / "work", [2, 3]
    for _ in range(kills):
        parallelism = chance.choice(parallelisms)
        killed(work, parallelism, chance.randrange(OPERATIONS))
        if is_complete(work / "location"):
            parallelisms = [parallelism]  # it is bound
    done = ran(work, chance.choice(parallelisms), -1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout
    assert digests(SAVEPOINT) == before
