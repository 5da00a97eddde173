"""Starts and stops a real Spark Connect server, of the installed PySpark, on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.pyspark_versions import pyspark_home

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_DEADLINE_S = 120.0


@contextmanager
def connect_server(
    directory: Path,
    conf: Mapping[str, str] | None = None,
    python: Path | str = sys.executable,
    port: int | None = None,
) -> Iterator[str]:
    """Run a server with its files below `directory`; yields its address, ``sc://host:port``.

    It is of the PySpark that `python` has. At the end of the context it is killed.
    """
    port = port or free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.log.level": "WARN",
        **(conf or {}),
    }
    home = pyspark_home(python)
    options = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2,4]", *options]
    environment = {
        key: value for key, value in os.environ.items() if key not in ("SPARK_REMOTE", "PYTHONPATH")
    }
    environment |= {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--class", _SERVER, "spark-internal"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
        )
    try:
        _await_port(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"Spark Connect did not start: {log.read_text()[-3000:]}")
