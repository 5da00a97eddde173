"""The driver dies by ``kill -9`` within a rescale in place, at any file operation of it.

Oracle: each key's rows are numbered 1, 2, 3, ... without a gap or a repeat, as by one run.
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

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.recovery.numbered_rows import check_output, write_input
from tests.recovery.rescaling_program import DEADLINE_SECONDS

PROGRAM = Path(__file__).with_name("rescaling_program.py")
OPERATIONS = 150
"""About so many file operations a rescale has; a kill beyond the last one is none."""


def ran(work: Path, backend: str, sink: str, kill_at: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(work), backend, sink, str(kill_at)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS + 20,  # it ends itself before, and says where it was
        check=False,
    )
    print(kill_at, done.returncode, done.stdout)
    return done


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
@pytest.mark.parametrize("sink", ["file", "batch"])
def test_a_rescale_that_is_killed(tmp_path: Path, backend: str, sink: str) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    kills = int(os.environ.get("CKPT_TEST_KILLS") or 10)
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    (tmp_path / "input").mkdir()
    rows = pd.concat([write_input(tmp_path / "input", number, chance) for number in range(12)])
    were_killed = 0
    for number in range(kills):
        rows = pd.concat([rows, write_input(tmp_path / "input", 12 + number, chance)])
        done = ran(tmp_path, backend, sink, chance.randrange(OPERATIONS))
        if done.returncode != 0:
            assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
            assert re.search(r"^killed at ", done.stdout, re.MULTILINE)
            were_killed += 1
    assert were_killed, "no run was killed"
    rows = pd.concat([rows, write_input(tmp_path / "input", 12 + kills, chance)])
    done = ran(tmp_path, backend, sink, -1)
    assert done.returncode == 0, done.stdout + done.stderr
    if sink == "file":
        check_output(tmp_path / "output", rows)
        return
    output = pd.concat(
        pq.read_table(path).to_pandas() for path in (tmp_path / "output").glob("epoch-*")
    )
    numbers = output.sort_values("n").groupby("key")["n"].agg(list).to_dict()
    counts = rows.groupby("key").size()
    assert numbers == {key: list(range(1, n + 1)) for key, n in counts.items()}
