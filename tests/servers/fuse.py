"""Mounts a directory through FUSE by rclone of Debian, which has no hard links."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.installed import installed, run

_PACKAGES = ("rclone", "fuse3", "libfuse3-3")
_PATIENCE_S = 60


@contextmanager
def mounted(directory: Path) -> Iterator[Path]:
    """Mount a new directory below `directory`; yields where it is mounted."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("NOT TESTED: a real mount without hard links, because /dev/fuse is not usable")
    files = installed("rclone-debian", _fill)
    source, place = directory / "source", directory / "place"
    source.mkdir()
    place.mkdir()
    libraries = [str(path) for path in (files / "usr/lib").glob("*-linux-gnu")]
    libraries += [str(path) for path in (files / "lib").glob("*-linux-gnu")]
    environment = os.environ | {
        "PATH": f"{files / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(libraries),
    }
    log = directory / "rclone.log"
    command = [
        str(files / "usr/bin/rclone"), "mount", "--config", "/dev/null",
        "--vfs-cache-mode", "writes", "--cache-dir", str(directory / "cache"),
        f":local:{source}", str(place),
    ]  # fmt: skip
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        give_up_at = time.monotonic() + _PATIENCE_S
        while not place.is_mount():
            if server.poll() is not None or time.monotonic() > give_up_at:
                pytest.skip(f"NOT TESTED: a real mount without hard links: {log.read_text()}")
            time.sleep(0.05)
        yield place
    finally:
        server.terminate()  # it unmounts
        server.wait()


def _fill(directory: Path) -> None:
    run(["apt-get", "download", *_PACKAGES], directory)
    for package in directory.glob("*.deb"):
        run(["dpkg", "-x", package.name, "."], directory)
