"""One life of the tortured driver: its processes by kind, its checkpoints, its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark_ckpt.storage.open import open_storage
from tests.cluster.cluster import environment
from tests.torture.slowness import MARKS

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300
KINDS = ("driver", "executor", "worker")
FATAL = re.compile(
    r"CorruptFileError|WrongOutputError|(?<!java\.lang\.)AssertionError|NotImplementedError"
)
"""Errors that no fault explains: what was stored is there and whole.

Spark's driver logs an ``AssertionError`` of Java when a heartbeat is late, and continues.
"""


class EndedError(Exception):
    """The driver has ended by itself; the text is the end of its log."""


class Life:
    """A driver, from its start to its end.

    Parameters
    ----------
    work
        For marks, logs and local files.
    spec
        What the program gets: directories and settings of the query.
    variables
        More variables of its environment.
    """

    def __init__(self, work: Path, spec: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self.work = work
        self.marks = work / "marks"
        self.marks.mkdir(parents=True, exist_ok=True)
        for mark in self.marks.iterdir():
            mark.unlink()
        (work / "spec.json").write_text(json.dumps(dict(spec)))
        self.log = work / "driver.log"
        self._spec = spec
        self.was_killed = False
        self._known = self.newest_checkpoint()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.program", str(work / "spec.json")],
                cwd=ROOT,
                start_new_session=True,
                stdout=log,
                stderr=log,
                env={**environment(work), MARKS: str(self.marks), **variables},
            )

    def pids(self, kind: str) -> list[int]:
        """Return the living processes of a kind."""
        found = []
        for pid, command, parent in self._family():
            if kind == "driver":
                is_it = "SparkSubmit" in command
            elif kind == "executor":
                is_it = "CoarseGrainedExecutorBackend" in command
            else:
                is_it = "daemon" in command and "daemon" in _command(parent)
            if is_it:
                found.append(pid)
        return sorted(found)

    def _family(self) -> list[tuple[int, str, int]]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError, ValueError):
                pid = int(place.name)
                fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append((pid, _command(pid), int(fields[1])))
        return found

    def newest_checkpoint(self) -> int:
        """Return the id of the newest complete checkpoint, -1 if there is none."""
        with suppress(OSError, ValueError):  # the query has not begun
            storage = open_storage(checkpoints_of(self._spec))
            ids = [int(name[4:]) for name in storage.list() if re.fullmatch(r"chk-[0-9]+", name)]
            for number in sorted(ids, reverse=True):
                if storage.exists(f"chk-{number}/_metadata"):
                    return number
        return -1

    def await_checkpoint(self, meanwhile: Callable[[], None]) -> int:
        """Wait until a checkpoint is complete that was not at the last call; return its id."""
        self.until(lambda: self.newest_checkpoint() > self._known, meanwhile, "no checkpoint")
        self._known = self.newest_checkpoint()
        return self._known

    def await_savepoint(self, directory: str, kind: str, meanwhile: Callable[[], None]) -> str:
        """Have the query take a savepoint; return its path."""
        hidden = self.marks / "savepoint.new"
        hidden.write_text(json.dumps([directory, kind]))
        hidden.rename(self.marks / "savepoint")
        at = self.marks / "savepoint-at"
        self.until(at.exists, meanwhile, "no savepoint")
        return at.read_text()

    def finish(self) -> None:
        """Let the query process everything, and its processes end."""
        (self.marks / "finish").touch()
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the driver did not end: {self.last_words()}")
            time.sleep(0.05)
        if self.process.returncode != 0:
            raise EndedError(self.last_words())
        self.kill()

    def until(
        self, condition: Callable[[], bool], meanwhile: Callable[[], None], otherwise: str
    ) -> None:
        """Wait for a condition while the driver lives.

        Raises
        ------
        EndedError
            If the driver ends.
        TimeoutError
            If it takes too long.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None:
                raise EndedError(self.last_words())
            if time.monotonic() > deadline:
                raise TimeoutError(f"{otherwise}: {self.last_words()}")
            meanwhile()
            time.sleep(0.03)

    def last_words(self) -> str:
        """Return the end of the log.

        Raises
        ------
        AssertionError
            If the log has an error that no fault explains.
        """
        text = self.log.read_text(errors="replace")
        if fatal := FATAL.search(text):
            raise AssertionError(
                f"{fatal[0]} in the log: {text[max(0, fatal.start() - 3000) :][:6000]}"
            )
        return text[-1500:]

    def kill(self) -> None:
        """End all processes of this life, as if the driver's host went away."""
        self.was_killed = True
        for _ in range(100):
            family = self._family()
            for pid, _, _ in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            if not family:
                break
            time.sleep(0.02)
        self.process.wait()


def checkpoints_of(spec: Mapping[str, Any]) -> str:
    """Return where the checkpoints of a query are: in its location, or in a directory of its id."""
    location = Path(spec["location"])
    if spec["checkpoints"] is None:
        return str(location / "pyspark_ckpt")
    query_id = json.loads((location / "metadata").read_text())["id"]
    return f"{spec['checkpoints']}/{query_id}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
