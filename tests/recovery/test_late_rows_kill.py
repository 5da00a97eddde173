"""What is late stays so, and is handled once, whenever a driver, executor or worker is killed."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyspark_ckpt as ckpt
from tests.recovery.late_rows_program import DELAY_S
from tests.recovery.processes import DRIVER, KINDS, kill, kill_all
from tests.recovery.stopping_epoch import DEADLINE_SECONDS, kill_when_stopped

CLUSTER = "local-cluster[1,2,1024]"
PROGRAM = Path(__file__).with_name("late_rows_program.py")
ORIGIN = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
Epoch = list[tuple[str, int, int]]


def epochs_of(seed: int, number: int) -> list[Epoch]:
    """Return epochs of rows (key, number of the row, second), some of them late."""
    chance, made, now, v = random.Random(seed), [], 100, 0
    for _ in range(number):
        now += chance.choice([0, 1, 3, 8])
        rows = []
        for _ in range(12):
            rows.append((chance.choice("abc"), v, now - chance.choice([0, 2, 5, 6, 9, 40])))
            v += 1
        made.append(rows)
    return made


def write(work: Path, epochs: list[Epoch]) -> None:
    (work / "input").mkdir()
    for number, rows in enumerate(epochs):
        keys, values, seconds = zip(*rows, strict=True)
        times = pa.array([ORIGIN + dt.timedelta(seconds=second) for second in seconds])
        columns = {"key": keys, "v": values, "at": times.cast(pa.timestamp("us", "UTC"))}
        path = work / "input" / f"{number:03}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # the oldest file is read first


def late_of(epochs: list[Epoch]) -> set[int]:
    """Return the late rows: not after the watermark of the epoch before, as Spark tells them."""
    watermarks, newest, late = [float("-inf")], float("-inf"), set()
    for rows in epochs:
        late |= {v for _, v, second in rows if second <= watermarks[-1]}
        watermarks.append(newest - DELAY_S)  # of this epoch: by the rows before it
        newest = max([newest, *(second for *_, second in rows)])
    return late


def command(work: Path, where: str, *master: str) -> list[str]:
    return [sys.executable, str(PROGRAM), str(work), where, *master]


def start(work: Path, where: str, *master: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(work, where, *master), start_new_session=True, text=True)


def check(work: Path, epochs: list[Epoch]) -> None:
    found: dict[tuple[str, bool], list[int]] = defaultdict(list)
    seen, late = set(), set()
    for number in range(len(list(work.glob("epoch-*")))):
        lines = (work / f"epoch-{number}").read_text().splitlines()
        for row in sorted(map(json.loads, lines), key=lambda row: row["n"]):
            found[row["key"], row["is_late"]].append(row["n"])
            seen.add(row["v"])
            late |= {row["v"]} if row["is_late"] else set()
    assert seen == {v for rows in epochs for _, v, _ in rows}
    assert late == late_of(epochs)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in found.values())
    assert sum(map(len, found.values())) == len(seen)
    with ckpt.location(str(work / "location")).state() as snapshot:
        counts = snapshot.state("audit", "late").to_pandas()
    stored = dict(zip(counts["key"], counts["n"], strict=True))
    assert stored == {key: len(ns) for (key, is_late), ns in found.items() if is_late}


@pytest.mark.own_jvm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_epoch_that_is_repeated_has_the_same_late_rows(tmp_path: Path) -> None:
    """The program checks that a repeated epoch gives the rows that it gave before."""
    epochs = epochs_of(3, 6)
    write(tmp_path, epochs)
    kill_when_stopped(start(tmp_path, "3"), tmp_path, 3)
    assert '"is_late": true' in (tmp_path / "epoch-3").read_text()
    subprocess.run(command(tmp_path, "end"), check=True, timeout=DEADLINE_SECONDS)
    check(tmp_path, epochs)


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_any_time(tmp_path: Path, seed: int) -> None:
    epochs, chance, kills = epochs_of(seed, 40), random.Random(seed), Counter[str]()
    write(tmp_path, epochs)
    kinds, offsets = cycle(KINDS), tmp_path / "location" / "offsets"
    driver = start(tmp_path, "end", CLUSTER)
    deadline = time.monotonic() + 1_500
    try:
        while driver.poll() is None:
            target = len(list(offsets.glob("[0-9]*"))) + chance.randint(1, 4)
            while driver.poll() is None and len(list(offsets.glob("[0-9]*"))) < target:
                assert time.monotonic() < deadline, "the program hangs"
                time.sleep(0.01)
            with suppress(subprocess.TimeoutExpired):
                driver.wait(chance.uniform(0, 0.6))
                break
            what = next(kinds)
            kills[what] += kill(driver, what, chance)
            if what == DRIVER:
                driver.wait()
                driver = start(tmp_path, "end", CLUSTER)
        assert driver.wait(DEADLINE_SECONDS) == 0, "the program failed"
    finally:
        kill_all(driver)
    print(dict(kills))
    assert len(kills) == len(KINDS)
    check(tmp_path, epochs)
