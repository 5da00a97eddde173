"""What savepoints are compared with: a plain, durable copy of the same files."""

from __future__ import annotations

import os
import time
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def durable_copy_seconds(files: list[Path], root: Path, target: Path) -> float:
    """Copy files below `root` to `target`: read, write, fsync, one after the other.

    Nothing is checked and no digest is made. Directories are synchronised too.
    """
    began = time.perf_counter()
    directories = {target}
    for file in files:
        path = target / file.relative_to(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        directories.add(path.parent)
        with file.open("rb") as source, path.open("xb") as to:
            while chunk := source.read(_CHUNK_BYTES):
                to.write(chunk)
            to.flush()
            os.fsync(to.fileno())
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - began
