"""The most memory that a process takes, looked at from outside through ``/proc``."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BEGIN = "begin"
"""What the process prints, on a separate line, once it has imported what it needs."""

_INTERVAL_SECONDS = 0.01
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much a process has grown at most since it began, native memory included.

    `anonymous_bytes` is what it has allocated (``RssAnon``), Python's and every library's.
    `mapped_bytes` are pages of mapped files in addition (``RssFile`` and ``RssShmem``), which the
    system takes back when it needs them: the heap backend's state, and code.
    """

    anonymous_bytes: int
    mapped_bytes: int


def measured(command: Sequence[str]) -> Growth:
    """Run a program and return by how much it grew after its line :data:`BEGIN`.

    Raises
    ------
    RuntimeError
        If it fails; its error goes to this process's.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        first = most = taken_bytes(process.pid)
        while process.poll() is None:
            taken = taken_bytes(process.pid)
            most = max(most[0], taken[0]), max(most[1], taken[1])
            time.sleep(_INTERVAL_SECONDS)
    if line.strip() != BEGIN or process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return Growth(most[0] - first[0], most[1] - first[1])


def taken_bytes(pid: int) -> tuple[int, int]:
    """Return what a process has allocated, and its pages of mapped files; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    sizes = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Rss"))
    kib = {name: int(size.split()[0]) for name, size in sizes.items()}
    anonymous = kib.get("RssAnon", 0)
    return anonymous * _KIB, (kib.get("RssFile", 0) + kib.get("RssShmem", 0)) * _KIB
