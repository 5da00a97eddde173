"""The recipes of the documentation for ``foreachBatch`` write exactly once into SQLite and Delta.

Oracle: each key's rows are numbered 1, 2, 3, ... without a gap or a repeat.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

PROGRAM = Path(__file__).with_name("sinks_program.py")
DEADLINE_SECONDS = 240
KEYS = ("ada", "bob", "cy")


@pytest.mark.own_jvm
def test_kills_between_the_sinks_commit_and_sparks_and_a_rollback(tmp_path: Path) -> None:
    """The epochs of the rollback run again with other rows; the first one is interrupted too."""
    keys = write_input(tmp_path / "input", range(3))
    keys += write_input(tmp_path / "later", range(3, 7))
    assert run(tmp_path, "run:1:sqlite:1") == -signal.SIGKILL
    assert run(tmp_path, "run:1:delta:2") == -signal.SIGKILL
    steps = ("run:1", "more", "run:1", "rollback", "run:2:sqlite:3")
    assert run(tmp_path, *steps) == -signal.SIGKILL
    assert run(tmp_path, "run:2") == 0
    epochs = (tmp_path / "epochs.txt").read_text().split()
    before, after = dict.fromkeys(epoch.split("/")[0] for epoch in epochs)
    numbers = {before: [0, 1, 1, 2, 2, 3, 4, 5, 6], after: [3, 3, 4]}
    assert epochs == [
        f"{query_id}/{number}" for query_id in numbers for number in numbers[query_id]
    ]
    valid = {*((before, epoch) for epoch in range(3)), (after, 3), (after, 4)}
    for sink in (in_sqlite(tmp_path), in_delta(tmp_path)):
        assert sorted((key, n) for _, _, key, n in sink) == numbered(keys)
        assert {(query_id, epoch) for query_id, epoch, _, _ in sink} == valid


def write_input(directory: Path, files: range) -> list[str]:
    """Write a file for each number; return the keys of its rows."""
    directory.mkdir()
    written = []
    for number in files:
        keys = [KEYS[(number + i * i) % len(KEYS)] for i in range(8)]
        table = pa.table({"k": keys, "v": pa.array(range(8), pa.int64())})
        path = directory / f"{number}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        written += keys
    return written


def run(work: Path, *steps: str) -> int:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(work), *steps], start_new_session=True
    )
    try:
        return process.wait(DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def numbered(keys: list[str]) -> list[tuple[str, int]]:
    return sorted((key, n + 1) for key, rows in Counter(keys).items() for n in range(rows))


def in_sqlite(work: Path) -> list[tuple[str, int, str, int]]:
    with sqlite3.connect(work / "counts.db") as db:
        return db.execute("SELECT query_id, epoch, k, n FROM counts").fetchall()


def in_delta(work: Path) -> list[tuple[str, int, str, int]]:
    table = DeltaTable(str(work / "counts")).to_pyarrow_table()
    return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
