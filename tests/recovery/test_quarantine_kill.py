"""Parking and release are exact whenever the driver is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_ckpt.operator.quarantine.releases import Release, ReleaseFiles
from pyspark_ckpt.storage.open import LocalStorage
from tests.recovery.quarantine_program import BAD

PROGRAM = Path(__file__).with_name("quarantine_program.py")
DEADLINE_SECONDS = 240
Rows = list[tuple[str, int]]


class Work:
    """The directory of one query, and the runs of the program over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epochs: list[Rows] = []
        (path / "input").mkdir()

    def add(self, *epochs: Rows) -> None:
        for rows in epochs:
            keys, values = zip(*rows, strict=True)
            hidden = self.path / "input" / ".tmp"
            pq.write_table(pa.table({"key": keys, "v": pa.array(values, pa.int64())}), hidden)
            number = len(self.epochs)
            os.utime(hidden, (1_700_000_000 + number,) * 2)  # the oldest file is read first
            hidden.rename(self.path / "input" / f"{number:03}.parquet")
            self.epochs.append(rows)

    def release(self, *keys: str) -> None:
        stored = tuple(msgspec.msgpack.encode((key,)).hex() for key in keys) or None
        storage = LocalStorage(self.path / "location" / "pyspark_ckpt")
        ReleaseFiles(storage).request(Release(uid="count", keys=stored))

    def run(self, program: str) -> None:
        subprocess.run(self._command(program, "end"), check=True, timeout=DEADLINE_SECONDS)

    def run_and_kill(self, program: str, epoch: int) -> None:
        """Kill the program after the actions of an epoch, before Spark commits it."""
        stopped = self.path / "stopped"
        driver = self._driver(program, str(epoch))
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            while not stopped.exists():
                assert driver.poll() is None, "the program has ended"
                assert time.monotonic() < deadline, f"the program did not reach epoch {epoch}"
                time.sleep(0.02)
        finally:
            _kill(driver)
        stopped.unlink()

    def run_until(self, program: str, epochs: int, then_seconds: float) -> bool:
        """Kill the program a time after it has begun some epochs; return whether it had ended."""
        offsets = self.path / "location" / "offsets"
        target = len(list(offsets.glob("[0-9]*"))) + epochs
        driver = self._driver(program, "end")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while driver.poll() is None and len(list(offsets.glob("[0-9]*"))) < target:
            assert time.monotonic() < deadline, "the program hangs"
            time.sleep(0.01)
        try:
            assert driver.wait(then_seconds) == 0, "the program failed"
        except subprocess.TimeoutExpired:
            _kill(driver)
            return False
        return True

    def output(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for number in range(len(list(self.path.glob("epoch-*")))):
            lines = (self.path / f"epoch-{number}").read_text().splitlines()
            for row in sorted(map(json.loads, lines), key=lambda row: row["n"]):
                found[row["key"]].append(row["n"])
        return dict(found)

    def rows_of(self, epoch: int) -> list[str]:
        text = (self.path / f"epoch-{epoch}").read_text()
        return [json.loads(line)["key"] for line in text.splitlines()]

    def _driver(self, program: str, where: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command(program, where), start_new_session=True)

    def _command(self, program: str, where: str) -> list[str]:
        return [sys.executable, str(PROGRAM), str(self.path), program, where]


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """Kill the driver with its JVM and workers, which are in a session of their own."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_epoch_that_is_repeated_parks_and_releases_the_same(tmp_path: Path) -> None:
    """The program checks that a repeated epoch gives the rows that it gave before."""
    work = Work(tmp_path)
    work.add([("a", 1), ("b", 1), ("c", 1)], [("a", BAD), ("b", BAD), ("c", 2)], [("a", 3)])
    work.run_and_kill("flaky", 1)
    assert work.rows_of(1) == ["c"]
    work.run("flaky")
    work.release("a")
    work.add([("c", 3)], [("c", 4)])
    work.run_and_kill("mended", 3)
    assert work.rows_of(3) == ["a", "a", "c"]
    work.release()  # comes too late for the epoch that is repeated
    work.run("mended")
    assert work.rows_of(3) == ["a", "a", "c"]
    assert work.rows_of(4) == ["b", "c"]
    assert work.output() == {"a": [1, 2, 3], "b": [1, 2], "c": [1, 2, 3, 4]}


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_kills_at_random_change_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1 << 30)
    print(f"SEED={seed}")
    chance = random.Random(seed)
    work = Work(tmp_path)
    kills = 0
    for program in ("flaky", "mended"):
        for _ in range(12):
            keys = [f"k{chance.randrange(8)}" for _ in range(12)]
            work.add([(key, BAD if chance.random() < 0.03 else 1) for key in keys])
        if program == "mended":
            work.release()
        while not work.run_until(program, chance.randint(1, 5), chance.uniform(0, 0.6)):
            kills += 1
    print(f"{kills} kills")
    assert kills >= 4
    wanted: dict[str, list[int]] = defaultdict(list)
    for epoch in work.epochs:
        for key, _ in epoch:
            wanted[key].append(len(wanted[key]) + 1)
    assert work.output() == wanted
