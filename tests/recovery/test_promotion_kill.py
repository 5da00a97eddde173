"""Promotions under ``kill -9`` of the driver, an executor or a Python worker, at random times.

Oracle: each key's rows are numbered 1, 2, 3, ..., and each epoch was written by the right program:
version n from the n-th savepoint of a promotion on. ``CKPT_TEST_PROMOTIONS`` says how many.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.recovery.numbered_rows import write_input
from tests.recovery.processes import DRIVER, KINDS, kill, kill_all
from tests.recovery.promoting_program import complete_savepoints

PROGRAM = Path(__file__).with_name("promoting_program.py")
KILLED = (DRIVER, *KINDS)
PROMOTION_SECONDS = 6.0
"""A promotion takes about so long here; kills are in it, before it and after it."""

RUN_SECONDS = 600
INPUT_SECONDS = 1.5


class _Input:
    """Writes a file of rows again and again, until it is closed; at most ten ahead of the query."""

    def __init__(self, work: Path, chance: random.Random) -> None:
        self._directory, self._chance = work / "input", chance
        self._directory.mkdir()
        self._offsets = work / "location" / "offsets"
        self.frames = [write_input(self._directory, number, chance) for number in range(2)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(INPUT_SECONDS):
            begun = max((int(p.name) for p in self._offsets.glob("[0-9]*")), default=0)
            if len(self.frames) < begun + 10:
                self.frames.append(write_input(self._directory, len(self.frames), self._chance))

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def _run(
    work: Path, arguments: list[str], given: _Input, chance: random.Random, kills: dict[str, int]
) -> int:
    """Run the driver until it ends; kill something within each promotion."""
    driver = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(work), *arguments],
        stdout=subprocess.PIPE,
        stderr=(work / "errors").open("a"),
        text=True,
        start_new_session=True,
    )
    began = time.monotonic()
    deadline = threading.Timer(RUN_SECONDS, kill_all, (driver,))
    deadline.start()
    assert driver.stdout is not None
    try:
        for line in driver.stdout:
            print(line, end="", flush=True)
            if line.startswith("last"):
                given.close()
                (work / "all-written").touch()
            if line.startswith("promoting"):
                what = chance.choice(KILLED)
                timer = threading.Timer(
                    chance.uniform(0, PROMOTION_SECONDS), _noted, (driver, what, chance, kills)
                )
                timer.daemon = True
                timer.start()
        status = driver.wait()
        # Else its deadline would pass for a kill. It has said where it was, shortly before.
        stacks = "".join(_errors(work).rpartition("Timeout (")[1:])
        assert time.monotonic() - began < RUN_SECONDS, stacks[:20_000]
        return status
    finally:
        deadline.cancel()
        kill_all(driver)


def _errors(work: Path) -> str:
    return (work / "errors").read_text()


def _noted(
    driver: subprocess.Popen[str], what: str, chance: random.Random, kills: dict[str, int]
) -> None:
    if driver.poll() is None and kill(driver, what, chance):
        print(f"killed {what}", flush=True)
        kills[what] += 1


def _epochs(output: Path, sink: str) -> dict[int, pd.DataFrame]:
    """Return the rows of each epoch as the sink committed them."""
    if sink == "batch":
        return {
            int(path.name.removeprefix("epoch-")): pq.read_table(path).to_pandas()
            for path in output.glob("epoch-*")
        }
    logged: dict[str, int] = {}
    entries = (output / "_spark_metadata").glob("[0-9]*")
    for entry in sorted(entries, key=lambda path: int(path.name.removesuffix(".compact"))):
        for line in entry.read_text().splitlines()[1:]:
            name = Path(json.loads(line)["path"]).name
            logged.setdefault(name, int(entry.name.removesuffix(".compact")))
    rows = [pq.read_table(output / name).to_pandas().assign(epoch=n) for name, n in logged.items()]
    return {int(epoch): part for epoch, part in pd.concat(rows).groupby("epoch")}


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize(
    ("backend", "sink"), [("rocksdb", "file"), ("heap", "batch"), ("rocksdb", "table")]
)
def test_promotions_that_are_killed(tmp_path: Path, backend: str, sink: str) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    promotions = int(os.environ.get("CKPT_TEST_PROMOTIONS") or 4)
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    given = _Input(tmp_path, random.Random(seed + 1))
    kills = dict.fromkeys(KILLED, 0)
    began, runs = time.monotonic(), 1
    while (status := _run(tmp_path, [backend, sink, str(promotions)], given, chance, kills)) != 0:
        runs += 1
        errors = _errors(tmp_path)
        assert "AssertionError" not in errors, errors[-6000:]  # of the program, killed or not
        errors = errors[-6000:]
        assert status == -signal.SIGKILL or sum(kills.values()), errors
        assert runs < 6 * promotions + 6, errors
    rows = pd.concat(given.frames)
    print(f"{promotions} promotions, {runs} runs, kills: {kills}, {time.monotonic() - began:.0f} s")
    assert sum(kills.values()), "nothing was killed"

    epochs = _epochs(tmp_path / "output", sink)
    taken = complete_savepoints(tmp_path / "savepoints")
    assert len(taken) == promotions
    wrong = {
        epoch: set(part["version"])
        for epoch, part in epochs.items()
        if len(part) and set(part["version"]) != {sum(each < epoch for each in taken)}
    }
    assert not wrong, taken
    output = pd.concat(epochs.values())
    numbers = output.sort_values("n").groupby("key")["n"].agg(list).to_dict()
    counts = rows.groupby("key").size()
    assert numbers == {key: list(range(1, n + 1)) for key, n in counts.items()}
