"""Golden data as archives: one for each backend and version of PySpark that wrote it."""

from __future__ import annotations

import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent
NEWEST = "4.3.0"
"""The version of PySpark whose archives the tests use that need one of a backend."""

ALWAYS = {("4.0", "rocksdb"), ("4.1", "heap")}
ARCHIVES = sorted(GOLDEN.glob("*/pyspark-*.tar.xz"))
OF_NEWEST = [each for each in ARCHIVES if f"-{NEWEST}-" in each.name]
_KEPT: list[tempfile.TemporaryDirectory[str]] = []
"""Removed when the process ends."""


def name_of(archive: Path) -> str:
    """Return version, PySpark and backend of an archive, as in the names of tests."""
    return f"{archive.parent.name}-{archive.name.removesuffix('.tar.xz')}"


def is_always(archive: Path) -> bool:
    """Return whether `make test` runs all tests with an archive of another version of PySpark."""
    _, pyspark, backend = archive.name.removesuffix(".tar.xz").split("-")
    return (pyspark.rpartition(".")[0], backend) in ALWAYS


def in_parts() -> list[Any]:
    """Return those of other versions as parameters of a test, some with the mark of long tests."""
    return [
        pytest.param(each, id=name_of(each), marks=() if is_always(each) else pytest.mark.soak)
        for each in ARCHIVES
        if each not in OF_NEWEST
    ]


def pack(directory: Path, archive: Path) -> None:
    """Write all files below a directory into an archive, without users and times."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(directory.iterdir()):
            packed.add(path, path.name, filter=plain)


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack an archive; return its ``whole-<backend>``, which ``expected.json`` lies beside."""
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    (whole,) = directory.glob("whole-*")
    return whole


@cache
def newest(backend: str) -> Path:
    """Return the newest ``whole-<backend>``, unpacked for this process; not to be changed."""
    directory = tempfile.TemporaryDirectory()
    _KEPT.append(directory)
    (archive,) = (each for each in OF_NEWEST if each.name.endswith(f"-{backend}.tar.xz"))
    return unpack(archive, Path(directory.name))
