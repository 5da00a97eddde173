"""Starts and stops a real ZooKeeper server, of Debian's package, on loopback.

The package is not installed: its files and those of the few it needs are unpacked next to this
environment's Python, once.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kazoo.client import KazooClient

PACKAGES = ("libzookeeper-java", "libslf4j-java", "libdropwizard-metrics-java", "libsnappy-java")
JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java")
PLACES = (Path("/usr/share/java"), Path(sys.prefix) / "share" / "zookeeper" / "usr/share/java")


@contextmanager
def zookeeper_server(directory: Path, port: int | None = None) -> Iterator[str]:
    """Run a server with its data below `directory`; yields its address, ``host:port``.

    The port is a free one unless it is given. A server on the data of a killed one continues where
    the killed one was.
    """
    jars = _jars(directory)
    port = port or free_port()
    configuration = directory / "zoo.cfg"
    configuration.write_text(
        f"dataDir={directory}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\ntickTime=500\n"
    )
    log = directory / "log"
    command = [
        _java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, jars)),
        "org.apache.zookeeper.server.ZooKeeperServerMain", str(configuration),
    ]  # fmt: skip
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"127.0.0.1:{port}"
        # A server that is not ready yet takes connections and answers none.
        client = KazooClient(
            address, timeout=1, connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1}
        )
        try:
            client.start(timeout=60)
        except client.handler.timeout_exception as exc:
            raise RuntimeError(f"ZooKeeper did not start: {log.read_text()[-2000:]}") from exc
        finally:
            client.stop()
            client.close()
        yield address
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _jars(directory: Path) -> list[Path]:
    for place in PLACES:
        jars = [place / f"{name}.jar" for name in JARS]
        if all(jar.exists() for jar in jars):
            return jars
    _unpack(directory, PLACES[-1].parents[2])
    return [PLACES[-1] / f"{name}.jar" for name in JARS]


def _unpack(directory: Path, target: Path) -> None:
    """Download the packages and unpack them; another process may do so at the same time."""
    downloads = directory / "packages"
    downloads.mkdir()
    target.parent.mkdir(parents=True, exist_ok=True)
    unpacked = target.with_name(f".zookeeper-{os.getpid()}")
    if not _succeeds(["apt-get", "download", *PACKAGES], downloads):
        # A fresh machine has no list of packages; only root may fetch it.
        _succeeds(["apt-get", "update"], downloads)
        if not _succeeds(["apt-get", "download", *PACKAGES], downloads):
            raise RuntimeError(
                f"the tests of ZooKeeper need Debian's packages {', '.join(PACKAGES)}, and "
                "'apt-get download' has failed: install the package zookeeper"
            )
    for package in downloads.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, unpacked], check=True)
    with suppress(OSError):  # the other process was faster
        unpacked.rename(target)
    shutil.rmtree(unpacked, ignore_errors=True)


def _succeeds(command: list[str], directory: Path) -> bool:
    return subprocess.run(command, cwd=directory, capture_output=True, check=False).returncode == 0
