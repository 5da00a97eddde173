"""An initial state is exact whenever the driver dies before epoch 0 is committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.recovery.initial_state_program import KEYS

PROGRAM = Path(__file__).with_name("initial_state_program.py")
DEADLINE_SECONDS = 120


def kill_at(work: Path, where: str) -> None:
    """Run the program up to a point and kill it there."""
    driver = subprocess.Popen([sys.executable, str(PROGRAM), str(work), where])
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (work / where).exists():
            assert driver.poll() is None, "the program has ended"
            assert time.monotonic() < deadline, f"the program did not reach {where}"
            time.sleep(0.02)
    finally:
        driver.kill()
        driver.wait()


def rows_of(work: Path, epoch: int, where: str) -> list[dict[str, object]]:
    text = (work / f"epoch-{epoch}-{where}").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.own_jvm
@pytest.mark.soak
def test_killed_before_epoch_0_is_committed(tmp_path: Path) -> None:
    """Killed while the state is made, or after the actions of epoch 0: the output is the same."""
    (tmp_path / "input").mkdir()
    for i, key in enumerate(("k1", "k2")):
        file = tmp_path / "input" / f"{i}.parquet"
        pq.write_table(pa.table({"key": [key]}), file)
        os.utime(file, (1_700_000_000 + i,) * 2)  # the file source reads the oldest first
    kill_at(tmp_path, "initial")
    assert not list((tmp_path / "location" / "offsets").glob("*"))
    kill_at(tmp_path, "epoch")
    assert (tmp_path / "location" / "offsets" / "0").exists()
    assert not (tmp_path / "location" / "commits" / "0").exists()
    subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "end"], check=True, timeout=DEADLINE_SECONDS
    )
    first = rows_of(tmp_path, 0, "end")
    assert first == rows_of(tmp_path, 0, "epoch")
    begun_ms = first[0]["begun_ms"]
    assert begun_ms
    # Timers of all keys are due at once, also of those in subtasks without rows.
    timers = [
        {"key": f"timer of k{i}", "n": 100 * i + (i == 1), "begun_ms": None} for i in range(KEYS)
    ]
    assert first == [{"key": "k1", "n": 101, "begun_ms": begun_ms}, *timers]
    assert rows_of(tmp_path, 1, "end") == [{"key": "k2", "n": 201, "begun_ms": begun_ms}]
