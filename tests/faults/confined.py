"""Runs a function of a test in a separate process, with a small disk or few file descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE_BYTES = 4096

_CALL = """
import importlib, sys
from pathlib import Path
module, function, *arguments = sys.argv[1:]
getattr(importlib.import_module(module), function)(*map(Path, arguments[:1]), *arguments[1:])
"""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'


def in_a_process(
    function: Callable[..., None], *arguments: object, before: tuple[str, ...] = ()
) -> None:
    """Call a function of a test module with a path and texts; raise what it raises."""
    module = ".".join(Path(function.__code__.co_filename).relative_to(ROOT).with_suffix("").parts)
    command = [
        *before,
        sys.executable,
        "-X",
        "faulthandler",
        "-c",
        _CALL,
        module,
        function.__name__,
    ]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


def on_a_small_disk(
    function: Callable[..., None], directory: Path, size_bytes: int, *arguments: object
) -> None:
    """Do the same with its own disk at `directory`, the first argument."""
    if not may_mount():
        pytest.skip("there is no right to mount a disk, not even in a namespace")
    directory.mkdir()
    mount = (*NAMESPACE, MOUNT, "sh", str(size_bytes), str(directory))
    in_a_process(function, directory, *arguments, before=mount)


class Ballast:
    """A file that takes the room on a disk.

    Parameters
    ----------
    directory
        On the disk; the file lies there.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def leave(self, pages: int) -> None:
        """Take all room except this many pages."""
        self.drop()
        status = os.statvfs(self._path.parent)
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (status.f_bavail - pages) * PAGE_BYTES)

    def drop(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)


@cache
def may_mount() -> bool:
    try:
        command = [*NAMESPACE, "mount -t tmpfs tmpfs /tmp"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
