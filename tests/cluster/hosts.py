"""Spark's standalone master and two workers on their own hosts: addresses of loopback.

On ``local-cluster`` all executors are of one host, and Spark runs no second attempt of a task on a
host that has the first.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

WORKERS = ("127.0.0.2", "127.0.0.3")
_MASTER = "127.0.0.1"


@contextmanager
def two_hosts(work: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run master and workers with their files below `work`; yield the master's URL.

    Executors inherit the workers' environment.
    """
    with socket.socket() as free:
        free.bind((_MASTER, 0))
        port = str(free.getsockname()[1])
    url = f"spark://{_MASTER}:{port}"
    with ExitStack() as stack:
        master = ["master.Master", "--host", _MASTER, "--port", port, "--webui-port", "0"]
        stack.enter_context(_running(master, work / "master.log", environment))
        for host in WORKERS:
            directory = work / host
            directory.mkdir(exist_ok=True)
            local = {"SPARK_WORKER_OPTS": f"-Dspark.local.dir={work / 'local'}"}
            worker = [
                "worker.Worker", "--host", host, "--cores", "1", "--memory", "1g",
                "--webui-port", "0", "--work-dir", str(directory), url,
            ]  # fmt: skip
            log = directory / "log"
            stack.enter_context(
                _running(worker, log, {**environment, **local, "SPARK_LOCAL_IP": host})
            )
        yield url


@contextmanager
def _running(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    spark_class = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(spark_class), f"org.apache.spark.deploy.{command[0]}", *command[1:]],
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
        process.wait()
