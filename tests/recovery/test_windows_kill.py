"""Windows of Spark and the operator after them continue together when the driver is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.timed import ORIGIN_MS
from tests.recovery.stopping_epoch import DEADLINE_SECONDS, kill_when_stopped

PROGRAM = Path(__file__).with_name("windows_program.py")
TIMES = [[0, 1, 5, 6], [8, 3, 11], [20, 9, 14], [30, 2, 21], [40, 33], [60]]
"""Event times in seconds, by file; some are late."""


def write_input(directory: Path) -> None:
    directory.mkdir(parents=True)
    for number, times in enumerate(TIMES):
        rows = {
            "key": ["ab"[second % 2] for second in times],
            "ts": pa.array(
                [1000 * (ORIGIN_MS + 1000 * second) for second in times], pa.timestamp("us", "UTC")
            ),
        }
        hidden = directory / ".tmp"
        pq.write_table(pa.table(rows), hidden)
        os.utime(hidden, (1_700_000_000 + number,) * 2)  # the oldest file is read first
        hidden.rename(directory / f"{number:03}.parquet")


def output(work: Path) -> list[dict[str, Any]]:
    rows = []
    for number in range(len(list(work.glob("epoch-*")))):
        rows += map(json.loads, (work / f"epoch-{number}").read_text().splitlines())
    return rows


def run(work: Path) -> None:
    subprocess.run([sys.executable, PROGRAM, work, "end"], check=True, timeout=DEADLINE_SECONDS)


def run_and_kill(work: Path, epoch: int) -> None:
    driver = subprocess.Popen(
        [sys.executable, PROGRAM, work, str(epoch)], start_new_session=True, text=True
    )
    kill_when_stopped(driver, work, epoch)


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_killed_driver_changes_nothing(tmp_path: Path) -> None:
    """The program checks that a repeated epoch gives the rows that it gave before."""
    work = tmp_path / "killed"
    write_input(work / "input")
    for epoch in (1, 2, 4):
        run_and_kill(work, epoch)
    run(work)
    whole = tmp_path / "whole"
    write_input(whole / "input")
    run(whole)
    assert output(work) == output(whole)
    timers = [row for row in output(work) if row["at"] < 0]
    assert timers
    assert len(output(work)) > len(timers) + len(TIMES)
