"""Quarantine and release are exact whenever a driver, an executor or a worker is killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.quarantine.releases import Release, ReleaseFiles
from pyspark_ckpt.storage.open import LocalStorage
from tests.recovery.processes import DRIVER, KINDS, kill, kill_all
from tests.recovery.quarantine_program import BAD
from tests.recovery.stopping_epoch import DEADLINE_SECONDS, kill_when_stopped

CLUSTER = "local-cluster[1,2,1024]"
PROGRAM = Path(__file__).with_name("quarantine_program.py")
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
        kill_when_stopped(self._driver(program, str(epoch)), self.path, epoch)

    def run_with_kills(
        self, program: str, chance: random.Random, kinds: Iterator[str], kills: Counter[str]
    ) -> None:
        """Kill one process after the other while the program runs to its end."""
        driver = self._driver(program, "end", CLUSTER)
        try:
            while not self._ends(driver, chance.randint(1, 4), chance.uniform(0, 0.6)):
                what = next(kinds)
                kills[what] += kill(driver, what, chance)
                if what == DRIVER:
                    driver.wait()
                    driver = self._driver(program, "end", CLUSTER)
        finally:
            kill_all(driver)

    def _ends(self, driver: subprocess.Popen[str], epochs: int, then_seconds: float) -> bool:
        """Wait for the begin of some epochs and a time after it; return whether it has ended."""
        offsets = self.path / "location" / "offsets"
        target = len(list(offsets.glob("[0-9]*"))) + epochs
        deadline = time.monotonic() + DEADLINE_SECONDS
        while driver.poll() is None and len(list(offsets.glob("[0-9]*"))) < target:
            assert time.monotonic() < deadline, "the program hangs"
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            assert driver.wait(then_seconds) == 0, "the program failed"
            return True
        return False

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

    def state(self) -> dict[str, int]:
        """Return the count of each key, by the newest checkpoint."""
        with ckpt.location(str(self.path / "location")).state() as snapshot:
            counts = snapshot.state("count", "count").to_pandas()
            if "__quarantine" in set(snapshot.states()["state"]):  # it may go with the last key
                assert snapshot.state("count", "__quarantine").to_pandas().empty
        return dict(zip(counts["key"], counts["n"], strict=True))

    def _driver(self, program: str, where: str, *master: str) -> subprocess.Popen[str]:
        command = [*self._command(program, where), *master]
        return subprocess.Popen(command, start_new_session=True, text=True)

    def _command(self, program: str, where: str) -> list[str]:
        return [sys.executable, str(PROGRAM), str(self.path), program, where]


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_epoch_that_is_repeated_quarantines_and_releases_the_same(tmp_path: Path) -> None:
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
    kinds = cycle(chance.sample(KINDS, len(KINDS)))
    kills: Counter[str] = Counter()
    for program in ("flaky", "mended"):
        for _ in range(12):
            keys = [f"k{chance.randrange(8)}" for _ in range(12)]
            work.add([(key, BAD if chance.random() < 0.03 else 1) for key in keys])
        if program == "mended":
            work.release()
        work.run_with_kills(program, chance, kinds, kills)
    print(f"kills: {dict(kills)}")
    assert set(kills) == {*KINDS}
    wanted: dict[str, list[int]] = defaultdict(list)
    for epoch in work.epochs:
        for key, _ in epoch:
            wanted[key].append(len(wanted[key]) + 1)
    assert work.output() == wanted
    assert work.state() == {key: len(numbers) for key, numbers in wanted.items()}
