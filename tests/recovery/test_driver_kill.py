"""The driver, with all its workers, dies by ``kill -9`` at random points and is started again.

Oracle: each key's rows are numbered 1, 2, 3, ... without a gap or a repeat, and the last states
are those of the whole input. A kill counts only if a checkpoint completed in the killed run.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PROGRAM = Path(__file__).with_name("program.py")
ROWS_PER_FILE = 300
KEYS = 40
DEADLINE_SECONDS = 240


@pytest.mark.own_jvm
def test_three_kills(tmp_path: Path) -> None:
    """Restarted on the same backend, on the other one, and back."""
    _kill_and_check(tmp_path, ("rocksdb", "rocksdb", "heap"), kills=3, files=36)


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.parametrize("backends", [("rocksdb",), ("heap",), ("heap", "rocksdb")], ids="-".join)
def test_twenty_kills(tmp_path: Path, backends: tuple[str, ...]) -> None:
    """The same, longer."""
    _kill_and_check(tmp_path, backends, kills=20, files=160)


def _kill_and_check(work: Path, backends: tuple[str, ...], kills: int, files: int) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    rows = _write_input(work, files, chance)
    for kill in range(kills):
        _run_and_kill(work, backends[kill % len(backends)], chance)
    finished = subprocess.run(
        _command(work, backends[kills % len(backends)]), timeout=DEADLINE_SECONDS, check=False
    )
    assert finished.returncode == 0
    _check_output(work, rows)


def _write_input(work: Path, files: int, chance: random.Random) -> pd.DataFrame:
    (work / "input").mkdir()
    frames = []
    for number in range(files):
        frame = pd.DataFrame(
            {
                "key": [f"k{chance.randrange(KEYS)}" for _ in range(ROWS_PER_FILE)],
                "value": [chance.randrange(1000) for _ in range(ROWS_PER_FILE)],
            }
        )
        path = work / "input" / f"{number:04d}.parquet"
        pq.write_table(pa.Table.from_pandas(frame), path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # the file source reads the oldest first
        frames.append(frame)
    return pd.concat(frames)


def _command(work: Path, backend: str) -> list[str]:
    return [sys.executable, str(PROGRAM), str(work), backend]


def _run_and_kill(work: Path, backend: str, chance: random.Random) -> None:
    """Start the program and kill it some random time after its first checkpoint of this run."""
    before = _checkpoint_ids(work)
    process = subprocess.Popen(_command(work, backend), start_new_session=True)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not _checkpoint_ids(work) - before:
            _run_on(process, 0.02)
            assert time.monotonic() < deadline, "no checkpoint completed in time"
        _run_on(process, chance.uniform(0.0, 2.0))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run_on(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return
    pytest.fail(f"the program ended by itself with exit code {code}, before it was killed")


def _checkpoint_ids(work: Path) -> set[str]:
    return {path.parent.name for path in work.glob("location/pyspark_ckpt/chk-*/_metadata")}


def _check_output(work: Path, rows: pd.DataFrame) -> None:
    output = _committed_output(work)
    numbers = output.sort_values("n").groupby("key")["n"].agg(list)
    counts = rows.groupby("key").size()
    assert {key: list(range(1, n + 1)) for key, n in counts.items()} == numbers.to_dict()
    last = output.loc[output.groupby("key")["n"].idxmax()].set_index("key").sort_index()
    totals = rows.groupby("key")["value"].sum()
    assert last["total"].to_dict() == totals.to_dict()
    assert last["listed"].to_dict() == counts.to_dict()
    kinds = rows.groupby(["key", rows["value"] % 3]).size().groupby("key").max()
    assert output.groupby("key")["of_kind"].max().to_dict() == kinds.to_dict()


def _committed_output(work: Path) -> pd.DataFrame:
    """Read the files that the sink's own log lists; others are leftovers of killed runs."""
    names: dict[str, None] = {}
    for entry in (work / "output" / "_spark_metadata").glob("[0-9]*"):
        for line in entry.read_text().splitlines()[1:]:
            path = json.loads(line)["path"]
            names[Path(path).name] = None
    tables = [pq.read_table(work / "output" / name) for name in names]
    return pa.concat_tables(tables).to_pandas()
