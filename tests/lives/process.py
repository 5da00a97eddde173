"""A driver of a walk in a separate process, which can be killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.lives.driver import ANSWERS, DEADLINE_S
from tests.recovery.processes import kill_all

ROOT = Path(__file__).parents[2]
PATIENCE_S = DEADLINE_S + 80
"""A command that takes longer hangs; a rescale or a shadow waits for several epochs."""


class DriverError(Exception):
    """A command of the driver has raised an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['kind']}: {error['text']}")
        self.kind: str = error["kind"]
        self.text: str = error["text"]
        self.is_ours: bool = error["is_ours"]
        """Whether it is an error of the library, which says what to do."""


class HangError(Exception):
    """A command has not ended in time; the driver's log has the stacks of its threads."""


class DriverProcess:
    """A driver with one session.

    Parameters
    ----------
    work
        For its log and local files.
    zone
        The session's time zone.
    """

    def __init__(self, work: Path, zone: str) -> None:
        work.mkdir(parents=True)
        self.log = work / "driver.log"
        reading, writing = os.pipe()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.lives.driver", str(work)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), ANSWERS: str(writing)},
                pass_fds=[writing],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        os.close(writing)
        self._answers = reading
        self._unread = b""
        self.call("session", zone=zone)

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command of the driver; return its value."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._line(command))
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["value"]

    def _line(self, command: str) -> bytes:
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], deadline - time.monotonic())
            if not ready:
                self._process.send_signal(signal.SIGABRT)  # which writes all stacks first
                self._process.wait()
                raise HangError(f"{command} took over {PATIENCE_S} s; see {self.log}")
            read = os.read(self._answers, 1 << 16)
            if not read:
                raise HangError(f"the driver ended during {command}; see {self.log}")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def kill(self) -> None:
        """Kill the driver with its JVM and its workers."""
        kill_all(self._process)
        self._process.wait()
        os.close(self._answers)
