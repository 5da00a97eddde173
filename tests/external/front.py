"""What stands before a server, in a process that is killed and started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = Path(__file__).with_name("going_away.py")


class Front:
    """Passes connections on to a server of this machine; it has the same port after each start.

    Parameters
    ----------
    url
        The server's URL.
    """

    def __init__(self, url: str) -> None:
        self._behind = url.rpartition(":")[2]
        self._port = "0"
        self.start()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self, dies_after: int | None = None) -> None:
        """Start it; it kills itself once so many bytes of requests have passed."""
        command = [sys.executable, str(_PROGRAM), self._port, self._behind]
        command += [] if dies_after is None else [str(dies_after)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = self._process.stdout.readline().strip()
        assert self._port

    def wait(self) -> int:
        """Wait until it has ended; return its exit code."""
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
