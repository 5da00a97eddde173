"""The functions of the documentation write exactly once: SQLite, Delta, Iceberg, PostgreSQL.

Oracle: each key's rows are numbered 1, 2, 3, ... without a gap or a repeat.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.servers.postgres import postgres_server

PROGRAM = Path(__file__).with_name("sinks_program.py")
DEADLINE_SECONDS = 240
KEYS = ("ada", "bob", "cy")
Rows = list[tuple[str, int, str, int]]
"""Query id, epoch, key and number of each row in a sink."""


@pytest.fixture
def postgres() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.mark.soak
@pytest.mark.own_jvm
def test_kills_a_rollback_a_fork_and_a_replacement(tmp_path: Path, postgres: str) -> None:
    """A kill after all sinks, and one between two, in the first epoch of a rollback.

    The epochs of the rollback run again with other rows. The fork reads what the original reads
    once more, next to it in the same tables. The replacement makes the original's last epoch void.
    """
    keys = write_input(tmp_path / "input", range(3))
    keys += write_input(tmp_path / "later", range(3, 7))
    at_last = write_input(tmp_path / "last", range(7, 9))
    assert run(tmp_path, postgres, "run:1:postgres:1") == -signal.SIGKILL
    steps = ("run:1", "more:later", "run:2", "rollback", "run:3:delta:3")
    assert run(tmp_path, postgres, *steps) == -signal.SIGKILL
    assert run(tmp_path, postgres, "run:3", "more:last", "run:2", "fork:1", "replace:1") == 0
    epochs = (tmp_path / "epochs.txt").read_text().split()
    first, second, fork, replacement = dict.fromkeys(epoch.split("/")[0] for epoch in epochs)
    assert epochs == [
        f"{query_id}/{number}"
        for query_id, numbers in (
            (first, [0, 1, 1, 2, 3, 4]), (second, [3, 3, 4, 5]), (fork, [5, 6]),
            (replacement, [5, 6]),
        )
        for number in numbers
    ]  # fmt: skip
    common = {(first, 0), (first, 1), (first, 2), (second, 3), (second, 4)}
    of_fork = common | {(fork, 5), (fork, 6)}
    of_replacement = common | {(replacement, 5), (replacement, 6)}
    for sink in all_sinks(tmp_path, postgres):
        assert {row[:2] for row in sink} == of_fork | of_replacement
        assert numbers_of(sink, of_fork) == numbered(keys + at_last)
        assert numbers_of(sink, of_replacement) == numbered(keys + at_last)


@pytest.mark.own_jvm
@pytest.mark.external
def test_kills_at_any_point(tmp_path: Path, postgres: str) -> None:
    """Also in the middle of a commit of a sink."""
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    keys = write_input(tmp_path / "input", range(60))
    log = tmp_path / "epochs.txt"
    log.touch()
    for _ in range(12):
        process = started(tmp_path, postgres, "run:1")
        begun, deadline = log.read_text(), time.monotonic() + DEADLINE_SECONDS
        while log.read_text() == begun:
            assert process.poll() is None
            assert time.monotonic() < deadline, "no epoch began in time"
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 4.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert run(tmp_path, postgres, "run:1") == 0
    epochs = log.read_text().split()
    assert len(epochs) > len(set(epochs)), "no epoch was repeated"
    for sink in all_sinks(tmp_path, postgres):
        assert numbers_of(sink, {row[:2] for row in sink}) == numbered(keys)


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


def started(work: Path, postgres: str, *steps: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(PROGRAM), str(work), postgres, *steps]
    return subprocess.Popen(command, start_new_session=True)


def run(work: Path, postgres: str, *steps: str) -> int:
    process = started(work, postgres, *steps)
    try:
        return process.wait(DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def numbered(keys: list[str]) -> list[tuple[str, int]]:
    return sorted((key, n + 1) for key, rows in Counter(keys).items() for n in range(rows))


def numbers_of(sink: Rows, epochs: set[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted((key, n) for query_id, epoch, key, n in sink if (query_id, epoch) in epochs)


def all_sinks(work: Path, postgres: str) -> Iterator[Rows]:
    with sqlite3.connect(work / "counts.db") as db:
        yield db.execute("SELECT * FROM counts").fetchall()
    with psycopg.connect(postgres) as server:
        yield server.execute("SELECT * FROM counts").fetchall()
    yield rows_of(DeltaTable(str(work / "counts")).to_pyarrow_table())
    catalog = load_catalog("sql", uri=f"sqlite:///{work}/warehouse/catalog.db")
    yield rows_of(catalog.load_table("sinks.counts").scan().to_arrow())


def rows_of(table: pa.Table) -> Rows:
    return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
