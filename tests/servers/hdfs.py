"""Starts and stops a real HDFS on loopback: one NameNode and one DataNode, each a JVM.

PySpark 2.4.8 was the last whose source archive on PyPI has the jars of both servers. They are
Hadoop 2.7.3, which today's clients still speak with.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.installed import free_port, installed, run

_NAME = "hdfs-2.7.3"
_JARS = re.compile(
    r"/jars/(hadoop-(annotations|auth|common|hdfs)-|commons-|guava-|htrace-|jackson-.*-asl-|jetty-"
    r"|jersey-|javax\.(servlet-api|ws\.rs-api)-|log4j-|slf4j-|protobuf-java-|netty-"
    r"|xmlenc-|leveldbjni-)[^/]*$"
)
_OPENED = ("lang", "nio", "util", "net")
_PATIENCE_S = 120
_PAUSE_S = 0.05
_SETTINGS = {
    "dfs.replication": "1",
    "dfs.permissions.enabled": "false",
    "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.hostname": "127.0.0.1",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.webhdfs.enabled": "false",
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.fs-limits.min-block-size": "4096",
    # A DataNode that was killed is noticed after some seconds.
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "1000",
}
_LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


class Hdfs:
    """A NameNode and a DataNode with their files below one directory.

    `url` is ``hdfs://127.0.0.1:<port>``. The port stays the same when a server is started again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._jars = installed(_NAME, _fill)
        port = free_port()
        self.url = f"hdfs://127.0.0.1:{port}"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._configure()
        with (directory / "format.log").open("wb") as log:
            format_command = self._command("namenode.NameNode", "-format")
            subprocess.run(format_command, check=True, stdout=log, stderr=log, env=_environment())

    def start(self) -> None:
        """Start the servers that do not run, and wait until files can be written."""
        for name, main in (("namenode", "namenode.NameNode"), ("datanode", "datanode.DataNode")):
            if name not in self._servers:
                with (self._directory / f"{name}.log").open("ab") as log:
                    self._servers[name] = subprocess.Popen(
                        self._command(main), stdout=log, stderr=log, env=_environment()
                    )
        self._wait()

    def kill(self, name: str) -> None:
        """End ``"namenode"`` or ``"datanode"`` by SIGKILL."""
        server = self._servers.pop(name)
        server.kill()
        server.wait()

    def stop(self) -> None:
        """End both servers."""
        for name in tuple(self._servers):
            self.kill(name)

    def _wait(self) -> None:
        """Write a file as soon as that is possible."""
        from hdfs_native import Client, WriteOptions

        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            dead = [name for name, server in self._servers.items() if server.poll() is not None]
            try:
                with Client(self.url).create("/.ready", WriteOptions(overwrite=True)) as file:
                    file.write(b"ready")
            except (OSError, RuntimeError) as exc:
                if dead or time.monotonic() > give_up_at:
                    raise RuntimeError(f"HDFS did not start ({exc}): {self._logs()}") from exc
                time.sleep(_PAUSE_S)
            else:
                return

    def _logs(self) -> str:
        return "\n".join(
            log.read_text(errors="replace")[-2000:] for log in self._directory.glob("*.log")
        )

    def _command(self, main: str, *arguments: str) -> list[str]:
        opened = [f"java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
        opened += [
            "java.base/sun.nio.ch=ALL-UNNAMED",
            "java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        ]
        home = os.environ.get("JAVA_HOME")
        return [
            f"{home}/bin/java" if home else "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *(text for module in opened for text in ("--add-opens", module)),
            "-cp",
            f"{self._directory}/conf:{self._jars}/*",
            f"org.apache.hadoop.hdfs.server.{main}",
            *arguments,
        ]

    def _configure(self) -> None:
        conf = self._directory / "conf"
        conf.mkdir(parents=True)
        for name in ("hdfs", "datanode"):  # the servers look for their web pages
            pages = conf / "webapps" / name / "WEB-INF"
            pages.mkdir(parents=True)
            (pages / "web.xml").write_text('<?xml version="1.0"?><web-app></web-app>')
        (conf / "log4j.properties").write_text(_LOG4J)
        places = {
            "dfs.namenode.name.dir": f"file://{self._directory}/name",
            "dfs.datanode.data.dir": f"file://{self._directory}/data",
        }
        core = {"fs.defaultFS": self.url, "hadoop.tmp.dir": f"{self._directory}/tmp"}
        (conf / "core-site.xml").write_text(_xml(core))
        (conf / "hdfs-site.xml").write_text(_xml(_SETTINGS | places))


@contextmanager
def hdfs_server(directory: Path) -> Iterator[Hdfs]:
    """Run HDFS with its files below `directory`, which does not exist yet."""
    hdfs = Hdfs(directory)
    try:
        hdfs.start()
        yield hdfs
    finally:
        hdfs.stop()


def _fill(directory: Path) -> None:
    constraints = directory / "constraints"
    constraints.write_text("pypandoc<1.8\n")  # its set-up fails with later ones
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
    run([*download, "pyspark", "pyspark==2.4.8"], directory, PIP_CONSTRAINT=str(constraints))
    (archive,) = directory.glob("pyspark-*.tar.gz")
    with tarfile.open(archive) as files:
        for member in files:
            content = files.extractfile(member) if _JARS.search(member.name) else None
            if content is not None:
                with content, (directory / Path(member.name).name).open("wb") as jar:
                    shutil.copyfileobj(content, jar)
    archive.unlink()


def _environment() -> dict[str, str]:
    """Return the environment without the tests' options for Spark's JVMs."""
    return {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}


def _xml(settings: dict[str, str]) -> str:
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{properties}</configuration>\n"
