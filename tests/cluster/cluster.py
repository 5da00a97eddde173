"""The program and its executors as processes: feed it, hold it at a phase, kill it, check it."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyspark

from tests.cluster.phases import MARKS
from tests.recovery.numbered_rows import write_input

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Task:
    """Where a task ran, by its own note; `phase` and `file` if it is held."""

    executor: int
    worker: int
    partition: int
    local: Path
    phase: str | None = None
    file: str | None = None


class Cluster:
    """A run of the program below `work`.

    The driver gives up an executor without a heartbeat for `heartbeat_timeout`. `conf` is Spark's.
    """

    def __init__(
        self,
        work: Path,
        backend: str,
        chance: random.Random,
        heartbeat_timeout: str = "2min",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.work = work
        self.marks = work / "marks"
        self.killed: list[Task] = []
        settings = [f"{key}={value}" for key, value in (conf or {}).items()]
        self._arguments = [str(work), backend, heartbeat_timeout, *settings]
        self._chance = chance
        self._fed: list[pd.DataFrame] = []
        self._newest_checkpoint = -1
        self._suspended: list[psutil.Process] = []

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        """Start the program; no process of it survives the block."""
        for name in ("input", "marks", "spark"):
            (self.work / name).mkdir(exist_ok=True)
        for mark in self.marks.iterdir():  # of an earlier run
            mark.unlink()
        os.mkfifo(self.marks / "gate")
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *self._arguments],
            start_new_session=True,
            env=environment(self.work),
        )
        try:
            yield self
        finally:
            for process in (*_family(self._process.pid), *self._suspended):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()

    def rows(self) -> pd.DataFrame:
        """All rows fed so far."""
        return pd.concat(self._fed)

    @property
    def epoch(self) -> int:
        """The epoch of the newest file."""
        return len(self._fed) - 1

    def feed(self) -> int:
        """Add a file, which is one epoch; return the epoch."""
        self._fed.append(write_input(self.work / "input", len(self._fed), self._chance))
        return self.epoch

    def await_epoch(self, epoch: int) -> None:
        """Wait until an epoch is committed."""
        self.until(lambda: self.is_committed(epoch), f"epoch {epoch} was not committed")

    def is_committed(self, epoch: int) -> bool:
        return (self.work / "location" / "commits" / str(epoch)).exists()

    def await_checkpoint(self) -> None:
        """Wait until a checkpoint is complete that was not complete at the last call."""
        before = self._newest_checkpoint
        self.until(
            lambda: max(self._checkpoints(), default=-1) > before, "no checkpoint was completed"
        )
        self._newest_checkpoint = max(self._checkpoints())

    def newest_checkpoint(self) -> Path:
        return self.work / "location" / "pyspark_ckpt" / f"chk-{max(self._checkpoints())}"

    def _checkpoints(self) -> list[int]:
        found = self.work.glob("location/pyspark_ckpt/chk-*/_metadata")
        return [int(path.parent.name.removeprefix("chk-")) for path in found]

    def await_executors(self) -> None:
        """Wait until the driver has both executors."""
        self.until(lambda: self._status()["executors"] == 2, "there are no two executors")

    def await_lost_executor(self) -> None:
        """Wait until the driver has one executor less."""
        self.until(lambda: self._status()["executors"] == 1, "no executor was lost")

    def await_ended_task(self) -> None:
        """Wait until one of the two tasks of the epoch that runs has ended."""
        self.until(lambda: self._status()["tasks_ended"] == 1, "no task has ended")

    def _status(self) -> dict[str, int]:
        try:
            return json.loads((self.marks / "status").read_text())
        except FileNotFoundError:
            return {"executors": 0, "tasks_ended": 0}

    def arm(self, phase: str) -> None:
        """Hold the first task that comes to this phase from now on."""
        for mark in ("held", "went-on"):
            (self.marks / mark).unlink(missing_ok=True)
        (self.marks / f"armed-{phase}").touch()

    def is_held(self) -> bool:
        return (self.marks / "held").exists()

    def await_held(self) -> Task:
        """Wait until a task is held."""
        self.until(self.is_held, "no task came to the phase")
        return self.task("held")

    def task(self, mark: str) -> Task:
        note: dict[str, Any] = json.loads((self.marks / mark).read_text())
        return Task(**{**note, "local": Path(note["local"])})

    def let_go(self) -> None:
        """Let the held task continue; nothing happens if it is dead."""
        gate = os.open(self.marks / "gate", os.O_RDWR)  # opened for writing it would wait
        os.close(gate)

    def kill(self, task: Task) -> None:
        """Kill the executor of a task, and wait for its end and that of its Python workers."""
        family = _family(task.executor)
        assert len(family) >= 2, f"the executor of {task} has no workers"
        family[0].kill()
        self.until(lambda: not any(map(_lives, family)), f"of {family} some live on")
        self.killed.append(task)

    def suspend(self, task: Task) -> None:
        """Suspend the executor of a task and its workers, as if the host stood still."""
        self._suspended = _family(task.executor)
        for process in self._suspended:
            process.suspend()

    def resume(self, task: Task) -> bool:
        """Let a suspended task write its segment, then let its executor continue to its end.

        False if Spark had killed the executor before: it waits ten seconds for one to end.
        """
        worker = next(each for each in self._suspended if each.pid == task.worker)
        went_on = self.marks / "went-on"
        with suppress(psutil.NoSuchProcess):
            worker.resume()
        self.let_go()
        self.until(lambda: went_on.exists() or not _lives(worker), f"{task} did not continue")
        was_there = went_on.exists() and _lives(self._suspended[0])
        for process in self._suspended:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self.until(lambda: not any(map(_lives, self._suspended)), f"{self._suspended} live on")
        return was_there

    def zombie_segment(self) -> str:
        """The name of the segment that the resumed task wrote."""
        temporary = (self.marks / "went-on").read_text()
        return temporary.removeprefix(".").partition(".chg")[0] + ".chg"

    def finish(self) -> None:
        """Let the program end by itself, in order, and wait until all its processes are gone."""
        family = _family(self._process.pid)[1:]
        (self.marks / "finish").touch()
        assert self._process.wait(timeout=DEADLINE_SECONDS) == 0
        _, left = psutil.wait_procs(family, timeout=DEADLINE_SECONDS)
        assert not left

    def until(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Wait for a condition while the program runs."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert self._process.poll() is None, f"the program has ended; {otherwise}"
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.02)


def environment(work: Path) -> dict[str, str]:
    """Return the environment of drivers, workers and executors of a run below `work`."""
    # Executors get their working directories below SPARK_HOME, which is the installed package.
    home = work / "spark"
    home.mkdir(exist_ok=True)
    for name in ("bin", "jars", "python"):
        with suppress(FileExistsError):  # of an earlier run
            (home / name).symlink_to(Path(pyspark.__path__[0]) / name)
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(home),
        MARKS: str(work / "marks"),
    }


def _family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # which only waits for its parent
    except psutil.NoSuchProcess:
        return False


def users_of(directory: Path) -> list[str]:
    """Return the files below a directory that a process has open or has as working directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            paths = [process.cwd(), *(file.path for file in process.open_files())]
            found += [
                f"{process}: {path}" for path in paths if Path(path).is_relative_to(directory)
            ]
    return found


def held_locks(directory: Path) -> list[Path]:
    """Return the held lock files below a directory, of this library and of RocksDB."""
    return [path for path in directory.rglob("*") if path.name in ("lock", "LOCK") and _held(path)]


def _held(path: Path) -> bool:
    try:
        with path.open("rb+") as file:
            for lock in (fcntl.flock, fcntl.lockf):  # RocksDB has the second kind
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
