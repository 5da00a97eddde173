"""Golden data as archives: one for each backend and version of PySpark that wrote it."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent
ALWAYS = {("4.0", "rocksdb"), ("4.1", "heap")}
ARCHIVES = sorted(GOLDEN.glob("*/pyspark-*.tar.xz"))


def name_of(archive: Path) -> str:
    """Return version, PySpark and backend of an archive, as in the names of tests."""
    return f"{archive.parent.name}-{archive.name.removesuffix('.tar.xz')}"


def is_always(archive: Path) -> bool:
    """Return whether `make test` runs all tests with an archive; `make soak` does so with each."""
    _, pyspark, backend = archive.name.removesuffix(".tar.xz").split("-")
    return (pyspark.rpartition(".")[0], backend) in ALWAYS


def in_parts() -> list[Any]:
    """Return the archives as parameters of a test, most of them with the mark of long tests."""
    return [
        pytest.param(each, id=name_of(each), marks=() if is_always(each) else pytest.mark.soak)
        for each in ARCHIVES
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
