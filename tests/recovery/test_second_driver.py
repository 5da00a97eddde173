"""A query that is started in a second driver by accident: one of the two survives, and is healthy.

Spark lets one driver commit each epoch and ends the other. The driver that is left has the query's
checkpoints to itself.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("second_driver_program.py")
DEADLINE_SECONDS = 120


class Driver:
    """A driver in a separate process."""

    def __init__(self, work: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(work), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(">"):
                return dict(json.loads(line[1:]))
        raise AssertionError("the driver has ended")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def two_drivers(work: Path) -> Iterator[tuple[Driver, Driver]]:
    drivers = Driver(work, "first"), Driver(work, "second")
    try:
        for driver in drivers:
            driver.answer()
        yield drivers
    finally:
        for driver in drivers:
            driver.end()


@pytest.mark.soak
@pytest.mark.own_jvm
@pytest.mark.timeout(600)
def test_one_of_two_drivers_survives(tmp_path: Path) -> None:
    """Scenario 23: a few times; the soak test does it fifty times."""
    _one_survives(tmp_path, rounds=4)


@pytest.mark.own_jvm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_that_commits_no_epoch_neither_rescales_nor_drains(tmp_path: Path) -> None:
    """The idle driver started last, and so it has the newest lease; the other one has the epochs.

    A rescale by the idle one would drop an epoch that the other one has begun, and a drain would
    fire the other one's timers.
    """
    location, inputs = tmp_path / "location", tmp_path / "inputs"
    inputs.mkdir()
    with two_drivers(tmp_path) as (works, idle):

        def has_counted(number: int) -> bool:
            return works.ask("count", "7") == {"n": number}

        (inputs / "1.txt").write_text("7\n")
        assert works.ask("follow", str(location), str(inputs), "0") == {"started": True}
        _until(lambda: has_counted(1), works)
        assert idle.ask("follow", str(location), str(inputs), "3600") == {"started": True}
        _until(lambda: idle.ask("tell")["epoch"] >= 0, idle)
        (inputs / "2.txt").write_text("7\n")
        _until(lambda: has_counted(2), works)
        for act in (("rescale", "3"), ("drain", str(tmp_path / "savepoints"))):
            refused = idle.ask(*act)
            assert refused.get("error") == "FencedError", (act, refused)
            assert "another driver has committed its newest epoch" in refused["message"]
        (inputs / "3.txt").write_text("7\n")
        _until(lambda: has_counted(3), works)
        assert works.ask("checkpoint") == {"epoch": 2}
        assert works.ask("tell")["active"]


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_one_of_two_drivers_survives_fifty_times(tmp_path: Path) -> None:
    """Fifty times with checkpoints all the time, fifty times with one each half minute."""
    _one_survives(tmp_path, rounds=100)


def _one_survives(work: Path, rounds: int) -> None:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    with two_drivers(work) as (first, second):
        for number in range(rounds):
            interval = ("200ms", "30s")[number % 2]
            healthy, other = (first, second) if chance.random() < 0.5 else (second, first)
            print(
                f"round {number}, {interval}:", _round(work / str(number), interval, healthy, other)
            )


def _round(location: Path, interval: str, healthy: Driver, other: Driver) -> str:
    """Start a query in two drivers, wait until one is left, and check that it is healthy."""
    assert healthy.ask("start", str(location), interval) == {"started": True}
    _until(lambda: healthy.ask("tell")["epoch"] >= 0, healthy)
    assert "epoch" in healthy.ask("checkpoint")
    other.ask("start", str(location), interval)
    reports: list[dict[str, Any]] = []

    def one_is_left() -> bool:
        reports[:] = [healthy.ask("tell"), other.ask("tell")]
        return sum(each["active"] for each in reports) < 2

    _until(one_is_left, healthy)
    assert sum(each["active"] for each in reports) == 1, reports
    survivor = healthy if reports[0]["active"] else other
    assert "because another driver runs it" in reports[survivor is healthy]["failure"]
    epochs = []
    for _ in range(3):
        begun = survivor.ask("tell")["epoch"]
        _until(lambda: survivor.ask("tell")["epoch"] > begun, survivor)  # noqa: B023
        taken = survivor.ask("checkpoint")
        assert "epoch" in taken, (reports, taken, survivor.ask("tell"))
        epochs.append(taken["epoch"])
    assert sorted(set(epochs)) == epochs
    assert survivor.ask("tell")["active"]
    assert not (other if survivor is healthy else healthy).ask("tell")["active"]
    assert survivor.ask("stop") == {"stopped": True}
    return f"{'first' if survivor is healthy else 'second'} survived, {reports}"[:300]


def _until(condition: Callable[[], bool], driver: Driver) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, driver.ask("tell")
        time.sleep(0.02)
