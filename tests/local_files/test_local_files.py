"""The jar for Spark's own small files does what Hadoop's classes do, without their processes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.local_files.conf import JAR

HADOOP = "org.apache.hadoop.fs.local.LocalFs"
ROOT = Path(__file__).parents[2]


class Files:
    """Hadoop's FileContext over a class for local files."""

    def __init__(self, spark: SparkSession, implementation: str) -> None:
        self.jvm: Any = spark._jvm
        conf = self.jvm.org.apache.hadoop.conf.Configuration()
        gateway: Any = spark.sparkContext._gateway
        urls = gateway.new_array(self.jvm.java.net.URL, 1)
        urls[0] = self.jvm.java.io.File(str(JAR)).toURI().toURL()
        conf.setClassLoader(self.jvm.java.net.URLClassLoader(urls, conf.getClassLoader()))
        conf.set("fs.AbstractFileSystem.file.impl", implementation)
        self.context = self.jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self.jvm.java.net.URI("file:///"), conf
        )
        self.options = gateway.new_array(self.jvm.org.apache.hadoop.fs.Options.Rename, 0)
        self.create_options = gateway.new_array(self.jvm.org.apache.hadoop.fs.Options.CreateOpts, 0)

    def path(self, path: Path) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(path.as_uri())

    def write(self, path: Path, data: bytes) -> None:
        flag = self.jvm.org.apache.hadoop.fs.CreateFlag
        flags = self.jvm.java.util.EnumSet.of(flag.CREATE, flag.OVERWRITE)
        stream = self.context.create(self.path(path), flags, self.create_options)
        stream.write(data)
        stream.close()

    def read(self, path: Path) -> bytes:
        stream = self.context.open(self.path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def rename(self, source: Path, target: Path) -> None:
        self.context.rename(self.path(source), self.path(target), self.options)

    def allow(self, path: Path, mode: int) -> None:
        permission = self.jvm.org.apache.hadoop.fs.permission.FsPermission(mode)
        self.context.setPermission(self.path(path), permission)


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Py4JJavaError as error:
        return error.java_exception.getClass().getName()


def seen(directory: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(directory)): (
            oct(stat.S_IMODE(path.lstat().st_mode)),
            path.readlink() if path.is_symlink() else path.is_dir() or path.read_bytes(),
        )
        for path in sorted(directory.rglob("*"))
    }


def act_on(files: Files, directory: Path) -> list[Any]:
    """Do what Spark does with its files, and what goes wrong."""
    a, b, link, rotten = (directory / name for name in ("a", "b", "link", "rotten"))
    found = [outcome(lambda: files.write(a, b"one"))]
    found.append(outcome(lambda: files.rename(a, b)))
    files.write(a, b"two")
    found.append(outcome(lambda: files.rename(a, b)))  # it exists
    found.append(outcome(lambda: files.rename(directory / "none", a)))
    for mode in (0o600, 0o755, 0o444, 0o1777, 0o000):
        files.allow(a, mode)
        found.append(oct(stat.S_IMODE(a.stat().st_mode)))
    files.allow(a, 0o644)
    with pytest.raises(Py4JJavaError, match=r"(?i)no such file|FileNotFound"):
        files.allow(directory / "none", 0o644)
    link.symlink_to(b)
    found.append(files.context.getFileLinkStatus(files.path(link)).isSymlink())
    found.append(files.context.getFileLinkStatus(files.path(b)).isSymlink())
    found.append(files.read(link))
    files.write(rotten, b"sound")
    rotten.write_bytes(b"rotte")
    found.append(outcome(lambda: files.read(rotten)))
    files.context.mkdir(files.path(directory / "x" / "y"), None, True)
    return found


def test_as_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    implementation = ckpt.local_files_conf()["spark.hadoop.fs.AbstractFileSystem.file.impl"]
    places = []
    for name in (HADOOP, implementation):
        directory = tmp_path / name
        directory.mkdir()
        places.append((directory, act_on(Files(spark, name), directory)))
    (hadoops, expected), (ours, found) = places
    assert [str(one).replace(str(ours), str(hadoops)) for one in found] == list(map(str, expected))
    there = {name: str(one).replace(str(ours), str(hadoops)) for name, one in seen(ours).items()}
    assert there == {name: str(one) for name, one in seen(hadoops).items()}
    assert ".a.crc" in there


PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import pyspark_ckpt as ckpt
from tests.query.harness import Feed, Job

base = Path(sys.argv[1])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", 2)
spark = builder.config(map=ckpt.local_files_conf() if sys.argv[2:] else {}).getOrCreate()
feed = Feed(base / "feed").add([("a", 1), ("b", 2)], [("a", 3)])
job = Job(spark, base, feed)
job.run()
contexts = spark._jvm.org.apache.hadoop.fs.FileContext
context = contexts.getFileContext(spark._jsc.hadoopConfiguration())
print("CLASS", context.getDefaultFileSystem().getClass().getName())
print("ROWS", len(job.result()))
"""


@pytest.mark.soak
@pytest.mark.own_jvm
@pytest.mark.parametrize("with_jar", [True, False])
def test_a_query_with_it_starts_no_process_for_its_files(tmp_path: Path, with_jar: bool) -> None:
    """Programs on the path write down that they were called; without the jar they are."""
    broken = tmp_path / "bin"
    broken.mkdir()
    calls = tmp_path / "calls"
    for name in ("chmod", "readlink"):
        real = shutil.which(name)
        (broken / name).write_text(f'#!/bin/sh\necho "$0 $@" >> {calls}\nexec {real} "$@"\n')
        (broken / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{broken}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *(["jar"] if with_jar else [])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"CLASS {'pyspark_ckpt.NioLocalFs' if with_jar else HADOOP}" in done.stdout
    assert "ROWS 3" in done.stdout
    noted = calls.read_text().splitlines() if calls.exists() else []
    of_logs = [line for line in noted if "/loc/offsets/" in line or "/loc/commits/" in line]
    assert bool(of_logs) != with_jar
    assert list((tmp_path / "loc" / "offsets").glob(".*.crc"))


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("javac") is None, reason="the jar is built with a JDK")
def test_the_jar_is_built_from_its_sources(tmp_path: Path) -> None:
    built = tmp_path / "built.jar"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "tools.build_local_files_jar", str(built)], cwd=ROOT, check=True
        )
        with zipfile.ZipFile(built) as one, zipfile.ZipFile(JAR) as other:
            assert one.namelist() == other.namelist()
            for name in one.namelist():
                assert one.read(name) == other.read(name), (
                    f"{name}: run python -m tools.build_local_files_jar"
                )
